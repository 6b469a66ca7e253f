"""The program `rigwright` over the simulated hosts of `fake_fleet`, as a process of its own.

    python -m tests.security.fleet_program FOLDER HOSTS provision --host all --yes ...

A host begins its change when the file FOLDER/go exists; before that it writes FOLDER/begun-HOST. With FOLDER/deaf it
does not notice that its connection is closed. With FOLDER/hold the history is written when that file is gone, and
FOLDER/recording exists. With FOLDER/nobody the user has no entry in passwd and no HOME; with FOLDER/full no file can be
written. With FOLDER/each signals that come together count one by one.
"""

from __future__ import annotations

import json
import os
import pwd
import resource
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rigwright.cli import program
from rigwright.core.errors import Unreachable
from rigwright.core.process import interruption
from rigwright.report import output_files
from rigwright.report.lazy_terminal import Output
from tests.fleet import fake_fleet
from tests.paths import ROOT

HOSTS = "gpu1,gpu2,gpu3"


def main() -> None:
    """Runs the program with the arguments after FOLDER and HOSTS."""
    folder, hosts, *words = sys.argv[1:]
    lasting = SimpleNamespace(setattr=setattr)  # for the rest of this process
    made = fake_fleet.fleet(Path(folder), lasting, *hosts.split(","))  # type: ignore[arg-type]

    def before(name: str) -> None:
        (made.folder / f"begun-{name}").touch()
        while not (made.folder / "go").exists():
            if made.hosts[name].abandoned.wait(0.02) and not (made.folder / "deaf").exists():
                raise Unreachable(name, "the connection was lost")

    def record(document: dict[str, Any], output: Output) -> None:
        (made.folder / "recording").touch()
        while (made.folder / "hold").exists():
            time.sleep(0.02)
        recorded(document, output)

    if (made.folder / "each").exists():
        interruption.TOGETHER_S = 0
    if (made.folder / "full").exists():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if (made.folder / "nobody").exists():
        os.environ.pop("HOME")
        pwd.getpwuid = _unknown
    made.before, recorded, output_files.record = before, output_files.record, record
    sys.argv = ["rigwright", *words]
    program.main()


def _unknown(uid: int) -> pwd.struct_passwd:
    raise KeyError(f"getpwuid(): uid not found: {uid}")


class Provision:
    """`provision` of the hosts in a process. `shell`: how a shell starts it, with `"$@"` for its words."""

    def __init__(self, folder: Path, shell: str = '"$@"', *words: str, **given: Any) -> None:
        self.folder = folder
        argv = [sys.executable, "-m", "tests.security.fleet_program", str(folder), HOSTS, "provision", "--host", "all"]
        argv += ["--yes", "--inventory", f"{folder}/hosts.yml", "--playbook", f"{folder}/play.yml"]
        argv += ["--json", f"{folder}/out.json", *words]
        environment = {
            **os.environ,
            "RIGWRIGHT_HISTORY": f"{folder}/history.sqlite",
            "XDG_STATE_HOME": f"{folder}/state",
            "TERM": "dumb",
        }
        options: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **given,
        }
        options["env"] = environment | options.get("env", {})
        self.process = subprocess.Popen(["bash", "-c", f"exec {shell}", "sh", *argv], cwd=ROOT, text=True, **options)

    def until_begun(self) -> None:
        """Waits until every host has begun its change."""
        self.until(lambda: len(list(self.folder.glob("begun-*"))) == 3)

    def until(self, true: Any) -> None:
        """Waits until a function returns true."""
        ends = time.monotonic() + 60
        while not true():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < ends
            time.sleep(0.02)

    def go(self) -> None:
        """Lets the hosts make their change."""
        (self.folder / "go").touch()

    def end(self, deadline_s: float = 90) -> int:
        """Waits for the end; returns the exit code."""
        return self.process.wait(deadline_s)

    @property
    def document(self) -> dict[str, Any]:
        """Returns the JSON document that the run wrote."""
        found: dict[str, Any] = json.loads((self.folder / "out.json").read_text())
        return found

    @property
    def statuses(self) -> dict[str, str]:
        """Returns the status of each host in the JSON document, which must be that of the history."""
        written = {name: host["status"] for name, host in self.document["hosts"].items()}
        database = sqlite3.connect(f"file:{self.folder}/history.sqlite?mode=ro", uri=True)
        assert dict(database.execute("SELECT name, status FROM outcome").fetchall()) == written
        assert database.execute("SELECT exit_code FROM run").fetchall() == [(self.document["exit_code"],)]
        database.close()
        return written


if __name__ == "__main__":
    main()
