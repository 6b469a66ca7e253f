"""The HTTP server for the hosts' apt. It serves one folder, only on the address of the bridge."""

from __future__ import annotations

import functools
import http
import http.server
import io
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import BinaryIO, Literal

from lab.base.paths import CHECKOUT, RUN, write
from lab.host import cgroups, network
from rigwright.core.errors import HostError

PORT = 8080
GROUP = "_archive"
"""The server's control group. No host can have this name."""
START_S = 15.0
_SERVES = RUN / "archive"
_TROUBLE = RUN / "archive.trouble"
"""The file with the addresses that get faulty answers: `ADDRESS TROUBLE`, one per line."""

Trouble = Literal["gone", "half", "corrupt", "behind"]
"""The kinds of faulty answers.

gone: 404 to every request. half: the first WHOLE packages of a driver are sent, the next one is cut off, and later
requests get 404. corrupt: the bytes of a driver's packages differ from those in the index. behind: the index lists
packages of a driver that do not exist, as on a mirror between two synchronisations.
"""

WHOLE = 4
_DRIVER = re.compile(r"/[^/]*nvidia[^/]*\.deb$")
_sent: dict[str, int] = {}


def troubles() -> dict[str, str]:
    """Returns the kind of faulty answers of each address that has one."""
    return dict(line.split() for line in _TROUBLE.read_text().splitlines()) if _TROUBLE.exists() else {}


def trouble(address: str, kind: Trouble | None) -> None:
    """Sets the kind of faulty answers that the address gets from now on; None: correct answers."""
    text = "".join(f"{who} {what}\n" for who, what in ({**troubles(), address: kind or ""}).items() if what)
    if text:
        write(_TROUBLE, text)
    else:
        _TROUBLE.unlink(missing_ok=True)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves files, with faulty answers for the addresses in `troubles`."""

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        asker = self.client_address[0]
        kind, package = troubles().get(asker), bool(_DRIVER.search(self.path))
        if kind != "half":
            _sent.pop(asker, None)
        elif package:
            _sent[asker] = _sent.get(asker, 0) + 1
        late = _sent.get(asker, 0) - WHOLE
        if kind == "gone" or (kind == "behind" and package) or late > 1 or (late == 1 and not package):
            self.send_error(http.HTTPStatus.NOT_FOUND)
            return None
        found = super().send_head()
        if found is None or not package or not (kind == "corrupt" or late == 1):
            return found
        with found:
            data = found.read()
        if kind == "corrupt":
            return io.BytesIO(bytes(byte ^ 1 for byte in data))
        self.close_connection = True
        return io.BytesIO(data[: len(data) // 2])


def url() -> str:
    """Returns the URL that hosts use."""
    return f"http://{network.gateway()}:{PORT}/"


def serve(directory: Path) -> str:
    """Serves the folder, and returns the URL.

    Raises HostError when the server does not start within START_S seconds.
    """
    wanted = f"{directory} {url()}\n"
    if cgroups.processes(GROUP) and _SERVES.exists() and _SERVES.read_text() == wanted:
        return url()
    stop()
    log = RUN / "archive.log"
    with log.open("ab") as out:
        argv = ["setsid", "--fork", sys.executable, "-m", "lab.archive.server", str(directory), str(network.gateway())]
        subprocess.run(
            argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True
        )
    ends = time.monotonic() + START_S
    while not (_SERVES.exists() and cgroups.processes(GROUP)):
        if time.monotonic() > ends:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-2:])
            raise HostError("lab", f"the package archive's server did not start: {last}", fix=f"read {log}")
        time.sleep(0.02)
    return url()


def stop() -> None:
    """Stops the server."""
    cgroups.kill(GROUP)
    cgroups.remove(GROUP)
    _SERVES.unlink(missing_ok=True)


def main(directory: str, address: str) -> None:
    """Serves until it is killed."""
    cgroups.enter(GROUP)
    handler = functools.partial(_Handler, directory=directory)
    with http.server.ThreadingHTTPServer((address, PORT), handler) as server:
        write(_SERVES, f"{directory} http://{address}:{PORT}/\n")
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
