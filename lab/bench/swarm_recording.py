"""The recording of a host: each script that a command sent, and what the host answered (`scripts/bench --swarm`).

    python -m lab.bench.swarm_recording FILE COMMAND [--option VALUE ...]

runs a command of rigwright and adds its answers to the recording in FILE. Nonces and ids of runs are replaced in it,
because each run has its own.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NONCE = re.compile(r'echo "([0-9a-f]{24}) codes')
_OF_A_RUN = re.compile(rb"export LC_ALL=C LANGUAGE=C PATH=[^\n]*")
_RUN = re.compile(rb"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")
"""The id of a run."""
_IDENTIFIERS = re.compile(
    rb"(?<![0-9A-Za-z-])(?:GPU-)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?![0-9A-Za-z-])"
    rb"|(?<![0-9A-Za-z])[0-9a-f]{32}(?![0-9A-Za-z])"
)
"""UUIDs, and ids of 32 digits as in /etc/machine-id."""


def key(script: bytes, nonce: str) -> str:
    """The digest of a script, without its nonce, its run and the machine that sent it."""
    same = _RUN.sub(b"RUN", _OF_A_RUN.sub(b"", script)).replace(nonce.encode(), b"NONCE")
    return hashlib.sha256(same).hexdigest()


def nonce_of(script: bytes) -> str:
    """The nonce of a whole script; "" while it is not complete."""
    found = NONCE.search(script.decode("utf-8", "replace"))
    return found[1] if found and script.endswith(b"exit; }\n") else ""


def identifiers(answers: Iterable[bytes]) -> tuple[bytes, ...]:
    """The texts of the answers that only this machine has."""
    return tuple(sorted({found for answer in answers for found in _IDENTIFIERS.findall(answer)}))


def of_endpoint(number: int, identifier: bytes) -> bytes:
    """The identifier of an endpoint in place of the recorded one: hexadecimal digits are others, the length is the
    same."""
    digest = hashlib.sha512(b"%d %s" % (number, identifier)).hexdigest().encode()
    prefix = 4 if identifier.startswith(b"GPU-") else 0
    made = bytes(byte if byte == 45 else digest[at] for at, byte in enumerate(identifier[prefix:]))
    return identifier[:prefix] + made


@dataclass(frozen=True)
class Recording:
    """What a host answered, by `key` of the script; NONCE in an answer stands for the nonce. `variables`: of the host
    in its inventory, without those of its connection."""

    answers: Mapping[str, bytes] = field(default_factory=dict)
    variables: Mapping[str, Any] = field(default_factory=dict)


def save(path: Path, recording: Recording) -> None:
    """Writes a recording."""
    answers = {key: base64.b64encode(answer).decode() for key, answer in recording.answers.items()}
    path.write_text(json.dumps({"variables": dict(recording.variables), "answers": answers}))


def load(path: Path) -> Recording:
    """Reads a recording; an empty one where there is no file."""
    if not path.exists():
        return Recording()
    read = json.loads(path.read_text())
    answers = {key: base64.b64decode(answer) for key, answer in read["answers"].items()}
    return Recording(answers, read["variables"])


def record(path: Path, words: Sequence[str]) -> int:
    """Runs a command (`fleet.check --host NAME`), adds what its host answered to the file, and returns the command's
    exit code."""
    from rigwright.cli import program

    _keep_answers(path)
    sys.argv = ["rigwright", *words]
    try:
        program.main()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 1
    return 0


def _keep_answers(path: Path) -> None:
    """From now on adds every answer that this process gets from a host to the file."""
    from rigwright.ssh import local, transport

    one_at_a_time = threading.Lock()

    def recording(kind: type[transport.Transport]) -> None:
        exchange = kind._exchange

        def exchanged(self: transport.Transport, script: bytes, nonce: str, limit_s: float) -> bytes:
            answer = exchange(self, script, nonce, limit_s)
            with one_at_a_time:
                before = load(path)
                known = {**before.answers, key(script, nonce): answer.replace(nonce.encode(), b"NONCE")}
                save(path, Recording(known, before.variables))
            return answer

        kind._exchange = exchanged  # type: ignore[method-assign]

    recording(transport.Ssh)
    recording(local.Local)


if __name__ == "__main__":
    raise SystemExit(record(Path(sys.argv[1]), sys.argv[2:]))
