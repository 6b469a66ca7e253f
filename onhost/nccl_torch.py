"""Runs in an interpreter with torch: describes the torch (look), or is one process of a collective over NCCL (rank).

    PYTHON nccl_torch.py look FILE
    PYTHON -m torch.distributed.run --nproc_per_node=N nccl_torch.py rank FOLDER

    LOOK: {"python", "torch", "cuda", "hip", "nccl", "architectures": ["sm_70", ...],
           "gpus": [{"name", "capability": "7.0"}], "error", "missing"}
    RANK: {"rank", "stage", "ok", "error", "busbw_gb_s", "mib"}; FOLDER/rank.N

Both are written to a file, because torch may print to stdout. `missing`: torch is not installed. `nccl` null: built without.
A rank writes its file before each stage, so that the stage of a hang is known: "start" (the first kernel on its GPU),
"connect", "sum" (all-reduce, compared), "message" (to the next rank, compared), "time", "done".
"""

import json
import os
import sys
import time

MIB = 64
TIMES = 10


def write(path, document):
    with open(path + ".new", "w") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


def look(path):
    document = {"python": sys.version.split()[0], "torch": None, "cuda": None, "hip": None, "nccl": None}
    document.update(architectures=[], gpus=[], error=None, missing=False)
    try:
        import torch
    except Exception as error:  # an import can raise anything
        document["missing"] = isinstance(error, ImportError) and getattr(error, "name", None) == "torch"
        document["error"] = first_line(error)
        write(path, document)
        return
    document.update(torch=str(getattr(torch, "__version__", "?")), cuda=getattr(torch.version, "cuda", None))
    document["hip"] = getattr(torch.version, "hip", None)
    if document["cuda"] is not None:
        try:
            flags = torch._C._cuda_getArchFlags()  # get_arch_list() returns [] without a driver
            document["architectures"] = flags.split() if flags else list(torch.cuda.get_arch_list())
        except Exception:
            document["architectures"] = list(torch.cuda.get_arch_list())
        try:
            document["nccl"] = nccl_version(torch)
            torch.cuda.init()
            for number in range(torch.cuda.device_count()):
                capability = "%d.%d" % torch.cuda.get_device_capability(number)
                document["gpus"].append({"name": torch.cuda.get_device_name(number), "capability": capability})
        except Exception as error:
            document["error"] = first_line(error)
    write(path, document)


def nccl_version(torch):
    """`2.21.5`; None if torch has no NCCL or no torch.distributed."""
    if not torch.distributed.is_available() or not torch.distributed.is_nccl_available():
        return None
    version = torch.cuda.nccl.version()
    if isinstance(version, int):  # 2708, as up to torch 1.11
        return "%d.%d.%d" % (version // 1000, version % 1000 // 100, version % 100)
    return ".".join(str(part) for part in version)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return "%s: %s" % (type(error).__name__, lines[0] if lines else "no word")


class Rank:
    """One process with one GPU."""

    def __init__(self, folder):
        self.rank, self.count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.path = os.path.join(folder, "rank.%d" % self.rank)
        self.found = {"rank": self.rank, "stage": "start", "ok": None, "error": None, "busbw_gb_s": None, "mib": MIB}
        write(self.path, self.found)

    def at(self, stage, **more):
        self.found.update(stage=stage, **more)
        write(self.path, self.found)

    def run(self):
        try:
            right = self.collective()
        except Exception as error:
            self.at(self.found["stage"], ok=False, error=first_line(error))
            raise
        self.at("done" if right else self.found["stage"], ok=right)

    def collective(self):
        """Whether all data was correct; on False the stage is that of the wrong data."""
        import datetime

        import torch

        dist, own = torch.distributed, int(os.environ["LOCAL_RANK"])
        torch.cuda.set_device(own)
        numbers = torch.arange(MIB * 1024 * 1024 // 4, device="cuda", dtype=torch.int32) % 1000 + 1
        torch.cuda.synchronize()
        self.at("connect")
        dist.init_process_group("nccl", timeout=datetime.timedelta(hours=1))  # the parent process has a shorter limit
        dist.barrier(device_ids=[own])
        self.at("sum")
        total = numbers * (self.rank + 1)
        dist.all_reduce(total)
        if not torch.equal(total, numbers * (self.count * (self.count + 1) // 2)):
            return False
        if self.count > 1:
            self.at("message")
            if not self.message(torch, dist, numbers):
                return False
        self.at("time")
        self.at("time", busbw_gb_s=self.bus_gb_s(torch, dist, numbers))
        return True

    def message(self, torch, dist, numbers):
        """Sends to the next rank and receives from the previous one; returns whether the data was correct."""
        before, after = (self.rank - 1) % self.count, (self.rank + 1) % self.count
        got, sent = torch.empty_like(numbers), numbers * (self.rank + 1)
        both = [dist.P2POp(dist.isend, sent, after), dist.P2POp(dist.irecv, got, before)]
        for transfer in dist.batch_isend_irecv(both):
            transfer.wait()
        torch.cuda.synchronize()
        return torch.equal(got, numbers * (before + 1))

    def bus_gb_s(self, torch, dist, numbers):
        """The bus bandwidth of the all-reduce as defined by nccl-tests, GB/s; None for one GPU."""
        for _ in range(3):
            dist.all_reduce(numbers)
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(TIMES):
            dist.all_reduce(numbers)
        end.record()
        end.synchronize()
        seconds = start.elapsed_time(end) / 1000 / TIMES
        size = MIB * 1024 * 1024
        return round(size * 2 * (self.count - 1) / self.count / seconds / 1e9, 3) if self.count > 1 else None


def main():
    own = os.path.dirname(os.path.abspath(__file__))
    # torch must not import files beside this one
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    if sys.argv[1] == "look":
        look(sys.argv[2])
        return
    Rank(sys.argv[2]).run()
    time.sleep(0.2)
    sys.stdout.flush()
    os._exit(0)  # skip the libraries' exit handlers, which may hang


if __name__ == "__main__":
    main()
