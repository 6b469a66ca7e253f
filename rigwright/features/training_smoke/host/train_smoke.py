#!/usr/bin/env python3
"""Trains ddp_smoke.py's model on 1, 2, 3, 4, 8, ... and all GPUs with an interpreter's torch, and prints the results.

    train_smoke.py --python /opt/train/bin/python --gpus 4 --seconds 60 --user ubuntu
    train_smoke.py --python python3 --gpus 2 --cpu --seconds 10            two processes on the processor, over gloo

Prints one JSON document on stdout and progress on stderr. Every run is in a session of its own with a time limit, as
--user if this program runs as root; at its end all its processes are killed. --alive FILE is touched each second.

    {"schema": 1, "gpus", "python", "user", "asked_s", "build": BUILD | null, "examined": RUN,
     "runs": [{"gpus", "run": RUN, "ranks": [RANK]}], "left_behind": [pid]}

nccl_programs.py describes RUN, with the transports that NCCL's log names; torch_build.py describes BUILD, and
`examined` is its run; ddp_smoke.py describes RANK. A torch that cannot train is examined only.
"""

import contextlib
import os
import pwd
import shutil
import socket
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_programs

FOLDER = os.path.dirname(os.path.abspath(__file__))
BUILD_S = 120  # import of torch from a cold disk, start of CUDA
START_S = 150  # import of torch from a cold disk, CUDA, NCCL


def counts(gpus):
    """How many GPUs the runs have: 1, 2, 3, 4, 8, ... and all."""
    return [number for number in (1, 2, 3, 4, 8, 16, 32) if number < gpus] + [gpus]


def interpreter_and_user(runner, options):
    """The path of the interpreter, and the name of the user of the programs."""
    python = runner.in_home(options.python)
    user = runner.user.pw_name if runner.user else pwd.getpwuid(os.getuid()).pw_name
    return python if "/" in python else shutil.which(python) or python, user


def alone():
    """The words for torchrun of a training on this machine alone."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    return ["--nnodes=1", "--master_addr=127.0.0.1", "--master_port=%d" % port]


def train(runner, options, name, gpus, where, ranks, seconds, **settings):
    """Trains with torchrun, with the words `where`, on `gpus` GPUs here and `ranks` in all; returns the results."""
    place = runner.place("ranks-%s" % name.replace(" ", "-"))
    # torchrun, by the module's name: the script may not be installed
    argv = [interpreter_and_user(runner, options)[0], "-m", "torch.distributed.run"]
    argv += ["--nproc_per_node=%d" % gpus, *where]
    argv += [os.path.join(FOLDER, "ddp_smoke.py"), "--seconds", "%g" % seconds, "--write", place]
    argv += ["--cpu"] * options.cpu
    settings["OMP_NUM_THREADS"] = "1"
    if options.cpu:
        settings["CUDA_VISIBLE_DEVICES"] = ""
    run = runner.run(name, argv, seconds + START_S, **settings)
    files = (os.path.join(place, "rank.%d" % rank) for rank in range(ranks))
    return {"gpus": ranks, "run": run, "ranks": [rank for rank in map(nccl_programs.json_object, files) if rank]}


def smoke(runner, options):
    python, user = interpreter_and_user(runner, options)
    document = {"schema": 1, "gpus": options.gpus, "python": python, "user": user, "asked_s": options.seconds}
    document.update(runs=[], left_behind=runner.left_behind)
    path = os.path.join(runner.place("build"), "build")
    argv = [python, os.path.join(FOLDER, "torch_build.py"), path]
    document["examined"] = runner.run("torch_build", argv, BUILD_S)
    document["build"] = build = nccl_programs.json_object(path)
    if not build or not build["torch"] or not (options.cpu or (build["gpus"] and not build["error"])):
        return document
    numbers = counts(options.gpus)
    each_s = max(1.0, options.seconds / len(numbers))
    settings = {"GLOO_SOCKET_IFNAME": "lo"} if options.cpu else {}
    for number in numbers:
        name = "%d process%s" % (number, "es" if number > 1 else "")
        document["runs"].append(train(runner, options, name, number, alone(), number, each_s, **settings))
        if document["runs"][-1]["run"]["outcome"] in ("hang", "not run"):
            break
    return document


def touch(path):
    """Touches a file each second."""
    while not time.sleep(1):
        with contextlib.suppress(OSError):
            os.utime(path)


def main():
    parser = nccl_programs.parser_of(__doc__, 3600)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    parser.add_argument("--gpus", type=int, required=True, help="number of GPUs, or of processes with --cpu")
    parser.add_argument("--seconds", type=float, default=60, help="training of all runs together (60)")
    parser.add_argument("--cpu", action="store_true", help="train on the processor")
    parser.add_argument("--alive", metavar="FILE", help="touch this file each second")
    options = parser.parse_args()
    if options.alive:
        threading.Thread(target=touch, args=(options.alive,), daemon=True).start()
    return nccl_programs.print_document(options, smoke)


if __name__ == "__main__":
    sys.exit(main())
