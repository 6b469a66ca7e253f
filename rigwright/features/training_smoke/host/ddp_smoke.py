#!/usr/bin/env python3
"""Trains a small model with DistributedDataParallel on the GPUs of a machine, one process for each; without GPUs on the
processor, over gloo.

    torchrun --nproc_per_node=4 scripts/ddp_smoke.py --seconds 60
    torchrun --nproc_per_node=2 scripts/ddp_smoke.py --seconds 5 --cpu
    torchrun ... scripts/ddp_smoke.py --write FOLDER                    a file FOLDER/rank.N for each rank, in place of
    lines

Needs torch and nothing else of rigwright. The model learns a function that a fixed random network gives, so its loss
must fall. After training each rank has its loss on the same fixed samples, and a digest of its weights: DDP keeps the
weights of all ranks equal, bit for bit on GPUs of one model.

    RANK: {"rank", "world", "stage", "device", "capability": "7.0" | null, "precision": "bf16" | "fp16" | "fp32",
    "backend": "nccl" | "gloo",
           "torch", "steps", "batch", "seconds", "samples_s", "loss_first", "loss_last", "weights", "error"}

samples_s: of all ranks together, after the warm-up. stage: the last one that began: start, connect, train, judge, done.
A rank writes its file before each stage. Precision: bf16 if every GPU has it (8.0 and newer), else fp16 with a scaled
loss (7.0 and newer), else fp32. Exit 0 if the loss fell and is equal.
"""

import argparse
import hashlib
import json
import math
import os
import sys
import time

WARM_UP_STEPS, STEPS_AT_ONCE = 5, 5
SEED = 20240607
FALLS_TO = 0.8  # of the first loss
EQUAL = 1e-3  # relative; GPUs of different models round differently
SIZES = {"cuda": {"width": 2048, "layers": 4, "batch": 1024}, "cpu": {"width": 128, "layers": 3, "batch": 128}}


def write(path, document):
    with open(path + ".new", "w") as file:
        json.dump(document, file)
    os.replace(path + ".new", path)


def first_line(error):
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return ("%s: %s" % (type(error).__name__, lines[0] if lines else "no word"))[:400]


class Rank:
    """One process. `found` is the document that it writes."""

    def __init__(self, options):
        self.options = options
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.found = {"rank": self.rank, "world": self.world, "stage": "start", "device": None, "capability": None}
        self.found.update(precision="fp32", backend=None, torch=None, steps=0, batch=0, seconds=0.0, samples_s=None)
        self.found.update(loss_first=None, loss_last=None, weights=None, error=None)
        self.tell()

    def tell(self, **more):
        self.found.update(more)
        if self.options.write:
            write(os.path.join(self.options.write, "rank.%d" % self.rank), self.found)

    def run(self):
        """Trains. Raises what torch raises, with the stage in `found`."""
        import torch

        cuda = torch.cuda.is_available() and not self.options.cpu
        local = int(os.environ.get("LOCAL_RANK", self.rank))
        beside = int(os.environ.get("LOCAL_WORLD_SIZE", self.world))  # on this machine
        if cuda and local >= torch.cuda.device_count():
            raise RuntimeError("%d processes, and torch sees %d GPUs" % (beside, torch.cuda.device_count()))
        device = torch.device("cuda", local) if cuda else torch.device("cpu")
        self.tell(torch=str(torch.__version__), device="cpu", backend="nccl" if cuda else "gloo")
        if cuda:
            torch.cuda.set_device(device)
            name, capability = torch.cuda.get_device_name(device), torch.cuda.get_device_capability(device)
            self.tell(device=name[:100], capability="%d.%d" % capability)
        else:
            torch.set_num_threads(max(1, (os.cpu_count() or 1) // beside))
        self.tell(stage="connect")
        import datetime

        torch.distributed.init_process_group(self.found["backend"], timeout=datetime.timedelta(seconds=300))
        try:
            self.train(torch, device)
        finally:
            torch.distributed.destroy_process_group()
        self.tell(stage="done")

    def precision(self, torch, device):
        """The same for all ranks: that of the oldest GPU."""
        if device.type == "cpu":
            return "fp32"
        major = torch.tensor([torch.cuda.get_device_capability(device)[0]], device=device)
        torch.distributed.all_reduce(major, op=torch.distributed.ReduceOp.MIN)
        return "bf16" if int(major) >= 8 else "fp16" if int(major) >= 7 else "fp32"

    def train(self, torch, device):
        dist, sizes = torch.distributed, SIZES[device.type]
        width, batch = sizes["width"], sizes["batch"]
        precision = self.precision(torch, device)
        self.tell(stage="train", precision=precision, batch=batch)
        torch.manual_seed(SEED)  # the same weights and the same fixed samples on each rank
        teacher = network(torch, width, 2).to(device)
        model = network(torch, width, sizes["layers"]).to(device)
        fixed = torch.randn(256, width).to(device)
        with torch.no_grad():
            answers = teacher(fixed)
            scale = 1 / answers.std()
        ids = [device.index] if device.type == "cuda" else None
        parallel = torch.nn.parallel.DistributedDataParallel(model, device_ids=ids)
        optimizer = torch.optim.Adam(parallel.parameters(), lr=3e-4 if device.type == "cuda" else 1e-3)
        scaler = torch.cuda.amp.GradScaler() if precision == "fp16" else None
        kind = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[precision]
        own = torch.Generator(device=device)
        own.manual_seed(SEED + 1 + self.rank)  # samples of its own

        def step():
            samples = torch.randn(batch, width, device=device, generator=own)
            with torch.no_grad():
                wanted = teacher(samples) * scale
            with torch.autocast(device.type, dtype=kind, enabled=precision != "fp32"):
                loss = torch.nn.functional.mse_loss(parallel(samples).float(), wanted)
            optimizer.zero_grad(set_to_none=True)
            if scaler is None:
                loss.backward()
                optimizer.step()
            else:
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()

        def fixed_loss():
            with torch.no_grad():
                return float(torch.nn.functional.mse_loss(model(fixed), answers * scale))

        def now():
            if device.type == "cuda":
                torch.cuda.synchronize(device)
            return time.monotonic()

        self.tell(loss_first=fixed_loss())
        for _ in range(WARM_UP_STEPS):
            step()
        dist.barrier()
        began, steps = now(), 0
        over = torch.zeros(1, device=device)
        while not int(over):
            for _ in range(STEPS_AT_ONCE):
                step()
            steps += STEPS_AT_ONCE
            over[0] = float(now() - began >= self.options.seconds)
            dist.all_reduce(over, op=dist.ReduceOp.MAX)  # all ranks stop after the same step
        seconds = now() - began
        self.tell(stage="judge", steps=steps, seconds=round(seconds, 3))
        self.tell(samples_s=round(steps * batch * self.world / seconds, 1), loss_last=fixed_loss())
        digest = hashlib.sha256()
        for tensor in model.state_dict().values():
            digest.update(checksum(torch, tensor))
        self.tell(weights=digest.hexdigest())
        self.compare_losses(torch, device)

    def compare_losses(self, torch, device):
        """Gathers the losses of all ranks; rank 0 prints them. Raises RuntimeError if one did not fall or differs."""
        loss = torch.tensor([self.found["loss_last"]], dtype=torch.float64, device=device)
        losses = [torch.zeros_like(loss) for _ in range(self.world)]
        torch.distributed.all_gather(losses, loss)
        values, first = [float(one) for one in losses], self.found["loss_first"]
        if self.options.write:
            return
        if self.rank == 0:
            print(
                "%(world)d x %(device)s, %(precision)s over %(backend)s: %(samples_s).0f samples/s" % self.found, end=""
            )
            print(", loss %.5f -> %s" % (first, ", ".join("%.5f" % value for value in values)), flush=True)
        if not all(math.isfinite(value) and value < FALLS_TO * first for value in values):
            raise RuntimeError("the loss did not fall: %.5f -> %s" % (first, values))
        if max(values) - min(values) > EQUAL * max(values):
            raise RuntimeError("the loss is not equal on all ranks: %s" % values)


def network(torch, width, layers):
    """`layers` layers of one width."""
    parts = []
    for number in range(layers):
        parts += [torch.nn.Linear(width, width)] + ([torch.nn.GELU()] if number < layers - 1 else [])
    return torch.nn.Sequential(*parts)


def checksum(torch, tensor):
    """Two sums over the bits of a tensor of 32-bit numbers, one weighted by the place, as text; without numpy."""
    bits = tensor.detach().cpu().contiguous().view(torch.int32).flatten().long()
    return b"%d %d;" % (int(bits.sum()), int((bits * torch.arange(1, bits.numel() + 1)).sum()))


def main():
    own = os.path.dirname(os.path.abspath(__file__))
    # torch must not import files beside this one
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != own]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60, help="how long it trains after the warm-up (60)")
    parser.add_argument("--cpu", action="store_true", help="on the processor, over gloo, also where there are GPUs")
    parser.add_argument("--write", metavar="FOLDER", help="write a file for each rank to this folder")
    options = parser.parse_args()
    if "RANK" not in os.environ:
        parser.error("run it with torchrun: torchrun --nproc_per_node=2 %s" % sys.argv[0])
    rank = Rank(options)
    try:
        rank.run()
    except Exception as error:
        rank.tell(error=first_line(error))
        print("ddp_smoke.py: rank %d at %s: %s" % (rank.rank, rank.found["stage"], first_line(error)), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
