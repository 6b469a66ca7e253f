"""The script that installs packages keeps the driver's packages before it installs them: an installation that is cut
keeps them too."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from rigwright.operations import apt

APT = """#!/bin/sh
case " $* " in
  *" --download-only "*) mkdir -p "$CACHE" && echo deb >"$CACHE/nvidia-smi_535.261.03_amd64.deb";;
  *" -s "*) echo "Inst nvidia-smi (535.261.03 Debian:12 [amd64])"; echo "Inst make [4.2] (4.3 Debian:12 [amd64])";;
  *" update "*) ;;
  *) cp "$RECORD" "$RECORD.seen"; exit 100;;
esac
"""
PROGRAMS = {
    "apt-get": APT,
    "apt-mark": "#!/bin/sh\n",
    "dpkg": "#!/bin/sh\necho amd64\n",
    "dpkg-query": "#!/bin/sh\nprintf 'make\\tamd64\\t4.2\\tinstall\\tinstalled\\n'\n",
}


@pytest.mark.parametrize("number", [1, 2])
def test_what_was_fetched_is_kept_and_what_is_new_is_recorded_before_it_is_installed(
    tmp_path: Path, number: int
) -> None:
    cache, kept = tmp_path / "cache", tmp_path / "rigwright/debs"
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    argv = [
        word.replace("/var/cache/apt/archives", str(cache)).replace("/var/lib/rigwright", str(tmp_path / "rigwright"))
        for word in apt.install(["nvidia-smi"]).argv
    ]
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "CACHE": str(cache)}
    environment["RECORD"] = str(tmp_path / "rigwright/packages")
    for _ in range(number):
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 100, done.stderr
    assert [path.name for path in kept.iterdir()] == ["nvidia-smi_535.261.03_amd64.deb"]
    assert (tmp_path / "rigwright/packages.seen").read_text() == "since\twhole\nnew\tnvidia-smi\n"
    assert (tmp_path / "rigwright/packages").read_text() == "since\twhole\n"
