"""Stands for ``torchrun``: rank 0 of the gang that was asked for, in place of this process."""

import argparse
import os
import sys

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--nnodes", type=int, default=1)
parser.add_argument("--nproc-per-node", type=int, required=True)
for name in ("--node-rank", "--rdzv-id", "--rdzv-backend", "--rdzv-endpoint", "--master-addr", "--master-port"):
    parser.add_argument(name)
parser.add_argument("--no-python", action="store_true")
parser.add_argument("command", nargs=argparse.REMAINDER)
options = parser.parse_args()
os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(options.nnodes * options.nproc_per_node)}
words = options.command if options.no_python else [sys.executable, *options.command]
os.execvp(words[0], words)
