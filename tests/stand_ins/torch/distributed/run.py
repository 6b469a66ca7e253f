"""Of the stand-in: torchrun. Each process has a session of its own, as torch's launcher gives it."""

import argparse
import os
import subprocess
import sys


def main():
    parser = argparse.ArgumentParser()
    for name in ("--nnodes", "--nproc_per_node", "--master_addr", "--master_port"):
        parser.add_argument(name, required=True)
    parser.add_argument("words", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    assert options.master_addr == "127.0.0.1"
    children = []
    for rank in range(int(options.nproc_per_node)):
        environ = dict(os.environ, RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=options.nproc_per_node)
        children.append(subprocess.Popen([sys.executable, *options.words], env=environ, start_new_session=True))
    sys.exit(max(abs(child.wait()) for child in children))


if __name__ == "__main__":
    main()
