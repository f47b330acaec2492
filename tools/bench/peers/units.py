"""32 units of two 16 x 16 linears: the host's cost of sharding, as nothing is to compute. usage: units.py plain|fsdp2 RANKS [foreach|fused]

A request is "step N", forward and backward of a batch of 8, or "adamw N", a step of that AdamW over the 128 parameters.
"""

import sys
import time

import ranks  # first: it sets what torch reads when it loads
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

UNITS, WIDTH, BATCH = 32, 16, 8


def main(rank, kind, form="foreach"):
    torch.manual_seed(1)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)) for _ in range(UNITS)))
    if kind == "fsdp2":
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for unit in model:
            fully_shard(unit, mesh=mesh)
        fully_shard(model, mesh=mesh)
    parameters = list(model.parameters())
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(2 + rank))

    def step():
        model(x).sum().backward()
        for p in parameters:
            p.grad = None

    def adamw():
        model(x).sum().backward()
        return torch.optim.AdamW(parameters, lr=1e-6, **{form: True}).step

    calls = {}

    def answer(request):
        name, count = request.split()
        if name not in calls:
            calls[name] = step if name == "step" else adamw()
            for _ in range(5):
                calls[name]()
        seconds = []
        for _ in range(int(count)):
            dist.barrier()
            start = time.perf_counter()
            calls[name]()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds}

    version = torch.__version__.split("+")[0]
    ranks.serve(rank, f"torch {version}" + (" FSDP2/gloo" if kind == "fsdp2" else ""), answer)


if __name__ == "__main__":
    kind, world, *form = sys.argv[1:]
    ranks.start(main, int(world), kind, *form)
