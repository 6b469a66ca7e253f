"""Simulated hosts in one process: each speaks SSH on an address of its own and gives the recorded answers of a host.

    python -m lab.bench.swarm_endpoints PLAN

listens on 127.0.0.0/8, prints `ready`, and ends with its stdin; then it prints, as JSON, how many scripts had no
recorded answer. PLAN is a JSON file of `swarm.Plan`. Key exchange, login, channels and encryption are those of
asyncssh. The shell is none: a script is looked up.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncssh

from lab.bench import swarm_recording

BLOCK = b"y\n" * 16384


@dataclass
class Recorded:
    """The recording that all endpoints answer with, and the scripts that it lacks."""

    answers: Mapping[str, bytes]
    missing: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Finds the identifiers of the recorded host."""
        self.identifiers = swarm_recording.identifiers(self.answers.values())

    def answer(self, number: int, script: bytes, nonce: str) -> bytes:
        """What the endpoint of this number answers to a script; b"" for one that was not recorded."""
        own = {one: swarm_recording.of_endpoint(number, one) for one in self.identifiers}
        for recorded, mine in own.items():
            script = script.replace(mine, recorded)
        found = self.answers.get(swarm_recording.key(script, nonce), b"")
        if not found:
            self.missing.append(script.decode("utf-8", "replace"))
        for recorded, mine in own.items():
            found = found.replace(recorded, mine)
        return found.replace(b"NONCE", nonce.encode())


class _AnyKey(asyncssh.SSHServer):
    """A server that every key may log in to."""

    def begin_auth(self, username: str) -> bool:
        return username != ""

    def public_key_auth_supported(self) -> bool:
        return True

    def validate_public_key(self, username: str, key: Any) -> bool:
        return bool(username and key)


class Endpoint:
    """One simulated host: `kind` says how it fails, "ok" for not; it answers after `latency_s` seconds."""

    def __init__(self, described: dict[str, Any], recorded: Recorded) -> None:
        self.number: int = described["number"]
        self.kind: str = described["kind"]
        self.latency_s: float = described["latency_s"]
        self.address, self.port = str(described["address"]), int(described["port"])
        self.host_key = asyncssh.import_private_key(described["host_key"])
        self.recorded = recorded

    async def listen(self) -> None:
        """Listens, except where the host is away."""
        if self.kind == "silent":
            await asyncio.start_server(self._silent, self.address, self.port)
        elif self.kind != "away":
            await asyncssh.listen(
                self.address,
                self.port,
                server_factory=_AnyKey,
                server_host_keys=[self.host_key],
                process_factory=self._process,
                encoding=None,
                gss_host=None,
                agent_forwarding=False,
                login_timeout=0,
                keepalive_interval=0,
            )

    async def _silent(self, reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while await reader.read(65536):
                pass

    async def _process(self, process: Any) -> None:
        with contextlib.suppress(OSError, asyncssh.Error):
            script = b""
            while not (nonce := swarm_recording.nonce_of(script)):
                more = await process.stdin.read(1 << 20)
                if not more:
                    return
                script += more
            await asyncio.sleep(self.latency_s)
            while self.kind == "stuck":
                await process.stdin.read(1)
                await asyncio.sleep(1)
            while self.kind == "flood":
                process.stdout.write(BLOCK)
                await process.stdout.drain()
            process.stdout.write(self.recorded.answer(self.number, script, nonce))
            await process.stdout.drain()
            process.exit(0)


async def _serve(plan: dict[str, Any]) -> None:
    logging.getLogger("asyncio").setLevel(
        logging.ERROR
    )  # it warns of each connection that the controller leaves, as that of a flood
    recorded = Recorded(swarm_recording.load(Path(plan["recording"])).answers)
    for one in plan["endpoints"]:
        await Endpoint(one, recorded).listen()
    gc.freeze()
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(json.dumps({"missing": len(recorded.missing), "first": recorded.missing[:3]}), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve(json.loads(Path(sys.argv[1]).read_text())))
