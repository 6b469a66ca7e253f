"""The steps of nccl_p2p.py, run in a child process that may hang, crash or lose its GPUs.

It reads a job as JSON ({"steps", "devices", "libraries", "journal", "log", "parent"}). It writes a JSON line at the
begin of each step and one at its end. The journal on the disk has each step before it begins.
"""

import ctypes
import itertools
import json
import os
import signal
import sys
import time

import nccl_cuda
import nccl_host
import nccl_log
import nccl_rounds
from nccl_cuda import Library, Missing, Refused

MIB = 1 << 20
PARAMETERS = 100 * 1000 * 1000
TOKENS = 8192  # per GPU and step: 6 x parameters x tokens operations, as in training
SIDE = 4096  # of the square matrices
FRACTIONS = 1 << 20
REMOTE_IS_SWITCH = 2  # NVML_NVLINK_DEVICE_TYPE_SWITCH
MOST_NVLINKS = 18  # of a GPU: NVML_NVLINK_MAX_LINKS
P2P_STATUS = ["ok", "chipset", "gpu", "topology", "disabled by registry", "not supported", "unknown"]
P2P_CAPABILITIES = ["read", "write", "nvlink", "atomics", "pci"]  # NVML's index of each
DISTANCES = {0: "internal", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
OK = {"ok": True, "outcome": "ok", "error": None}
NO_SEND = {"ok": None, "outcome": "not run", "error": "this NCCL has no send and receive: they came with 2.7"}
ROUND_BYTES = 16 * MIB  # a speed in a round is that of at least so much
SLICES, SLICE_STEP = 256, 64  # random data: one slice for each GPU and kind of transfer, so many bytes apart
COMPUTE_MODES = ["default", "exclusive thread", "prohibited", "exclusive process"]


def main(job_path, report_fd, work_type=None):
    """Does the steps of a job with a Work, or with another class that has its do_ functions."""
    with open(job_path) as file:
        job = json.load(file)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: end with the parent
    if os.getppid() != job["parent"]:
        os._exit(1)
    work, steps = (work_type or Work)(job, report_fd), job["steps"]
    while steps:
        for step in steps:
            work.do(step)
        steps = json.loads(sys.stdin.readline() or "[]")  # those that depend on the results of the first
    os._exit(0)  # skip the libraries' exit handlers, which may hang


class Work:
    """Libraries, buffers and communicators, created at their first use."""

    def __init__(self, job, report_fd):
        self.job, self.report_fd = job, report_fd
        self.streams, self.hosts, self.slices, self.kept, self.sides, self.handles = {}, {}, {}, {}, {}, {}
        self.ranks, self.comms, self.comm_from, self.matrix = None, [], 0, None

    # --- messages to the parent

    def say(self, **what):
        data = (json.dumps(what) + "\n").encode()
        while data:
            data = data[os.write(self.report_fd, data) :]

    def begin(self, step, title, timeout_s, init=False):
        if self.job["journal"]:
            journal(self.job["journal"], step=title, pid=os.getpid())
        log_from = log_size(self.job["log"])
        self.say(begin=step["id"], title=title, timeout_s=timeout_s, init=init, log_from=[self.comm_from, log_from])
        return log_from

    def do(self, step):
        """Runs one step and reports its result. After an error the process ends, because CUDA may not recover."""
        self.step, self.initialising = step, False
        self.log_from = self.begin(step, step["title"], step["timeout_s"])
        try:
            value = getattr(self, "do_" + step["do"])(*step["arguments"])
        except Missing as error:
            self.say(failed=step["id"], error=str(error), missing=True)
        except Refused as error:
            text, warned = str(error), nccl_log.warnings(read_from(self.job["log"], self.log_from))
            text += "; NCCL says: " + warned[-1] if warned and text.startswith("nccl") else ""
            self.say(failed=step["id"], error=text, code=error.code, init=self.initialising)
        except Exception as error:
            self.say(failed=step["id"], error="%s: %s" % (type(error).__name__, error))
        else:
            self.say(done=step["id"], value=value)
            return
        os._exit(1)

    # --- libraries, memory, time

    def __getattr__(self, kind):
        if kind not in nccl_cuda.NAMES:
            raise AttributeError(kind)
        made = Library(kind, self.job["libraries"])
        setattr(self, kind, made)
        return made

    def device(self, gpu):
        """Selects a GPU and returns its CUDA device number."""
        device = self.job["devices"][str(gpu)]
        self.cudart.cudaSetDevice(device)
        return device

    def stream(self, gpu):
        self.device(gpu)
        if gpu not in self.streams:
            self.streams[gpu] = self.cudart.made("cudaStreamCreateWithFlags", 1)
        return self.streams[gpu]

    def memory(self, gpu, size):
        self.device(gpu)
        return self.cudart.made("cudaMalloc", size)

    def free(self, gpu, *buffers):
        self.device(gpu)
        for buffer in buffers:
            self.cudart.cudaFree(buffer)

    def host(self, size):
        """Two buffers of that size in pinned memory, the first with random bytes."""
        if size not in self.hosts:
            self.hosts[size] = [self.cudart.made("cudaHostAlloc", size, 0) for _ in range(2)]
            ctypes.memmove(self.hosts[size][0], os.urandom(size), size)
        return self.hosts[size]

    def seconds(self, gpu, times, action):
        """Seconds of one action in that GPU's stream: the minimum of three rounds, as other work makes one longer."""
        action()
        self.cudart.cudaStreamSynchronize(self.stream(gpu))
        return min(self.round_seconds(gpu, times, action) for _ in range(3))

    def round_seconds(self, gpu, times, action):
        """Seconds of one action, as the mean of that many."""
        return self.seconds_of([gpu], lambda: [action() for _ in range(times)])[gpu] / times

    def seconds_of(self, gpus, launch):
        """Calls `launch`, which starts work on these GPUs; waits for the work. Returns its seconds by GPU."""
        starts = {gpu: self.record(gpu) for gpu in gpus}
        launch()
        ends = {gpu: self.record(gpu) for gpu in gpus}
        return {gpu: self.seconds_between(gpu, starts[gpu], ends[gpu]) for gpu in gpus}

    def record(self, gpu):
        """A new event, recorded in the GPU's stream."""
        stream = self.stream(gpu)
        event = self.cudart.made("cudaEventCreate")
        self.cudart.cudaEventRecord(event, stream)
        return event

    def seconds_between(self, gpu, start, end):
        """Waits for the second event and destroys both."""
        self.device(gpu)
        self.cudart.cudaEventSynchronize(end)
        ms = elapsed_ms(self.cudart, start, end)
        for event in (start, end):
            self.cudart.cudaEventDestroy(event)
        return max(ms, 1e-6) / 1000

    # --- libraries and devices

    def do_look(self, with_nccl, with_cublas):
        """Libraries, versions and CUDA's devices. "lacking": missing libraries without which the test still works."""
        cuda, cudart, lacking = self.cuda, self.cudart, []
        versions = {"cuda_driver": nccl_cuda.dotted(cuda.number("cuDriverGetVersion"), cuda=True)}
        versions["cuda_runtime"] = nccl_cuda.dotted(cudart.number("cudaRuntimeGetVersion"), cuda=True)
        versions["nccl"] = nccl_cuda.dotted(self.nccl.number("ncclGetVersion")) if with_nccl else None
        used = [cuda, cudart] + ([self.nccl] if with_nccl else [])
        if with_cublas:
            try:
                used.append(self.cublas)
            except Missing as error:
                lacking.append(str(error))
        cuda.cuInit(0)
        devices = [self.description(number) for number in range(cudart.number("cudaGetDeviceCount"))]
        pairs = itertools.permutations(range(len(devices)), 2)
        peers = [[a, b, bool(cudart.number("cudaDeviceCanAccessPeer", a, b))] for a, b in pairs]
        paths = {library.name: library.path for library in used}
        return {"versions": versions, "libraries": paths, "devices": devices, "peers": peers, "lacking": lacking}

    def description(self, number):
        name, uuid, bus_id = (ctypes.create_string_buffer(size) for size in (96, 16, 32))
        device = self.cuda.number("cuDeviceGet", number)
        self.cuda.cuDeviceGetName(name, 96, device)
        self.cuda.cuDeviceGetUuid(uuid, device)
        self.cudart.cudaDeviceGetPCIBusId(bus_id, 32, number)
        digits = uuid.raw.hex()
        parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
        return {
            "bus_id": bus_id.value.decode().lower(),
            "uuid": "GPU-" + "-".join(parts),
            "name": name.value.decode(errors="replace"),
            "compute_capability": "%d.%d" % self.compute_capability(number),
        }

    def compute_capability(self, device):
        return tuple(self.cudart.number("cudaDeviceGetAttribute", attribute, device) for attribute in (75, 76))

    def do_nvml(self):
        """GPUs and pairs from NVML; None without pynvml.py beside this file. A value of None was not reported."""
        try:
            import pynvml
        except ImportError:
            return None

        def ask(name, *arguments):
            try:
                value = getattr(pynvml, name)(*arguments)
            except (pynvml.NVMLError, AttributeError):
                return None
            return value.decode(errors="replace") if isinstance(value, bytes) else value

        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            return {"error": str(error), "driver": None, "gpus": [], "pairs": []}
        count = ask("nvmlDeviceGetCount") or 0
        handles = [ask("nvmlDeviceGetHandleByIndex", index) for index in range(count)]
        gpus = []
        for handle in handles:
            mode, bus_id = ask("nvmlDeviceGetComputeMode", handle), bus_id_of(ask("nvmlDeviceGetPciInfo", handle))
            processes, mig = ask("nvmlDeviceGetComputeRunningProcesses", handle), ask("nvmlDeviceGetMigMode", handle)
            gpu = {"bus_id": bus_id and bus_id.lower(), "uuid": ask("nvmlDeviceGetUUID", handle)}
            gpu["name"] = ask("nvmlDeviceGetName", handle)
            gpu["compute_mode"] = COMPUTE_MODES[mode] if mode is not None and mode < 4 else None
            gpu["mig"] = bool(mig[0]) if mig else None
            gpu["processes"] = None if processes is None else len(processes)
            gpus.append(gpu)
        pairs, places = [], {nccl_host.place(gpu["bus_id"]): index for index, gpu in enumerate(gpus) if gpu["bus_id"]}
        nvlinks, switched = {}, [0] * count  # NVLinks that are up: to each GPU, and to something else
        for index, handle in enumerate(handles):
            for link in range(MOST_NVLINKS if handle else 0):
                if not ask("nvmlDeviceGetNvLinkState", handle, link):
                    continue
                remote = bus_id_of(ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link))
                peer = places.get(nccl_host.place(remote)) if remote and remote.count(":") == 2 else None
                to_switch = ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) in (None, REMOTE_IS_SWITCH)
                switched[index] += peer is None and to_switch
                nvlinks[index, peer] = nvlinks.get((index, peer), 0) + 1
        for a, b in itertools.permutations([index for index in range(count) if handles[index]], 2):
            status = [ask("nvmlDeviceGetP2PStatus", handles[a], handles[b], index) for index in range(5)]
            words = [None if code is None else P2P_STATUS[min(code, 6)] for code in status]
            distance = DISTANCES.get(ask("nvmlDeviceGetTopologyCommonAncestor", handles[a], handles[b]))
            link = nccl_rounds.link_of(nvlinks.get((a, b), 0), (switched[a], switched[b]), distance)
            pairs.append([a, b, {name: words[at] for at, name in enumerate(P2P_CAPABILITIES)}, distance, link])
        return {"error": None, "driver": ask("nvmlSystemGetDriverVersion"), "gpus": gpus, "pairs": pairs}

    # --- bytes

    def do_own(self, gpu, size):
        """Copies to a GPU, within its memory and back."""
        return self.do_copy(gpu, gpu, False, size, size)

    def do_copy(self, a, b, direct, size, large):
        """Copies from one GPU to another, with peer access or through the host."""
        pairs = [(a, b)] if direct else []
        self.set_access(pairs, True)
        value = self.transferred(a, b, size, large, self.copier(a, b), gpus=[a], small=4, times=20)
        self.set_access(pairs, False)
        return value

    def set_access(self, pairs, allowed):
        """Enables or disables peer access in both directions of disjoint pairs; a GPU may have only eight peers."""
        for gpu, peer in [ends for a, b in pairs for ends in ((a, b), (b, a))]:
            self.device(gpu)
            if allowed:
                self.cudart.cudaDeviceEnablePeerAccess(self.job["devices"][str(peer)], 0)
            else:
                self.cudart.cudaDeviceDisablePeerAccess(self.job["devices"][str(peer)])

    def copier(self, a, b):
        """A function (source, target, bytes) that starts a copy from one GPU to another in the first one's stream."""
        stream, from_device, to_device = self.stream(a), self.job["devices"][str(a)], self.job["devices"][str(b)]

        def copy(source, target, bytes_):
            self.cudart.cudaMemcpyPeerAsync(target, to_device, source, from_device, bytes_, stream)

        return copy

    def transferred(self, a, b, size, large, transfer, gpus, small, times):
        """Compares `size` bytes that `transfer(source, target, bytes)` moved from GPU a to GPU b; measures its speed.

        `gpus`: those whose streams the transfer uses. The last is timed, with `large` bytes, and `times` with `small`.
        """
        cudart, (sent, got) = self.cudart, self.host(size)
        source, target = self.memory(a, large), self.memory(b, large)
        self.device(b)
        cudart.cudaMemset(target, 0, size)
        cudart.cudaDeviceSynchronize()
        self.device(a)
        cudart.cudaMemcpy(source, sent, size, nccl_cuda.TO_DEVICE)
        transfer(source, target, size)
        for gpu in gpus:
            cudart.cudaStreamSynchronize(self.stream(gpu))
        self.device(b)
        cudart.cudaMemcpy(got, target, size, nccl_cuda.FROM_DEVICE)
        value = comparison(sent, got, size)
        value["gb_s"] = large / self.seconds(gpus[-1], 2, lambda: transfer(source, target, large)) / 1e9
        value["latency_us"] = 1e6 * self.seconds(gpus[-1], times, lambda: transfer(source, target, small))
        self.free(a, source)
        self.free(b, target)
        return value

    # --- NCCL

    def communicator(self, ranks):
        """Connects these GPUs with NCCL, unless they are connected; its time limit is separate from the step's."""
        if self.ranks == ranks:
            return
        nccl, number = self.nccl, len(ranks)
        title = "NCCL connects GPU%s %s" % ("s" if number > 1 else "", ",".join(map(str, ranks)))
        self.comm_from = log_size(self.job["log"])
        self.initialising = True
        self.log_from = self.begin(self.step, title, self.step["init_s"], init=True)
        for comm in self.comms:
            nccl.ncclCommDestroy(comm)
        self.ranks, self.comms = None, []
        made, devices = (ctypes.c_void_p * number)(), [self.job["devices"][str(gpu)] for gpu in ranks]
        nccl.ncclCommInitAll(made, number, (ctypes.c_int * number)(*devices))
        self.ranks, self.comms = ranks, [ctypes.c_void_p(comm) for comm in made]
        self.initialising = False
        self.begin(self.step, self.step["title"], self.step["timeout_s"])

    def do_send(self, a, b, ranks, size, large):
        """NCCL's send and receive from one GPU to another."""
        if not self.nccl.has("ncclSend"):
            return dict(NO_SEND)
        self.communicator(ranks)
        return self.transferred(a, b, size, large, self.sender(a, b), gpus=[a, b], small=8, times=8)

    def sender(self, a, b):
        """A function (source, target, bytes) that starts a message from one GPU to another in the streams of both."""
        nccl, from_stream, to_stream = self.nccl, self.stream(a), self.stream(b)
        from_rank, to_rank = self.ranks.index(a), self.ranks.index(b)
        from_comm, to_comm = self.comms[from_rank], self.comms[to_rank]

        def send(source, target, bytes_):
            nccl.ncclGroupStart()
            nccl.ncclSend(source, bytes_, nccl_cuda.CHAR, to_rank, from_comm, from_stream)
            nccl.ncclRecv(target, bytes_, nccl_cuda.CHAR, from_rank, to_comm, to_stream)
            nccl.ncclGroupEnd()

        return send

    # --- rounds

    def do_round(self, how, size, ranks):
        """Transfers between disjoint pairs at once, first in one direction, then in the other; reports each pair.

        how: "staged", "bytes" (copies without and with peer access) or "send" (NCCL). A pair is reported when its data
        has been compared, so that a pair that hangs does not hide the results of the others, and again with its speed.
        """
        parts = [(part["id"], part["gpus"][0], part["gpus"][1]) for part in self.step["parts"]]
        pairs = sorted({(min(a, b), max(a, b)) for _, a, b in parts})
        if how == "send":
            if not self.nccl.has("ncclSend"):
                for ident, _, _ in parts:
                    self.say(part=ident, value=NO_SEND)
                return NO_SEND
            self.communicator(ranks)
        self.set_access(pairs if how == "bytes" else [], True)
        for phase in nccl_rounds.phases_of(parts):
            self.transfer_together(how, phase, size)
        self.set_access(pairs if how == "bytes" else [], False)
        return dict(OK)

    def transfer_together(self, how, phase, size):
        """Starts the transfers of one direction at once, compares the data, then measures their speeds."""
        actions, values = {}, {}
        for ident, a, b in phase:
            source, target = self.source_slice(a, how, size), self.buffer("target", b, size)
            start = (self.sender if how == "send" else self.copier)(a, b)
            actions[ident] = lambda start=start, source=source, target=target: start(source, target, size)
        for ident, _, _ in phase:
            actions[ident]()
        waiting = list(phase)
        while waiting:
            for part in list(waiting):
                ident, a, b = part
                if not all(self.cudart.is_done("cudaStreamQuery", self.stream(gpu)) for gpu in self.ends(how, part)):
                    continue
                waiting.remove(part)
                _, got = self.host(size + SLICES * SLICE_STEP)
                self.device(b)
                self.cudart.cudaMemcpy(got, self.buffer("target", b, size), size, nccl_cuda.FROM_DEVICE)
                values[ident] = comparison(self.slice_of(a, how, size), got, size)
                self.say(part=ident, value=values[ident])
            if waiting:
                time.sleep(0.0002)
        speeds = self.speeds_together(how, phase, size, actions)
        for ident, _, _ in phase:
            self.say(part=ident, value=dict(values[ident], round_gb_s=speeds[ident]))

    def ends(self, how, part):
        """The GPUs whose streams a transfer of a round uses; the last one is timed."""
        return part[1:] if how == "send" else part[1:2]

    def speeds_together(self, how, phase, size, actions):
        """GB/s of each transfer while the others of its phase run too: the best of two."""
        times, best = max(2, ROUND_BYTES // size), {}
        for _ in range(2):
            events = {}
            for part in phase:
                timed = self.ends(how, part)[-1]
                start = self.record(timed)
                for _ in range(times):
                    actions[part[0]]()
                events[part[0]] = (timed, start, self.record(timed))
            for ident, timed in events.items():
                best[ident] = max(best.get(ident, 0), times * size / self.seconds_between(*timed) / 1e9)
            for gpu in {gpu for _, a, b in phase for gpu in (a, b)}:
                self.cudart.cudaStreamSynchronize(self.stream(gpu))
        return best

    def buffer(self, use, gpu, size):
        """Memory of a GPU that stays until the process ends, so that rounds do not allocate."""
        if (use, gpu, size) not in self.kept:
            self.kept[use, gpu, size] = self.memory(gpu, size)
        return self.kept[use, gpu, size]

    def slice_of(self, gpu, how, size):
        """The random bytes that this GPU sends; they differ, so that old or another GPU's data is never right."""
        number = 2 * gpu + (how == "bytes")
        random, _ = self.host(size + SLICES * SLICE_STEP)
        return ctypes.c_void_p(random.value + number % SLICES * SLICE_STEP)

    def source_slice(self, gpu, how, size):
        source = self.buffer("source", gpu, size)
        if self.slices.get(gpu) != (how, size):
            self.device(gpu)
            self.cudart.cudaMemcpy(source, self.slice_of(gpu, how, size), size, nccl_cuda.TO_DEVICE)
            self.slices[gpu] = (how, size)
        return source

    def do_all_reduce(self, ranks, size, large):
        """A sum over the GPUs. Each contributes different bits of random numbers, so the sum is exact in any order."""
        self.communicator(ranks)
        cudart, wide = self.cudart, len(ranks) > 32
        (whole, got), buffers = self.host(size), {}
        kind, width = (nccl_cuda.UINT64, 8) if wide else (nccl_cuda.UINT32, 4)
        number = int.from_bytes(ctypes.string_at(whole, size), "little")
        for rank, gpu in enumerate(ranks):
            bits = sum(1 << bit for bit in range(8 * width) if bit % len(ranks) == rank)
            mask = int.from_bytes(bits.to_bytes(width, "little") * (size // width), "little")
            share = (number & mask).to_bytes(size, "little")
            buffers[gpu] = (self.memory(gpu, large), self.memory(gpu, size))
            cudart.cudaMemcpy(buffers[gpu][0], share, size, nccl_cuda.TO_DEVICE)
            cudart.cudaMemset(buffers[gpu][1], 0, size)
            cudart.cudaDeviceSynchronize()
        self.reduce(buffers, size // width, kind)
        wrong = []
        for gpu in ranks:
            self.device(gpu)
            cudart.cudaStreamSynchronize(self.stream(gpu))
            cudart.cudaMemcpy(got, buffers[gpu][1], size, nccl_cuda.FROM_DEVICE)
            value = comparison(whole, got, size)
            wrong += [] if value["ok"] else ["GPU %d: %s" % (gpu, value["error"])]
        value = dict(value, ok=not wrong, outcome="wrong data" if wrong else "ok", error="; ".join(wrong) or None)
        same = {gpu: (first, first) for gpu, (first, _) in buffers.items()}
        took = self.seconds(ranks[0], 1, lambda: self.reduce(same, large // 4, nccl_cuda.FLOAT))
        shares = 2 * (len(ranks) - 1) / len(ranks)
        value["busbw_gb_s"] = large * shares / took / 1e9 if shares else None
        value["latency_us"] = 1e6 * self.seconds(ranks[0], 8, lambda: self.reduce(same, 2, nccl_cuda.FLOAT))
        for gpu in ranks:
            self.free(gpu, *buffers[gpu])
        return value

    def reduce(self, buffers, count, kind):
        """Starts the all-reduce of {GPU: (source, target)} over the communicator."""
        streams = [self.stream(gpu) for gpu in self.ranks]
        self.nccl.ncclGroupStart()
        for rank, gpu in enumerate(self.ranks):
            source, target = buffers[gpu]
            self.nccl.ncclAllReduce(source, target, count, kind, nccl_cuda.SUM, self.comms[rank], streams[rank])
        self.nccl.ncclGroupEnd()

    # --- scaling

    def do_scale(self, ranks):
        """A synthetic training step: matrix products on every GPU, then the all-reduce of a gradient."""
        self.communicator(ranks)
        cudart, cublas = self.cudart, self.cublas
        room = min(self.room(gpu) for gpu in ranks)
        needs = 4 * (PARAMETERS + 2 * SIDE * SIDE) + 64 * MIB  # and 64 MiB for cuBLAS
        if room < needs:
            return {"ok": None, "outcome": "not run", "error": "%d MiB free, needs %d" % (room // MIB, needs // MIB)}
        gradients, products = {}, round(6 * PARAMETERS * TOKENS / (2 * SIDE**3))
        for gpu in ranks:
            gradients[gpu] = (self.memory(gpu, 4 * PARAMETERS),) * 2
            self.prepare(gpu)
        stream, times = self.stream(ranks[0]), []
        for _ in range(3):
            start = self.record(ranks[0])
            for _ in range(products):
                for gpu in ranks:
                    self.multiply(gpu)
            middle = self.record(ranks[0])
            self.reduce(gradients, PARAMETERS, nccl_cuda.FLOAT)
            end = self.record(ranks[0])
            cudart.cudaStreamSynchronize(stream)
            times.append((elapsed_ms(cudart, start, end), elapsed_ms(cudart, start, middle)))
        for gpu in ranks:
            self.device(gpu)
            cudart.cudaDeviceSynchronize()
            cublas.cublasDestroy_v2(self.handles.pop(gpu))
            self.free(gpu, gradients[gpu][0], *self.sides.pop(gpu))
        step_ms, product_ms = min(times[1:])  # the first is the warm-up
        return dict(OK, step_ms=step_ms, product_ms=product_ms)

    def prepare(self, gpu):
        """Allocates and fills the matrices of a GPU, and starts cuBLAS there, once."""
        if gpu in self.sides:
            return
        self.matrix = self.matrix or fractions(SIDE * SIDE)
        self.sides[gpu] = [self.memory(gpu, 4 * SIDE * SIDE) for _ in range(2)]
        self.cudart.cudaMemcpy(self.sides[gpu][0], self.matrix, 4 * SIDE * SIDE, nccl_cuda.TO_DEVICE)
        self.cublas_handle(gpu)

    def cublas_handle(self, gpu):
        """The handle of cuBLAS for a GPU's stream, created at its first use."""
        if gpu not in self.handles:
            self.device(gpu)
            self.handles[gpu] = self.cublas.made("cublasCreate_v2")
            self.cublas.cublasSetStream_v2(self.handles[gpu], self.stream(gpu))
        return self.handles[gpu]

    def multiply(self, gpu):
        """Puts a product into the GPU's stream."""
        self.device(gpu)
        (side, product), unit, zero = self.sides[gpu], ctypes.c_float(1), ctypes.c_float(0)
        self.cublas.cublasSgemm_v2(
            self.handles[gpu], 0, 0, SIDE, SIDE, SIDE,
            ctypes.byref(unit), side, SIDE, side, SIDE, ctypes.byref(zero), product, SIDE,
        )  # fmt: skip

    def room(self, gpu):
        """Free bytes of the GPU's memory."""
        self.device(gpu)
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cudart.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
        return free.value


def bus_id_of(pci):
    """The text of NVML's PCI info, which is bytes with an old pynvml; None without info."""
    return pci and (pci.busId.decode() if isinstance(pci.busId, bytes) else pci.busId)


def fractions(count):
    """That many random floats from 1 to 2, repeated after FRACTIONS; products of zeros need less power."""
    block = floats(int.from_bytes(os.urandom(4 * FRACTIONS), "little"), 0x007FFFFF, 0x3F800000, 4, FRACTIONS)
    return (block * -(-count // FRACTIONS))[: 4 * count]


def floats(bits, fraction, one, width, count):
    """That many floats from 1 to 2 of `width` bytes, from random bits. `fraction`: the random ones; `one`: 1.0."""
    low, high = (int.from_bytes(word.to_bytes(width, "little") * count, "little") for word in (fraction, one))
    return (bits & low | high).to_bytes(width * count, "little")


def elapsed_ms(cudart, start, end):
    ms = ctypes.c_float()
    cudart.cudaEventElapsedTime(ctypes.byref(ms), start, end)
    return ms.value


def comparison(sent, got, size):
    """Compares two buffers; the result has the number and place of differences."""
    libc = ctypes.CDLL(None)
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    if not libc.memcmp(sent, got, size):
        return dict(OK)
    blocks = range(0, size, 4096)
    wrong = [at for at in blocks if libc.memcmp(sent.value + at, got.value + at, min(4096, size - at))]
    text = "%d of %d blocks of 4 KiB differ, the first at byte %d" % (len(wrong), len(blocks), wrong[0])
    return {"ok": False, "outcome": "wrong data", "error": text}


def journal(path, **what):
    """Appends a line to the journal, with fsync."""
    now = time.time()
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + ".%03dZ" % (now % 1 * 1000)
    line = json.dumps(dict({"at": at}, **what)) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def log_size(path):
    try:
        return os.path.getsize(path)
    except OSError:
        return 0


def read_from(path, start):
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace")
    except OSError:
        return ""


class Devices(dict):
    """CUDA's number of each GPU in this process, by its bus id. The numbers of GPUs after a lost one change."""

    def __init__(self, work, bus_ids):
        super().__init__()
        self.work, self.bus_ids = work, bus_ids

    def __missing__(self, gpu):
        self[gpu] = self.work.cudart.number("cudaDeviceGetByPCIBusId", self.bus_ids[gpu].encode())
        return self[gpu]


class PlacedWork(Work):
    """Steps whose job names the GPUs by bus id."""

    def __init__(self, job, report_fd):
        super().__init__(dict(job, devices=None), report_fd)
        self.job["devices"] = Devices(self, job["devices"])
