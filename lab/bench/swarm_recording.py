"""The recording of a host: each script that a command sent, and what the host answered (`scripts/bench --swarm`).

    python -m lab.bench.swarm_recording FILE COMMAND [--option VALUE ...]

runs a command of rigwright and writes the recording to FILE. Nonces and ids of runs are replaced in it, because each run has its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

NONCE = re.compile(r'echo "([0-9a-f]{24}) codes')
_OF_A_RUN = re.compile(rb"export LC_ALL=C LANGUAGE=C PATH=[^\n]*")
_IDENTIFIERS = re.compile(
    rb"(?<![0-9A-Za-z-])(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9A-Za-z-])"
    rb"|(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])"
)
"""UUIDs, and ids of 32 digits as in /etc/machine-id."""


def key(script: bytes, nonce: str) -> str:
    """The digest of a script, without its nonce, its run and the machine that sent it."""
    return hashlib.sha256(_OF_A_RUN.sub(b"", script).replace(nonce.encode(), b"NONCE")).hexdigest()


def nonce_of(script: bytes) -> str:
    """The nonce of a whole script; "" while it is not complete."""
    found = NONCE.search(script.decode("utf-8", "replace"))
    return found[1] if found and script.endswith(b"exit; }\n") else ""


def identifiers(answers: Iterable[bytes]) -> tuple[bytes, ...]:
    """The texts of the answers that only this machine has."""
    return tuple(sorted({found for answer in answers for found in _IDENTIFIERS.findall(answer)}))


def of_endpoint(number: int, identifier: bytes) -> bytes:
    """The identifier of an endpoint in place of the recorded one: hexadecimal digits are others, the length is the same."""
    digest = hashlib.sha512(b"%d %s" % (number, identifier)).hexdigest().encode()
    prefix = 4 if identifier.startswith(b"GPU-") else 0
    made = bytes(byte if byte == 45 else digest[at] for at, byte in enumerate(identifier[prefix:]))
    return identifier[:prefix] + made


def save(path: Path, answers: Mapping[str, bytes]) -> None:
    """Writes a recording."""
    path.write_text(json.dumps({one: base64.b64encode(answer).decode() for one, answer in answers.items()}))


def load(path: Path) -> dict[str, bytes]:
    """Reads a recording: by `key` of the script the answer, in which NONCE stands for the nonce."""
    return {one: base64.b64decode(answer) for one, answer in json.loads(path.read_text()).items()}


def record(path: Path, words: Sequence[str]) -> int:
    """Runs a command (`fleet.check --host NAME`), writes what its hosts answered, and returns the command's exit code."""
    from rigwright.cli import program
    from rigwright.ssh import local, transport

    answers: dict[str, bytes] = {}

    def recording(kind: type[transport.Transport]) -> None:
        exchange = kind._exchange

        def exchanged(self: transport.Transport, script: bytes, nonce: str, limit_s: float) -> bytes:
            answer = exchange(self, script, nonce, limit_s)
            answers[key(script, nonce)] = answer.replace(nonce.encode(), b"NONCE")
            return answer

        kind._exchange = exchanged  # type: ignore[method-assign]

    recording(transport.Ssh)
    recording(local.Local)
    sys.argv = ["rigwright", *words]
    try:
        program.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    finally:
        save(path, answers)
    return 0


if __name__ == "__main__":
    raise SystemExit(record(Path(sys.argv[1]), sys.argv[2:]))
