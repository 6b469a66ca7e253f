"""A host that is this machine's shell in a temporary folder: its systemd runs a unit at once, and a test sets its
clocks and boot id."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

from rigwright.core.command import Command, Result
from rigwright.inventory.model import Host as InventoryHost
from rigwright.ssh.transport import Transport

SYSTEMCTL = """#!/bin/sh
case $1 in
  show) cat "$STATE/unit" 2>/dev/null || echo dead;;
  is-system-running) cat "$STATE/system" 2>/dev/null || echo running;;
  list-units) [ ! -e "$STATE/silent" ] && cat "$STATE/units" 2>/dev/null || [ ! -e "$STATE/silent" ];;
esac
"""
SYSTEMD_RUN = """#!/bin/sh
while [ "$1" != sh ]; do shift; done
echo started >>"$STATE/starts"
if [ -e "$STATE/never-ends" ]; then echo running >"$STATE/unit"; else "$@"; fi
"""
NOTHING = "#!/bin/sh\n"
LOGGER = '#!/bin/sh\necho "$4" >>"$STATE/log"\n'
INIT = "1 (systemd) S 0 1 1 0 -1 4194560 57707 3162572 0 273 109 464 3785 1740 20 0 1 0 {ticks} 54427648 5392 1844\n"


class Host(Transport):
    """The host. `after` is called after each command, with its result, and returns the result that arrives."""

    def __init__(self, folder: Path) -> None:
        super().__init__(InventoryHost("host", (), {}))
        self.folder = folder
        for name in ("bin", "state", "var", "run", "systemd"):
            (folder / name).mkdir()
        for name, text in (
            ("systemctl", SYSTEMCTL),
            ("systemd-run", SYSTEMD_RUN),
            ("sync", NOTHING),
            ("sleep", NOTHING),
            ("logger", LOGGER),
        ):
            (folder / "bin" / name).write_text(text)
            (folder / "bin" / name).chmod(0o755)
        self.boot("11111111-first")
        self.after: Callable[[Result], Result | None] = lambda result: result

    @property
    def lease(self) -> Path:
        """Returns the lease file."""
        return self.folder / "var" / "lease"

    def boot(self, boot_id: str, up_s: float = 20) -> None:
        """Boots the host; its uptime is then `up_s`. Its init started two seconds after its kernel."""
        (self.folder / "boot_id").write_text(f"{boot_id}\n")
        (self.folder / "init").write_text(INIT.format(ticks=200))
        self.uptime(up_s)

    def uptime(self, up_s: float) -> None:
        """Sets the uptime in seconds."""
        (self.folder / "uptime").write_text(f"{up_s:.2f} 1.00\n")

    def state(self, name: str, text: str) -> None:
        """Sets what systemctl answers: `unit`, `units`, `system`; `silent` makes it fail; with `never-ends` jobs do not
        end."""
        (self.folder / "state" / name).write_text(text)

    @property
    def starts(self) -> int:
        """Returns how many jobs were started."""
        file = self.folder / "state" / "starts"
        return len(file.read_text().splitlines()) if file.exists() else 0

    @property
    def log(self) -> list[str]:
        """Returns the lines of rigwright in the system log."""
        file = self.folder / "state" / "log"
        return file.read_text().splitlines() if file.exists() else []

    def connect(self, timeout_s: float = 0) -> None:
        """The host answers again."""

    def run(self, commands: Sequence[Command], *, together: bool = False) -> list[Result]:
        """Returns the results of commands that this machine's shell runs."""
        results = []
        for cmd in commands:
            result = self._answer(cmd)
            results.append(self.after(result) or result)
            if results[-1].code != 0 and not together:
                break
        return results + [Result(-1, b"")] * (len(commands) - len(results))

    def _answer(self, cmd: Command) -> Result:
        places = {
            "/var/lib/rigwright": "var",
            "/run/rigwright": "run/rigwright",
            "/run/systemd/system": "systemd",
            "/proc/sys/kernel/random/boot_id": "boot_id",
            "/proc/uptime": "uptime",
            "/proc/1/stat": "init",
        }
        argv = list(cmd.argv)
        for place, own in places.items():
            argv = [word.replace(place, f"{self.folder}/{own}") for word in argv]
        env = {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}", "STATE": f"{self.folder}/state"}
        done = subprocess.run(argv, input=cmd.stdin, capture_output=True, timeout=30, check=False, env=env)
        return Result(done.returncode, done.stdout, done.stderr)
