"""A way to simulated hosts that takes as long as a distant one: TCP on loopback, delayed in both directions.

    python -m lab.delay RTT_MS ADDRESS:PORT ...      prints one local port per line and address, and serves until stdin ends

What the client sends and what the host answers each arrive half a round trip later. The host hears of a connection one
and a half round trips after it was asked for, as it would where the handshake itself has to travel; with it comes what the
client sent before the handshake would have been through, which it would have sent then.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import partial

Queue = asyncio.Queue[tuple[float, bytes]]
"""What was read, and when it is due at the other end (the loop's time); nothing at the end."""


async def _read(reader: asyncio.StreamReader, queue: Queue, late_s: float) -> None:
    """What is read is due `late_s` later; the end too."""
    data = b"first"
    while data:
        try:
            data = await reader.read(65536)
        except OSError:
            data = b""
        queue.put_nowait((asyncio.get_running_loop().time() + late_s, data))


async def _write(queue: Queue, writer: asyncio.StreamWriter) -> None:
    """Everything is written when it is due, or at once when it was."""
    with contextlib.suppress(OSError):
        while True:
            due, data = await queue.get()
            await asyncio.sleep(due - asyncio.get_running_loop().time())
            if not data:
                writer.write_eof()
                break
            writer.write(data)
            await writer.drain()


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, to: str, rtt_s: float) -> None:
    address, _, port = to.rpartition(":")
    there, here = Queue(), Queue()
    reading = asyncio.create_task(_read(reader, there, rtt_s / 2))
    await asyncio.sleep(1.5 * rtt_s)
    with contextlib.suppress(OSError):
        far, back = await asyncio.open_connection(address, int(port))
        with contextlib.suppress(OSError):
            await asyncio.gather(_write(there, back), _read(far, here, rtt_s / 2), _write(here, writer))
        back.close()
    reading.cancel()
    writer.close()


async def _all(rtt_s: float, addresses: list[str]) -> None:
    for to in addresses:
        listening = await asyncio.start_server(partial(_serve, to=to, rtt_s=rtt_s), "127.0.0.1", 0)
        print(listening.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    os._exit(0)  # connections that are open are nobody's any more


def main() -> int:
    """Serves; returns the exit code."""
    asyncio.run(_all(float(sys.argv[1]) / 1000, sys.argv[2:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
