"""Owns the HTTP server that the hosts' apt reads: one folder, on the bridge's address alone."""

from __future__ import annotations

import functools
import http
import http.server
import io
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

from lab import cgroups, network
from lab.paths import CHECKOUT, RUN, write
from rigwright.errors import HostError

PORT = 8080
GROUP = "_archive"
"""Its control group; no host can have this name."""
START_S = 15.0
_SERVES = RUN / "archive"
_REFUSED = RUN / "archive.refused"
"""Addresses, one per line, that get 404 whatever they ask for."""


def refused() -> set[str]:
    """The addresses that get nothing."""
    return set(_REFUSED.read_text().split()) if _REFUSED.exists() else set()


def refuse(addresses: Iterable[str]) -> None:
    """These addresses get nothing, all others what there is."""
    text = "".join(f"{address}\n" for address in sorted(addresses))
    if text:
        write(_REFUSED, text)
    else:
        _REFUSED.unlink(missing_ok=True)


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files, unless the asker is refused."""

    def send_head(self) -> io.BytesIO | BinaryIO | None:
        if self.client_address[0] in refused():
            self.send_error(http.HTTPStatus.NOT_FOUND)
            return None
        return super().send_head()


def url() -> str:
    """Where hosts find it."""
    return f"http://{network.gateway()}:{PORT}/"


def serve(directory: Path) -> str:
    """The folder is served; returns the URL."""
    wanted = f"{directory} {url()}\n"
    if cgroups.processes(GROUP) and _SERVES.exists() and _SERVES.read_text() == wanted:
        return url()
    stop()
    log = RUN / "archive.log"
    with log.open("ab") as out:
        argv = ["setsid", "--fork", sys.executable, "-m", "lab.archive_http", str(directory), str(network.gateway())]
        subprocess.run(
            argv, cwd=CHECKOUT, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=START_S, check=True
        )
    ends = time.monotonic() + START_S
    while not (_SERVES.exists() and cgroups.processes(GROUP)):
        if time.monotonic() > ends:
            last = " / ".join(log.read_text(errors="replace").strip().splitlines()[-2:])
            raise HostError("lab", f"the package archive's server did not start: {last}", todo=f"read {log}")
        time.sleep(0.02)
    return url()


def stop() -> None:
    """No server runs."""
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
