"""gloo's collectives on f32. usage: collectives.py RANKS; a request is "NAME BYTES CALLS", BYTES of the full tensor."""

import sys
import time

import ranks  # first: it sets what torch reads when it loads
import torch
import torch.distributed as dist


def collective(name, elements, rank):
    full, shard = torch.ones(elements), torch.ones(elements // dist.get_world_size())
    return {"all_gather": lambda: dist.all_gather_into_tensor(full, shard),
            "reduce_scatter": lambda: dist.reduce_scatter_tensor(shard, full)}[name]


def main(rank):
    known = {}

    def answer(request):
        name, size, calls = request.split()
        if (name, size) not in known:
            known[name, size] = collective(name, int(size) // 4, rank)
            known[name, size]()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(int(calls)):
            known[name, size]()
        return {"seconds": [(time.perf_counter() - start) / int(calls)]}

    ranks.serve(rank, f"torch {torch.__version__.split('+')[0]} gloo", answer)


if __name__ == "__main__":
    ranks.start(main, int(sys.argv[1]))
