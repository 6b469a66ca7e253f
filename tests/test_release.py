"""scripts/release: the list of components of a release is valid CycloneDX and has every locked package."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rigwright import __version__
from tests.paths import ROOT


@pytest.fixture(scope="module")
def listed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Returns the list of components of this checkout; it is the same when it is made again."""
    first, second = (tmp_path_factory.mktemp("release") / "rigwright.cdx.json" for _ in range(2))
    for path in (first, second):
        subprocess.run([ROOT / "scripts" / "release", "--components", path], check=True, timeout=60)
    assert first.read_bytes() == second.read_bytes()
    found: dict[str, Any] = json.loads(first.read_text())
    return found


@pytest.mark.nightly
def test_it_is_valid(listed: dict[str, Any]) -> None:
    from cyclonedx.schema import SchemaVersion
    from cyclonedx.validation.json import JsonStrictValidator

    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(listed)) is None
    assert validator.validate_str(json.dumps({**listed, "serialNumber": "1"})) is not None


def test_every_locked_package_is_a_component_with_its_hashes(listed: dict[str, Any]) -> None:
    lock = (ROOT / "requirements" / "rigwright.lock").read_text(encoding="utf-8")
    components = {f"{one['name']}=={one['version']}": one for one in listed["components"]}
    assert list(components) == sorted(set(re.findall(r"^[a-z0-9-]+==[^ ]+", lock, re.M)))
    hashes = [one["content"] for part in components.values() for one in part["externalReferences"][0]["hashes"]]
    assert sorted(hashes) == sorted(re.findall("sha256:([0-9a-f]{64})", lock))
    assert {part["externalReferences"][0]["type"] for part in components.values()} == {"distribution"}


def test_licences_scopes_and_needs(listed: dict[str, Any]) -> None:
    components = {one["name"]: one for one in listed["components"]}
    assert listed["metadata"]["component"]["name"] == "rigwright"
    assert components["paramiko"]["licenses"] == [{"license": {"id": "LGPL-2.1"}}]
    assert components["cryptography"]["licenses"] == [{"expression": "Apache-2.0 OR BSD-3-Clause"}]
    assert [name for name, one in components.items() if not one.get("licenses") and one["scope"] != "optional"] == []
    assert [name for name, one in components.items() if one["scope"] == "excluded"] == ["setuptools"]
    needs = {one["ref"].partition("==")[0]: one.get("dependsOn", []) for one in listed["dependencies"]}
    assert {ref.partition("==")[0] for ref in needs["fabric"]} == {"decorator", "deprecated", "invoke", "paramiko"}
    direct = re.findall(
        r'^    "([a-z0-9-]+)[<>=]', (ROOT / "pyproject.toml").read_text().partition("[project.opt")[0], re.M
    )
    assert {ref.partition("==")[0] for ref in needs["rigwright"]} == {*direct}


@pytest.mark.nightly
def test_a_release_is_of_committed_files(tmp_path: Path) -> None:
    """Builds the wheel of a commit; with a file that is not committed it refuses."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "-q", ROOT, checkout], check=True)
    shutil.copy(ROOT / "scripts" / "release", checkout / "scripts")
    (checkout / ".venv").symlink_to(ROOT / ".venv")
    subprocess.run(["git", "config", "core.excludesFile", "exclude"], cwd=checkout, check=True)
    (checkout / "exclude").write_text("/.venv\n/exclude\n/dist\n")
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("add", "-A"), ("commit", "-qm", "as here", "--allow-empty")):
        subprocess.run(["git", *identity, *words], cwd=checkout, check=True)
    subprocess.run(["scripts/release"], cwd=checkout, check=True, timeout=120)
    made = sorted(path.name for path in (checkout / "dist").iterdir())
    assert made == [f"rigwright-{__version__}-py3-none-any.whl", f"rigwright-{__version__}.cdx.json"]
    found = json.loads((checkout / "dist" / made[1]).read_text())["metadata"]["component"]["hashes"][0]["content"]
    digest = subprocess.run(["sha256sum", checkout / "dist" / made[0]], capture_output=True, text=True, check=True)
    assert digest.stdout.split()[0] == found
    (checkout / "new").touch()
    done = subprocess.run(["scripts/release"], cwd=checkout, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "files are not committed" in done.stderr) == (1, True)
