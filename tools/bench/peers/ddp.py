"""A DistributedDataParallel step over gloo, every rank with its own batch and one thread on one CPU.

usage: ddp.py MODEL RANKS; each request is a number of steps. The first answer after warming up also has the bytes of
parameters, gradients and optimizer state of one rank.
"""

import os
import sys
import tempfile
import time

os.environ.pop("OMP_PROC_BIND", None)  # would bind all ranks to one CPU; read when torch loads

import torch  # noqa: E402
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
from torch.nn.parallel import DistributedDataParallel

from model import Training
from side import requests, say


def rank_main(rank, name, ranks, store):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method="file://" + store)
    training = Training(name, rank=rank, wrap=lambda model: DistributedDataParallel(model, gradient_as_bucket_view=True))
    for _ in range(2):
        training.step()
    if rank == 0:
        say(peer=f"torch {torch.__version__} DDP/gloo")
    lines = requests() if rank == 0 else None
    while True:
        steps = torch.tensor([int(next(lines, "0")) if rank == 0 else 0])
        dist.broadcast(steps, 0)
        if steps.item() == 0:
            return
        seconds = []
        for _ in range(steps.item()):
            dist.barrier()
            start = time.perf_counter()
            loss = training.step()
            seconds.append(time.perf_counter() - start)
        if rank == 0:
            say(seconds=seconds, loss=loss, state_bytes=training.state_bytes())


def main():
    name, ranks = sys.argv[1], int(sys.argv[2])
    with tempfile.TemporaryDirectory() as folder:
        arguments = (name, ranks, os.path.join(folder, "store"))
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=rank_main, args=(r, *arguments), daemon=True) for r in range(1, ranks)]
        for other in others:
            other.start()
        rank_main(0, *arguments)
        for other in others:
            other.join()


if __name__ == "__main__":
    main()
