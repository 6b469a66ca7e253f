#!/usr/bin/env python3
"""One end of the link between two nodes: the speed of TCP in each direction, and the round trip of a byte.

    node_link.py listen  --run ID --address 10.0.0.1 --peer 10.0.0.2 --port 29400
    node_link.py connect --run ID --address 10.0.0.2 --peer 10.0.0.1 --port 29400

Prints one JSON document on stdout. The listener takes connections from its peer's address alone, and only those that
say the id of the run; what else connects is closed. First the connecting end sends for --seconds on all streams, then
the listening end. Each end counts what it receives, after a quarter of a second in which the streams reach their speed.
Bytes are zeros and are thrown away.

    {"schema": 1, "role": "listen" | "connect", "address", "peer", "port", "streams", "stage",
     "received": {"bytes", "seconds", "gbit_s"} | null, "rtt_us", "moved": {interface: bytes}, "error"}

stage: the last one that began: start, connect, answer, send, receive, done. moved: what each interface of this host
carried meanwhile, both directions together, where that is more than a twentieth of all. The program ends after
--timeout-s at the latest, and with --watched FILE when nobody has touched that file for --watched-s seconds.
"""

import argparse
import errno
import glob
import hmac
import json
import math
import os
import select
import signal
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host

BLOCK = 1 << 20
WARM_S = 0.25
PINGS = 200
GREETING_BYTES = 64
STRANGERS = 50  # connections that are closed before the listener gives up
WORDS = {
    errno.EADDRINUSE: "the port is in use by another program",
    errno.EADDRNOTAVAIL: "the host no longer has this address",
    errno.ECONNREFUSED: "refused: nothing listens there, or a firewall rejects it",
    errno.EHOSTUNREACH: "no route to the host, or a firewall rejects it",
    errno.ENETUNREACH: "no route to the network",
    errno.ETIMEDOUT: "no answer: a firewall drops it, or the link is down",
}


class Failed(Exception):
    """The measurement cannot go on; the text says why."""


def words_of(error):
    """An error of a socket in words."""
    if isinstance(error, socket.timeout):
        return WORDS[errno.ETIMEDOUT]
    return WORDS.get(error.errno) or error.strerror or str(error)


def bytes_by_interface():
    """Bytes that each interface has carried, both directions together."""
    found = {}
    for path in glob.glob("/sys/class/net/*/statistics"):
        name = path.split("/")[4]
        try:
            with open(os.path.join(path, "rx_bytes")) as received, open(os.path.join(path, "tx_bytes")) as sent:
                found[name] = int(received.read()) + int(sent.read())
        except (OSError, ValueError):
            continue
    return found


def greeting(run, number):
    """What a connection begins with: the id of the run, and the number of the stream (0: control)."""
    return ("rigwright %s %d\n" % (run, number)).encode().ljust(GREETING_BYTES, b" ")


def exactly(link, size):
    """That many bytes of a connection. Raises Failed at its end."""
    got = b""
    while len(got) < size:
        more = link.recv(size - len(got))
        if not more:
            raise Failed("the other node closed the connection")
        got += more
    return got


class End:
    """One end of a link; `found` is its document."""

    def __init__(self, options):
        self.options, self.deadline = options, time.monotonic() + options.timeout_s
        self.links = []
        self.found = {"schema": 1, "role": options.role, "address": options.address, "peer": options.peer}
        self.found.update(port=options.port, streams=options.streams, stage="start", received=None, rtt_us=None)
        self.found.update(moved={}, error=None)

    def left_s(self):
        """Seconds to the end of the time limit. Raises Failed after it."""
        left = self.deadline - time.monotonic()
        if left <= 0:
            raise Failed("no end within %g s" % self.options.timeout_s)
        return left

    def run(self):
        """Measures; what went wrong is in the document."""
        before = bytes_by_interface()
        try:
            control = self.listen() if self.options.role == "listen" else self.connect()
            self.measure(control)
            self.found["stage"] = "done"
        except Failed as error:
            self.found["error"] = str(error)
        except OSError as error:
            self.found["error"] = words_of(error)
        finally:
            for link in self.links:
                link.close()
        moved = {name: size - before.get(name, 0) for name, size in bytes_by_interface().items() if name != "lo"}
        whole = sum(moved.values())
        self.found["moved"] = {name: size for name, size in moved.items() if size * 20 > whole > BLOCK}

    def keep(self, link):
        link.settimeout(self.left_s())
        self.links.append(link)
        return link

    def listen(self):
        """The control connection; the streams are in `links`, by their number."""
        door = self.keep(socket.socket())
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((self.options.address, self.options.port))
        door.listen(self.options.streams + 8)
        self.found["stage"] = "connect"
        by_number, strangers = {}, 0
        until = time.monotonic() + self.options.connect_s
        while len(by_number) <= self.options.streams:
            door.settimeout(max(0.01, min(self.left_s(), until - time.monotonic())))
            try:
                link, (address, _) = door.accept()
            except socket.timeout:
                many = (
                    "%d of %d connections" % (len(by_number), self.options.streams + 1)
                    if by_number
                    else "no connection"
                )
                raise Failed("%s from %s within %g s" % (many, self.options.peer, self.options.connect_s)) from None
            number = self.number_of(link) if address == self.options.peer else None
            if number is None or number in by_number:
                link.close()
                strangers += 1
                if strangers > STRANGERS:
                    raise Failed("%d connections of strangers, the last from %s" % (strangers, address))
                continue
            by_number[number] = self.keep(link)
        self.links = [by_number[number] for number in sorted(by_number)]
        door.close()
        return self.links[0]

    def number_of(self, link):
        """The stream that a connection says it is; None for a stranger."""
        link.settimeout(2)
        try:
            said = exactly(link, GREETING_BYTES)
        except (OSError, Failed):
            return None
        for number in range(self.options.streams + 1):
            if hmac.compare_digest(said, greeting(self.options.run, number)):
                return number
        return None

    def connect(self):
        self.found["stage"] = "connect"
        until = time.monotonic() + self.options.connect_s
        while True:
            link = socket.socket()
            link.settimeout(max(0.1, min(self.left_s(), until - time.monotonic(), 5)))
            try:
                link.bind((self.options.address, 0))
                link.connect((self.options.peer, self.options.port))
                break
            except OSError as error:
                link.close()
                if time.monotonic() >= until or error.errno == errno.EADDRNOTAVAIL:
                    raise Failed(words_of(error)) from None
                time.sleep(0.1)
        self.keep(link).sendall(greeting(self.options.run, 0))
        for number in range(1, self.options.streams + 1):
            link = self.keep(socket.socket())
            link.bind((self.options.address, 0))
            link.connect((self.options.peer, self.options.port))
            link.sendall(greeting(self.options.run, number))
        return self.links[0]

    def measure(self, control):
        self.found["stage"] = "answer"
        control.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        streams = self.links[1:]
        if self.options.role == "listen":
            for _ in range(PINGS):
                control.sendall(exactly(control, 1))
            self.receive(streams)
            control.sendall(b"r")
            exactly(control, 1)
            self.send(streams)
        else:
            self.found["rtt_us"] = self.round_trip_us(control)
            self.send(streams)
            exactly(control, 1)
            control.sendall(b"r")
            self.receive(streams)

    def round_trip_us(self, control):
        times = []
        for _ in range(PINGS):
            began = time.perf_counter()
            control.sendall(b"p")
            exactly(control, 1)
            times.append(time.perf_counter() - began)
        return round(sorted(times)[PINGS // 2] * 1e6, 1)

    def send(self, streams):
        """Sends on all streams for the seconds of the options, then says that no more comes."""
        self.found["stage"] = "send"
        block, until = bytes(BLOCK), time.monotonic() + self.options.seconds

        def one(link):
            try:
                link.settimeout(self.left_s())
                while time.monotonic() < until:
                    link.send(block)
                link.shutdown(socket.SHUT_WR)
            except (OSError, Failed) as error:
                wrong.append(error)

        wrong = []
        together(one, streams)
        if wrong:
            raise wrong[0]

    def receive(self, streams):
        """Counts the bytes of all streams, from the end of the warm-up to the end of the seconds; reads the rest."""
        self.found["stage"] = "receive"
        began, _, _ = select.select(streams, [], [], self.left_s())
        if not began:
            raise Failed("nothing came")
        first = time.monotonic()
        warm, end = first + min(WARM_S, self.options.seconds / 4), first + self.options.seconds
        counts, wrong = [], []

        def one(link):
            buffer, size, at_warm, at_end = bytearray(BLOCK), 0, None, None
            link.settimeout(0.05)
            try:
                while True:
                    try:
                        got = link.recv_into(buffer)
                    except socket.timeout:
                        self.left_s()
                        got = -1
                    now = time.monotonic()
                    size += max(got, 0)
                    if at_warm is None and now >= warm:
                        at_warm = size, now
                    if at_end is None and (now >= end or got == 0):
                        at_end = size, now
                    if got == 0:
                        break
            except (OSError, Failed) as error:
                wrong.append(error)
            if at_warm and at_end and at_end[1] > at_warm[1]:
                counts.append((at_end[0] - at_warm[0], at_end[1] - at_warm[1]))

        together(one, streams)
        if wrong:
            raise wrong[0]
        if counts:
            rate = sum(size / seconds for size, seconds in counts) * 8 / 1e9
            size, seconds = sum(size for size, _ in counts), max(seconds for _, seconds in counts)
            self.found["received"] = {"bytes": size, "seconds": round(seconds, 4), "gbit_s": round(rate, 4)}


def together(work, links):
    """Does the work for each connection in a thread of its own; returns when all have ended."""
    threads = [threading.Thread(target=work, args=(link,), daemon=True) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("listen", "connect"))
    parser.add_argument("--run", required=True, help="the id of the run, the same on both nodes")
    parser.add_argument("--address", required=True, help="the own address")
    parser.add_argument("--peer", required=True, help="the address of the other node")
    parser.add_argument("--port", type=int, default=29400, help="the port of the listening node (29400)")
    parser.add_argument("--streams", type=int, default=4, help="connections side by side (4)")
    parser.add_argument("--seconds", type=float, default=2, help="how long each direction is measured (2)")
    parser.add_argument("--connect-s", type=float, default=20, help="time limit of the connection (20)")
    parser.add_argument("--timeout-s", type=float, default=60, help="time limit of all (60)")
    nccl_host.add_watched(parser, 45)
    return parser.parse_args(words)


def main():
    options = options_of(sys.argv[1:])
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.alarm(math.ceil(options.timeout_s) + 5)  # whatever hangs, the program ends
    nccl_host.end_when_left(options)
    end = End(options)
    end.run()
    print(json.dumps(end.found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
