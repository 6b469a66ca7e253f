"""paramiko without importlib.metadata is paramiko."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata


def told(code: str) -> str:
    """What a new process prints."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_it_has_its_version_and_imports_less() -> None:
    code = "import sys; from rigwright.ssh.lean_paramiko import paramiko\nprint(paramiko.__version__, paramiko.Transport._CLIENT_ID, "
    code += "[name for name in ('importlib.metadata', 'email', 'zipfile') if name in sys.modules])"
    version = metadata.version("paramiko")
    assert told(code) == f"{version} paramiko_{version} []\n"


def test_importlib_metadata_is_itself_afterwards() -> None:
    code = "import rigwright.ssh.connect, importlib\nfrom importlib import metadata\n"
    code += "print(metadata.__file__.endswith('__init__.py'), metadata.version('rich'))"
    assert told(code) == f"True {metadata.version('rich')}\n"


def test_where_it_is_imported_already_nothing_is_replaced() -> None:
    code = "import importlib.metadata as before, sys; import rigwright.ssh.connect; print(sys.modules['importlib.metadata'] is before)"
    assert told(code) == "True\n"


def test_without_a_folder_that_tells_the_version_it_is_imported_as_usual() -> None:
    code = "import pathlib; pathlib.Path.glob = lambda *_: iter(())\nimport rigwright.ssh.connect, sys, paramiko\n"
    code += "print(paramiko.__version__, 'importlib.metadata' in sys.modules)"
    assert told(code) == f"{metadata.version('paramiko')} True\n"
