#!/usr/bin/env python3
"""Trains ddp_smoke.py's model on 1, 2, 4, ... and all GPUs with an interpreter's torch, one run after the other, and
prints the results.

    train_smoke.py --python /opt/train/bin/python --gpus 4 --seconds 60 --user ubuntu
    train_smoke.py --python python3 --gpus 2 --cpu --seconds 10            two processes on the processor, over gloo

Prints one JSON document on stdout and progress on stderr. Every run is in a session of its own with a time limit, as
--user if this program runs as root; at its end all its processes are killed. --alive FILE is touched each second.
Python 3.8.

    {"schema": 1, "gpus", "python", "user", "asked_s", "build": BUILD | null, "examined": RUN,
     "runs": [{"gpus", "run": RUN, "ranks": [RANK]}], "left_behind": [pid]}

nccl_programs.py describes RUN, with the transports that NCCL's log names; torch_build.py describes BUILD, and
`examined` is its run; ddp_smoke.py describes RANK. A torch that cannot train is examined only.
"""

import argparse
import contextlib
import json
import os
import pwd
import shutil
import signal
import sys
import threading

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_programs

BUILD_S = 120  # import of torch from a cold disk, start of CUDA
START_S = 150  # import of torch from a cold disk, CUDA, NCCL


def counts(gpus):
    """How many GPUs the runs have: 1, 2, 4, ... and all."""
    found, number = [], 1
    while number < gpus:
        found.append(number)
        number *= 2
    return [*found, gpus]


def smoke(runner, options):
    python = runner.in_home(options.python)
    if "/" not in python:
        python = shutil.which(python) or python
    own = os.path.dirname(os.path.abspath(__file__))
    program = os.path.join(own, "ddp_smoke.py")
    user = runner.user.pw_name if runner.user else pwd.getpwuid(os.getuid()).pw_name
    document = {
        "schema": 1,
        "gpus": options.gpus,
        "python": python,
        "user": user,
        "asked_s": options.seconds,
        "runs": [],
    }
    document["left_behind"] = runner.left_behind
    path = os.path.join(runner.place("build"), "build")
    argv = [python, os.path.join(own, "torch_build.py"), path]
    document["examined"] = runner.run("torch_build", argv, BUILD_S)
    document["build"] = build = nccl_programs.parsed(path)
    if not build or not build["torch"] or not (options.cpu or (build["gpus"] and not build["error"])):
        return document
    numbers = counts(options.gpus)
    each_s = max(1.0, options.seconds / len(numbers))
    for number in numbers:
        place = runner.place("ranks%d" % number)
        # torchrun, by the module's name: the script may not be installed
        argv = [python, "-m", "torch.distributed.run", "--nnodes=1", "--nproc_per_node=%d" % number]
        argv += ["--master_addr=127.0.0.1", "--master_port=%d" % nccl_programs.free_port(), program]
        argv += ["--seconds", "%g" % each_s, "--write", place] + ["--cpu"] * options.cpu
        settings = {"OMP_NUM_THREADS": "1"}
        if options.cpu:
            settings.update(GLOO_SOCKET_IFNAME="lo", CUDA_VISIBLE_DEVICES="")
        name = "%d process%s" % (number, "es" if number > 1 else "")
        run = runner.run(name, argv, each_s + START_S, **settings)
        files = (os.path.join(place, "rank.%d" % rank) for rank in range(number))
        ranks = [rank for rank in map(nccl_programs.parsed, files) if rank]
        document["runs"].append({"gpus": number, "run": run, "ranks": ranks})
        if run["outcome"] in ("hang", "not run"):
            break
    return document


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    parser.add_argument("--gpus", type=int, required=True, help="number of GPUs, or of processes with --cpu")
    parser.add_argument("--seconds", type=float, default=60, help="training of all runs together (60)")
    parser.add_argument("--cpu", action="store_true", help="train on the processor")
    user = os.environ.get("RIGWRIGHT_USER")
    parser.add_argument("--user", default=user, help="train as this user, if this program runs as root (who logged in)")
    parser.add_argument("--alive", metavar="FILE", help="touch this file each second")
    parser.add_argument("--timeout-s", type=float, default=3600, help="time limit of all runs (3600)")
    return parser.parse_args(words)


def touch(path, ended):
    """Touches a file each second until the event."""
    while not ended.wait(1):
        with contextlib.suppress(OSError):
            os.utime(path)


def main():
    options = options_of(sys.argv[1:])
    runner = nccl_programs.Runner(nccl_programs.user_of(options.user), options.timeout_s)
    nccl_host.on_signals(nccl_host.interrupt)
    ended = threading.Event()
    if options.alive:
        threading.Thread(target=touch, args=(options.alive, ended), daemon=True).start()
    try:
        document = smoke(runner, options)
    except nccl_host.Interrupted as error:
        print("train_smoke.py: interrupted by %s" % error, file=sys.stderr)
        return 1
    finally:
        ended.set()
        nccl_host.on_signals(signal.SIG_IGN)
        runner.close()
    print(json.dumps(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
