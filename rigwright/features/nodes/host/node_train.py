#!/usr/bin/env python3
"""One node of a training over several: NCCL's all-reduce over all nodes, ddp_smoke.py on this node, then on all nodes.

    node_train.py --python /opt/train/bin/python --user ubuntu --run ID --node 1 --nodes 3 --first-rank 4 --gpus 4
                  --ranks 12 --address 10.0.0.2 --master 10.0.0.1 --port 29400 --set NCCL_SOCKET_IFNAME==ens1
    node_train.py ... --cpu                processes on the processor, over gloo; without the all-reduce

Every node runs it at the same time. torchrun meets over c10d at --port of the first node. Prints one JSON document on
stdout and progress on stderr. Every program is in a session of its own with a time limit, as --user if this program
runs as root; at its end all its processes are killed, also when nobody touches --watched FILE for --watched-s seconds.

    {"schema": 1, "node", "nodes", "gpus", "ranks", "python", "user", "asked_s", "nccl": RUN, "reduced": REDUCED | null,
     "alone": {"gpus", "run": RUN, "ranks": [RANK]}, "together": {...}, "left_behind": [pid]}

nccl_programs.py describes RUN, nccl_nodes.py REDUCED, ddp_smoke.py RANK; of `together` each node has its own ranks.
"""

import glob
import os
import shutil
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import nccl_host
import nccl_programs
import train_smoke

REDUCE_S = 180
MEET_S = 120  # how far apart the nodes may come to the rendezvous


def own_libraries(python):
    """The folder of NVIDIA's wheels in the environment of an interpreter; None without one."""
    prefix = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    found = glob.glob(os.path.join(glob.escape(prefix), "lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2"))
    return os.path.dirname(os.path.dirname(os.path.dirname(found[0]))) if found else None


def reduce(runner, options, python, settings):
    """The RUN of nccl_nodes.py, and what it wrote."""
    place = runner.place("sum")
    path, program = os.path.join(place, "reduced"), os.path.join(place, "nccl_nodes.py")
    # the user may not list this folder, so Python imports nothing from it
    for name in ("nccl_nodes.py", "nccl_cuda.py"):
        shutil.copy(os.path.join(train_smoke.FOLDER, name), place)
    argv = [sys.executable, program, "--write", path, "--run", options.run]
    for name in ("node", "nodes", "first_rank", "gpus", "ranks", "port", "address", "master"):
        argv += ["--" + name.replace("_", "-"), str(getattr(options, name))]
    libraries = options.libraries or own_libraries(python)
    argv += ["--libraries", libraries] if libraries else []
    return runner.run("all-reduce", argv, REDUCE_S, **settings), nccl_programs.json_object(path)


def train(runner, options):
    nccl_host.end_when_left(options)
    python, user = train_smoke.interpreter_and_user(runner, options)
    settings = dict(setting.split("=", 1) for setting in options.set)
    document = {"schema": 1, "node": options.node, "nodes": options.nodes, "gpus": options.gpus, "ranks": options.ranks}
    document.update(python=python, user=user, asked_s=options.seconds, left_behind=runner.left_behind)
    if options.cpu:
        skipped = nccl_programs.not_run("all-reduce", sys.executable, REDUCE_S, "on the processor")
        document.update(nccl=skipped, reduced=None)
    else:
        document["nccl"], document["reduced"] = reduce(runner, options, python, settings)
    where = ["--nnodes=%d" % options.nodes, "--rdzv_backend=c10d", "--rdzv_id=%s" % options.run]
    where += ["--rdzv_endpoint=%s:%d" % (options.master, options.port), "--local_addr=%s" % options.address]
    is_host = "true" if options.node == 0 else "false"
    where += ["--rdzv_conf=is_host=%s,join_timeout=%d" % (is_host, MEET_S), "--max_restarts=0"]
    for name, words, ranks in (("alone", train_smoke.alone(), options.gpus), ("together", where, options.ranks)):
        trained = train_smoke.train(runner, options, name, options.gpus, words, ranks, options.seconds, **settings)
        document[name] = trained
    return document


def options_of(words):
    parser = nccl_programs.parser_of(__doc__, 1200)
    parser.add_argument("--python", required=True, help="interpreter with torch")
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
    nccl_host.add_watched(parser, 60)
    options = parser.parse_args(words)
    if any("=" not in given for given in options.set):
        parser.error("--set NAME=VALUE")
    return options


def main():
    options = options_of(sys.argv[1:])
    return nccl_programs.print_document(options, train)


if __name__ == "__main__":
    sys.exit(main())
