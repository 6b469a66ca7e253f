"""A TCP proxy on loopback that delays both directions, as a distant network does.

    python -m lab.bench.delay RTT_MS ADDRESS:PORT ...

It prints one local port per line for each address, and serves until stdin ends. Data from the client and from the host
arrives half a round trip later. The host receives a connection one and a half round trips after the client opened it,
as after a handshake over a distant network. Data that the client sent before such a handshake would have ended arrives
with the connection, because the client would have sent it at the end of the handshake.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from functools import partial

Queue = asyncio.Queue[tuple[float, bytes]]
"""Data and the time (of the event loop) when it is due at the other end. Empty data is the end of the stream."""


async def _read(reader: asyncio.StreamReader, queue: Queue, late_s: float) -> None:
    """Puts the data of `reader` into `queue`, due `late_s` seconds later, and then the end of the stream."""
    data = b"first"
    while data:
        try:
            data = await reader.read(65536)
        except OSError:
            data = b""
        queue.put_nowait((asyncio.get_running_loop().time() + late_s, data))


async def _write(queue: Queue, writer: asyncio.StreamWriter) -> None:
    """Writes all data when it is due, or at once when that time has passed."""
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
    os._exit(0)  # drops connections that are still open


def main() -> int:
    """Serves until stdin ends, and returns the exit code."""
    asyncio.run(_all(float(sys.argv[1]) / 1000, sys.argv[2:]))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
