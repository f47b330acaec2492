"""Says which torch this Python has and in which environment it is fastest on a CPU, as JSON.

torch 2 finds its vector code and its products' kernels by itself; what it leaves to its user is that threads stay on
their CPUs. Programs with several ranks bind them themselves (ranks.py).
"""

import json
import re
import sys

import torch

OLDEST = (2, 6)  # fully_shard, fused AdamW on the CPU


def libraries():
    """What computes for it: {"oneDNN": "3.11.3", ...}, as far as this build says."""
    config = torch.__config__.show()
    patterns = {"MKL": r"oneAPI Math Kernel Library Version (\S+)", "oneDNN": r"MKL-DNN v(\S+)",
                "OpenMP": r"OpenMP (\d+)", "vectors": r"CPU capability usage: (\S+)"}
    return {name: match[1] for name, pattern in patterns.items() if (match := re.search(pattern, config))}


def main():
    version = tuple(int(part) for part in re.findall(r"\d+", torch.__version__)[:2])
    if version < OLDEST:
        sys.exit(f"torch {torch.__version__} is older than {'.'.join(map(str, OLDEST))}: tools/setup --python installs one")
    print(json.dumps({
        "peer": "torch " + torch.__version__.split("+")[0],
        "environment": {"OMP_PROC_BIND": "true"},
        "settings": "OMP_PROC_BIND=true",
        "libraries": libraries(),
    }))


main()
