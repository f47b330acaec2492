"""gloo's collectives on f32. usage: collectives.py RANKS; a request is "NAME BYTES CALLS", BYTES of the full tensor.

gloo of torch 1.13 has no reduce_scatter; what its users run instead is an all_reduce of which they keep their part.
"""

import os
import sys
import tempfile
import time

os.environ.pop("OMP_PROC_BIND", None)  # would bind all ranks to one CPU; read when torch loads

import torch  # noqa: E402
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from side import requests, say


def collective(name, elements, ranks, rank):
    full, shard = torch.ones(elements), torch.ones(elements // ranks)
    parts = list(full.chunk(ranks))

    def reduce_scatter():
        dist.all_reduce(full)
        shard.copy_(parts[rank])

    return {"all_gather": lambda: dist.all_gather(parts, shard), "reduce_scatter": reduce_scatter}[name]


def rank_main(rank, ranks, store):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method="file://" + store)
    if rank == 0:
        say(peer=f"torch {torch.__version__} gloo")
    lines = requests() if rank == 0 else None
    known = {}
    while True:
        request = [next(lines, "") if rank == 0 else ""]
        dist.broadcast_object_list(request, 0)
        if not request[0]:
            return
        name, size, calls = request[0].split()
        if (name, size) not in known:
            known[name, size] = collective(name, int(size) // 4, ranks, rank)
            known[name, size]()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(int(calls)):
            known[name, size]()
        seconds = (time.perf_counter() - start) / int(calls)
        if rank == 0:
            say(seconds=[seconds])


def main():
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=rank_main, args=(r, ranks, store), daemon=True) for r in range(1, ranks)]
        for other in others:
            other.start()
        rank_main(0, ranks, store)
        for other in others:
            other.join()


if __name__ == "__main__":
    main()
