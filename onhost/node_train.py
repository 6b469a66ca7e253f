#!/usr/bin/env python3
"""One node of a training over several: NCCL's all-reduce over all nodes, ddp_smoke.py on this node alone, then on all
nodes together.

    node_train.py --python /opt/train/bin/python --user ubuntu --run ID --node 1 --nodes 3 --first-rank 4 --gpus 4
    --ranks 12
                  --address 10.0.0.2 --master 10.0.0.1 --port 29400 --set NCCL_SOCKET_IFNAME==ens1 --set
                  NCCL_IB_DISABLE=1
    node_train.py ... --cpu                                       processes on the processor, over gloo; without the
    all-reduce

Every node runs it at the same time. torchrun meets over c10d at --port of the first node. Prints one JSON document on
stdout and progress on stderr. Every program is in a session of its own with a time limit, as --user if this program
runs as root; at its end all its processes are killed, also when nobody touches --watched FILE for --watched-s seconds.
Python 3.8.

    {"schema": 1, "node", "nodes", "gpus", "ranks", "python", "user", "asked_s", "nccl": RUN, "reduced": REDUCED | null,
     "alone": {"gpus", "run": RUN, "ranks": [RANK]}, "together": {...}, "left_behind": [pid]}

nccl_programs.py describes RUN, nccl_nodes.py REDUCED, ddp_smoke.py RANK; of `together` each node has its own ranks.
"""

import argparse
import glob
import json
import os
import pwd
import shutil
import signal
import sys
import threading
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_programs

START_S = 150  # import of torch from a cold disk, CUDA, NCCL
REDUCE_S = 180
MEET_S = 120  # how far apart the nodes may come to the rendezvous


def own_libraries(python):
    """The folder of NVIDIA's wheels in the environment of an interpreter; None without one."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    found = glob.glob(os.path.join(glob.escape(prefix), "lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    return os.path.dirname(os.path.dirname(os.path.dirname(found[0]))) if found else None


class Node:
    """This node of the training."""

    def __init__(self, runner, options):
        self.runner, self.options = runner, options
        self.folder = os.path.dirname(os.path.abspath(__file__))
        python = runner.in_home(options.python)
        self.python = python if "/" in python else shutil.which(python) or python
        self.settings = dict(given.split("=", 1) for given in options.set)

    def reduce(self):
        """The RUN of nccl_nodes.py, and what it wrote."""
        options, place = self.options, self.runner.place("sum")
        path, program = os.path.join(place, "reduced"), os.path.join(place, "nccl_nodes.py")
        for name in (
            "nccl_nodes.py",
            "nccl_cuda.py",
        ):  # the user may not list the folder of this program, so Python imports nothing from it
            shutil.copy(os.path.join(self.folder, name), place)
        argv = [sys.executable, program, "--write", path, "--run", options.run]
        for name in ("node", "nodes", "first_rank", "gpus", "ranks", "port", "address", "master"):
            argv += ["--" + name.replace("_", "-"), str(getattr(options, name))]
        libraries = options.libraries or own_libraries(self.python)
        argv += ["--libraries", libraries] if libraries else []
        run = self.runner.run("all-reduce", argv, REDUCE_S, **self.settings)
        return run, nccl_programs.parsed(path)

    def train(self, name, ranks, rendezvous):
        """Trains with torchrun; returns the number of GPUs, the RUN, and the ranks of this node."""
        options, place = self.options, self.runner.place("ranks-" + name)
        # torchrun, by the module's name: the script may not be installed
        argv = [self.python, "-m", "torch.distributed.run", "--nproc_per_node=%d" % options.gpus, *rendezvous]
        argv += [os.path.join(self.folder, "ddp_smoke.py"), "--seconds", "%g" % options.seconds, "--write", place]
        argv += ["--cpu"] * options.cpu
        settings = dict(self.settings, OMP_NUM_THREADS="1")
        if options.cpu:
            settings["CUDA_VISIBLE_DEVICES"] = ""
        run = self.runner.run(name, argv, options.seconds + START_S, **settings)
        files = (os.path.join(place, "rank.%d" % rank) for rank in range(ranks))
        return {"gpus": ranks, "run": run, "ranks": [rank for rank in map(nccl_programs.parsed, files) if rank]}

    def alone(self):
        port = nccl_programs.free_port()
        return self.train(
            "alone", self.options.gpus, ["--nnodes=1", "--master_addr=127.0.0.1", "--master_port=%d" % port]
        )

    def together(self):
        options = self.options
        where = ["--nnodes=%d" % options.nodes, "--rdzv_backend=c10d", "--rdzv_id=%s" % options.run]
        where += ["--rdzv_endpoint=%s:%d" % (options.master, options.port), "--local_addr=%s" % options.address]
        is_host = "true" if options.node == 0 else "false"
        where += ["--rdzv_conf=is_host=%s,join_timeout=%d" % (is_host, MEET_S), "--max_restarts=0"]
        return self.train("together", options.ranks, where)


def train(runner, options):
    node = Node(runner, options)
    user = runner.user.pw_name if runner.user else pwd.getpwuid(os.getuid()).pw_name
    document = {"schema": 1, "node": options.node, "nodes": options.nodes, "gpus": options.gpus, "ranks": options.ranks}
    document.update(python=node.python, user=user, asked_s=options.seconds, left_behind=runner.left_behind)
    if options.cpu:
        skipped = nccl_programs.not_run("all-reduce", sys.executable, REDUCE_S, "on the processor")
        document.update(nccl=skipped, reduced=None)
    else:
        document["nccl"], document["reduced"] = node.reduce()
    document["alone"] = node.alone()
    document["together"] = node.together()
    return document


def end_alone(options):
    """Asks this program to end when nobody watches it any more."""
    while True:
        time.sleep(1)
        try:
            if time.time() - os.stat(options.watched).st_mtime <= options.watched_s:
                continue
        except OSError:
            pass
        os.kill(os.getpid(), signal.SIGTERM)
        return


def options_of(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="interpreter with torch")
    user = os.environ.get("RIGWRIGHT_USER")
    parser.add_argument("--user", default=user, help="train as this user, if this program runs as root (who logged in)")
    parser.add_argument("--run", required=True, help="the id of the run, the same on all nodes")
    parser.add_argument("--node", type=int, required=True, help="the number of this node, from 0")
    parser.add_argument("--nodes", type=int, required=True, help="how many nodes there are")
    parser.add_argument("--first-rank", type=int, required=True, help="the number of the GPUs of the nodes before it")
    parser.add_argument("--gpus", type=int, required=True, help="number of its GPUs, or of processes with --cpu")
    parser.add_argument("--ranks", type=int, required=True, help="number of the GPUs of all nodes")
    parser.add_argument("--address", required=True, help="its address")
    parser.add_argument("--master", required=True, help="the address of node 0")
    parser.add_argument("--port", type=int, required=True, help="the port of node 0")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a variable of NCCL or gloo")
    parser.add_argument("--libraries", help="folder with NCCL and the CUDA runtime")
    parser.add_argument("--seconds", type=float, default=30, help="each of both trainings (30)")
    parser.add_argument("--cpu", action="store_true", help="train on the processor")
    parser.add_argument("--timeout-s", type=float, default=1200, help="time limit of all (1200)")
    parser.add_argument("--watched", metavar="FILE", help="end when nobody touches this file any more")
    parser.add_argument("--watched-s", type=float, default=60, help="after that time without a touch (60)")
    options = parser.parse_args(words)
    if any("=" not in given for given in options.set):
        parser.error("--set NAME=VALUE")
    return options


def main():
    options = options_of(sys.argv[1:])
    runner = nccl_programs.Runner(nccl_programs.user_of(options.user), options.timeout_s)
    nccl_host.on_signals(nccl_host.interrupt)
    if options.watched:
        threading.Thread(target=end_alone, args=(options,), daemon=True).start()
    try:
        document = train(runner, options)
    except nccl_host.Interrupted as error:
        print("node_train.py: interrupted by %s" % error, file=sys.stderr)
        return 1
    finally:
        nccl_host.on_signals(signal.SIG_IGN)
        runner.close()
    print(json.dumps(document), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
