"""The GPUs of one node in an all-reduce of NCCL over several nodes; writes its result to a file, for node_train.py.

    nccl_nodes.py --run ID --node 1 --nodes 3 --first-rank 4 --gpus 4 --ranks 12 --address ADDR --master ADDR
                  --port 29400 --write FILE

Node 0 makes NCCL's unique id, and gives it over TCP to each node that says the id of the run. Every rank contributes
whole numbers, so the sum is exact in any order, and is compared. The bus bandwidth is that of nccl-tests.

    {"stage", "node", "gpus", "ranks", "version", "ok", "error", "mib", "busbw_gb_s", "latency_us", "missing"}

stage: the last one that began: start, meet (the id), connect (NCCL), sum (compared), time, done. missing: the host has
no NCCL or CUDA library.
"""

import argparse
import array
import ctypes
import hmac
import json
import os
import socket
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_cuda

MIB = 1 << 20
COMPARED, SMALL = 4 * MIB, 8
MOST_TIMES, TIMING_S = 10, 3
GREETING_BYTES = 96
MEET_S = 90  # how far apart the nodes may start


class Failed(Exception):
    """The nodes cannot meet; the text says why."""


def write(path, document):
    with open(path + ".new", "w") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ("%s" % (lines[0] if lines else type(error).__name__))[:300]


def greeting(run, node, version):
    """What a node says first: the id of the run, its number, and its NCCL."""
    return ("rigwright-nccl %s %d %s" % (run, node, version)).encode().ljust(GREETING_BYTES)


def exactly(link, size):
    got = b""
    while len(got) < size:
        more = link.recv(size - len(got))
        if not more:
            raise Failed("the other node closed the connection")
        got += more
    return got


def give(options, version, unique):
    """Gives NCCL's id to every other node. Raises Failed for a node that does not come, or has another NCCL."""
    waiting, until, other = set(range(1, options.nodes)), time.monotonic() + MEET_S, []
    with socket.socket() as door:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        door.bind((options.address, options.port))
        door.listen(options.nodes + 8)
        while waiting:
            door.settimeout(max(0.01, until - time.monotonic()))
            try:
                link, _ = door.accept()
            except socket.timeout:
                missing = ", ".join(map(str, sorted(waiting)))
                raise Failed("node %s did not come within %d s" % (missing, MEET_S)) from None
            with link:
                try:
                    link.settimeout(5)
                    words = exactly(link, GREETING_BYTES).decode("ascii", "replace").split()
                    if len(words) != 4 or not hmac.compare_digest(words[1], options.run) or not words[2].isdigit():
                        continue
                    node, theirs = int(words[2]), words[3][:20]
                    if node not in waiting:
                        continue
                    same = theirs == version
                    link.sendall((b"1" if same else b"0") + bytes(unique))
                except (OSError, Failed):
                    continue
            waiting.discard(node)
            other += [] if same else ["node %d has NCCL %s" % (node, theirs)]
    if other:
        raise Failed("%s, this one %s" % (", ".join(other), version))


def take(options, version, size):
    """NCCL's id, from node 0. Raises Failed."""
    until = time.monotonic() + MEET_S
    while True:
        link = socket.socket()
        link.settimeout(5)
        try:
            link.bind((options.address, 0))
            link.connect((options.master, options.port))
            with link:
                link.settimeout(MEET_S)
                link.sendall(greeting(options.run, options.node, version))
                answer = exactly(link, 1 + size)
            break
        except (OSError, Failed) as error:
            link.close()
            if time.monotonic() > until:
                where = (options.master, options.port, error)
                raise Failed("node 0 does not answer at %s port %d: %s" % where) from None
            time.sleep(0.2)
    if answer[:1] != b"1":
        raise Failed("node 0 has another NCCL than %s" % version)
    return answer[1:]


class Node:
    """The ranks of this node; `found` is what it writes."""

    def __init__(self, options):
        self.options, self.ranks = options, range(options.first_rank, options.first_rank + options.gpus)
        self.found = {"stage": "start", "node": options.node, "gpus": options.gpus, "ranks": options.ranks}
        self.found.update(version=None, ok=None, error=None, mib=options.mib, busbw_gb_s=None, latency_us=None)
        self.found["missing"] = False
        self.comms, self.streams = [], []

    def at(self, stage, **more):
        self.found.update(stage=stage, **more)
        write(self.options.write, self.found)

    def run(self):
        """Sums over all nodes. Raises nccl_cuda.Missing, nccl_cuda.Refused, Failed, OSError."""
        self.at("start")
        nccl_cuda.Library("cuda").cuInit(0)
        self.cudart, self.nccl = (nccl_cuda.Library(kind, self.options.libraries) for kind in ("cudart", "nccl"))
        version = nccl_cuda.dotted(self.nccl.number("ncclGetVersion"))
        self.at("meet", version=version)
        if self.options.node == 0:
            unique = nccl_cuda.UniqueId()
            self.nccl.ncclGetUniqueId(ctypes.byref(unique))
            give(self.options, version, unique)
        else:
            unique = nccl_cuda.UniqueId.from_buffer_copy(take(self.options, version, ctypes.sizeof(nccl_cuda.UniqueId)))
        self.at("connect")
        self.connect(unique)
        self.at("sum")
        if not self.is_right():
            self.at("sum", ok=False, error="the sum is wrong")
            return
        self.at("time", ok=True)
        self.measure()
        self.at("done")

    def connect(self, unique):
        self.comms = [ctypes.c_void_p() for _ in self.ranks]
        self.nccl.ncclGroupStart()
        for device, rank in enumerate(self.ranks):
            self.cudart.cudaSetDevice(device)
            self.nccl.ncclCommInitRank(ctypes.byref(self.comms[device]), self.options.ranks, unique, rank)
        self.nccl.ncclGroupEnd()
        for device in range(len(self.comms)):
            self.cudart.cudaSetDevice(device)
            self.streams.append(self.cudart.made("cudaStreamCreateWithFlags", 1))

    def memory(self, device, size):
        self.cudart.cudaSetDevice(device)
        return self.cudart.made("cudaMalloc", size)

    def reduce(self, buffers, count, kind):
        self.nccl.ncclGroupStart()
        for buffer, comm, stream in zip(buffers, self.comms, self.streams):  # noqa: B905 (Python 3.8)
            self.nccl.ncclAllReduce(buffer, buffer, count, kind, nccl_cuda.SUM, comm, stream)
        self.nccl.ncclGroupEnd()

    def put(self, device, buffer, numbers):
        """Copies an array of 32-bit numbers to a buffer of a GPU."""
        self.cudart.cudaSetDevice(device)
        self.cudart.cudaMemcpy(buffer, numbers.buffer_info()[0], 4 * len(numbers), nccl_cuda.TO_DEVICE)
        self.cudart.cudaDeviceSynchronize()

    def get(self, device, buffer, count):
        """That many 32-bit numbers of a buffer of a GPU."""
        numbers = array.array("I", bytes(4 * count))
        self.cudart.cudaSetDevice(device)
        self.cudart.cudaMemcpy(numbers.buffer_info()[0], buffer, 4 * count, nccl_cuda.FROM_DEVICE)
        return numbers

    def wait(self):
        for device, stream in enumerate(self.streams):
            self.cudart.cudaSetDevice(device)
            self.cudart.cudaStreamSynchronize(stream)

    def is_right(self):
        """Whether the sum of whole numbers, which differ by rank and place, is right on every GPU of this node."""
        count = COMPARED // 4
        total = self.options.ranks * (self.options.ranks + 1) // 2
        buffers = [self.memory(device, COMPARED) for device in range(len(self.comms))]
        for device, rank in enumerate(self.ranks):
            self.put(device, buffers[device], array.array("I", (number % 1000 * (rank + 1) for number in range(count))))
        self.reduce(buffers, count, nccl_cuda.UINT32)
        self.wait()
        expected = array.array("I", (number % 1000 * total for number in range(count)))
        right = True
        for device, buffer in enumerate(buffers):
            right = self.get(device, buffer, count) == expected and right
            self.cudart.cudaFree(buffer)
        return right

    def seconds_of(self, buffers, count, times):
        began = time.perf_counter()
        for _ in range(times):
            self.reduce(buffers, count, nccl_cuda.FLOAT)
        self.wait()
        return (time.perf_counter() - began) / times

    def measure(self):
        """The bus bandwidth, and the time of an all-reduce of a few bytes. All nodes do the same number of them."""
        size = self.options.mib * MIB
        buffers = [self.memory(device, size) for device in range(len(self.comms))]
        for device, buffer in enumerate(buffers):
            self.cudart.cudaSetDevice(device)
            self.cudart.cudaMemset(buffer, 0, size)
        count = size // 4
        seconds = self.seconds_of(buffers, count, 1)  # warm-up: connections are made at the first collective
        times = self.agree_on(buffers, max(1, min(MOST_TIMES, int(TIMING_S / max(seconds, 1e-6)))))
        seconds, ranks = self.seconds_of(buffers, count, times), self.options.ranks
        self.found["busbw_gb_s"] = round(size * 2 * (ranks - 1) / ranks / seconds / 1e9, 4)
        self.seconds_of(buffers, SMALL // 4, 1)
        self.found["latency_us"] = round(self.seconds_of(buffers, SMALL // 4, 10) * 1e6, 1)

    def agree_on(self, buffers, times):
        """The mean of what the nodes propose, weighted by their ranks; the same on all of them."""
        for device, buffer in enumerate(buffers):
            self.put(device, buffer, array.array("I", [times]))
        self.reduce(buffers, 1, nccl_cuda.UINT32)
        self.wait()
        return max(1, min(MOST_TIMES, self.get(0, buffers[0], 1)[0] // self.options.ranks))


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("run", "address", "master", "write"):
        parser.add_argument("--" + name, required=True)
    for name in ("node", "nodes", "first-rank", "gpus", "ranks", "port"):
        parser.add_argument("--" + name, required=True, type=int)
    parser.add_argument("--mib", type=int, default=64, help="size of what is timed, MiB (64)")
    parser.add_argument("--libraries", help="folder with NCCL and the CUDA runtime, also below it")
    return parser.parse_args(words)


def main():
    node = Node(options_of(sys.argv[1:]))
    try:
        node.run()
    except nccl_cuda.Missing as error:
        node.at("start", missing=True, error=first_line(error))
    except (nccl_cuda.Refused, Failed, OSError) as error:
        node.at(node.found["stage"], ok=node.found["ok"], error=first_line(error))
        print("nccl_nodes.py: at %s: %s" % (node.found["stage"], first_line(error)), file=sys.stderr)
    code = 0 if node.found["stage"] == "done" else 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # skip the libraries' exit handlers, which may hang


if __name__ == "__main__":
    main()
