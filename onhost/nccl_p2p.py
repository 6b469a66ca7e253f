#!/usr/bin/env python3
"""Tests peer-to-peer access between the GPUs of this machine, its speed, and whether NCCL uses it. Prints a JSON
document.

    scripts/nccl_p2p.py                     every pair, with and without peer access, and the scaling table
    scripts/nccl_p2p.py --quick             small messages, no scaling table
    scripts/nccl_p2p.py --pairs 0-1,2-3     these pairs, both ways, and no other GPU
    scripts/nccl_p2p.py --alone             every pair alone, one after the other
    scripts/nccl_p2p.py --no-collective     copies only; needs no NCCL

Needs an NVIDIA driver, Python 3.8, and libcudart, libnccl and libcublas, either in the loader's path or below the
folder of --libraries (for example unpacked wheels). With pynvml.py of nvidia-ml-py beside this file it also reports
NVML's peer-to-peer status. Needs no root, no compiler and no torch. Run it when nothing else uses the GPUs.

Three tiers for every ordered pair of GPUs: "grant" (CUDA allows peer access), "bytes" (a copy with peer access, data
compared; "staged" is the same copy through the host) and "collective" (NCCL's send and receive, data compared; the
transport is read from NCCL's log), then an all-reduce over all GPUs. Pairs that share no GPU are tested together, in
rounds ("rounds", "round_gb_s"); one pair of each kind of link, and every pair that was slow in its round, is then
measured alone ("gb_s"; null: it was not). Each tier runs in child processes; a process that hangs is killed, the pairs
of its round are tested alone, the hang becomes a result, and the test continues. The caller's NCCL settings are not
used.

Exit status: 0 all tests passed, 1 a test failed (wrong data, a hang, an error), 2 the test could not run (no library,
no GPU, wrong usage). docs/reference/nccl_p2p.md describes every key of the document:

    {"schema": 1, "quick", "outcome": "ok" | "failed" | "could not run", "started", "seconds", "tiers_s",
     "versions": {"driver", "cuda_driver", "cuda_runtime", "nccl"}, "libraries": {name: path},
     "counts": {"nvml", "cuda"}, "gpus": [{"index", "cuda_device", "bus_id", "uuid", "name", "compute_capability",
     "compute_mode", "mig", "processes", "own": RESULT}],
     "rounds": [[[from, to], ...], ...], "pairs": [{"from", "to", "grant": {"cuda", "nvml", "distance", "link"},
     "bytes": RESULT, "staged": RESULT, "collective": RESULT and {"transport", "kind", "words", "without_p2p": RESULT,
     "with_level_sys": RESULT | null}}], "all_reduce": RESULT and {"gpus", "busbw_gb_s", "transports", "without_p2p":
     RESULT}, "scaling": [{"gpus", "step_ms", "product_ms", "all_reduce_ms", "speed_up", "efficiency"}],
     "shared_memory", "leftovers", "notes", "errors", "left_behind"}

    RESULT: {"ok": true | false | null, "outcome": "ok" | "wrong data" | "hang" | "error" | "refused" | "not run",
             "gb_s", "round_gb_s", "latency_us", "error"}
"""

import argparse
import os
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_steps
from nccl_measurement import carried_out, parse, parser_of
from nccl_tiers import Examination
from nccl_watch import Watch


def pairs_of(text):
    """[(0, 1), (1, 0)] for "0-1": each pair both ways."""
    pairs = []
    for word in text.split(","):
        a, dash, b = word.strip().partition("-")
        if not (dash and a.isdigit() and b.isdigit() and int(a) != int(b)):
            raise argparse.ArgumentTypeError("%r is not a pair of GPUs such as 0-1" % word)
        pairs += [pair for pair in ((int(a), int(b)), (int(b), int(a))) if pair not in pairs]
    return pairs


def options_of(words):
    parser = parser_of(__doc__)
    parser.add_argument("--pairs", type=pairs_of, metavar="0-1,2-3", help="these pairs, by nvidia-smi's index")
    parser.add_argument("--quick", action="store_true", help="small messages, no scaling table")
    parser.add_argument("--alone", action="store_true", help="measure every pair alone, one after the other; no rounds")
    parser.add_argument("--no-collective", action="store_true", help="copies only; no NCCL")
    parser.add_argument("--timeout-s", type=float, default=900, help="time limit of the whole test (900)")
    limits = "30 for a copy, 5 with --quick; 120 to connect"
    parser.add_argument("--step-timeout-s", type=float, help="time limit of one step (default: %s)" % limits)
    parser.add_argument("--journal", metavar="FILE", help="append each step to this file before it begins, with fsync")
    return parse(parser, words)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return nccl_steps.main(sys.argv[2], int(sys.argv[3]))
    options = options_of(sys.argv[1:])
    watch = Watch(options, os.path.abspath(__file__))
    examination = Examination(options, watch)
    examination.document["leftovers"] = nccl_host.leftovers(os.environ)
    return carried_out(examination, watch)


if __name__ == "__main__":
    sys.exit(main())
