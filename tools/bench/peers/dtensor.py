"""What a call on DTensors costs more than on plain tensors. A request is "hit WINDOWS" or "miss CALLS"; each sample is
the difference for one call, of the row for which that is most. Needs torch 2.4 or newer.

The mesh has two ranks of a process group that pretends to communicate; the calls need none.
"""

import time

import torch
import torch.nn.functional as F

from side import serve

CALLS = 500


def require_dtensor():
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < (2, 4):
        raise SystemExit(f"torch {torch.__version__} is older than 2.4, whose DTensor is compared")


require_dtensor()
import torch.distributed as dist  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: E402

try:
    from torch.distributed.tensor import DTensor, Replicate, Shard
except ImportError:  # 2.4
    from torch.distributed._tensor import DTensor, Replicate, Shard


def spread(mesh, shape, placement):
    local = list(shape)
    if isinstance(placement, Shard):
        local[placement.dim] //= 2
    return DTensor.from_local(torch.ones(local), mesh, [placement], run_check=False)


ROWS = {
    "add": (lambda m, n: (spread(m, (2, n), Shard(0)), spread(m, (2, n), Shard(0))), torch.add),
    "mul": (lambda m, n: (spread(m, (2, n), Shard(0)), spread(m, (2, n), Shard(0))), torch.mul),
    "linear": (lambda m, n: (spread(m, (1, n), Replicate()), spread(m, (8, n), Shard(0))), F.linear),
}


def seconds_per_call(call, a, b, calls):
    start = time.perf_counter()
    for _ in range(calls):
        call(a, b)
    return (time.perf_counter() - start) / calls


def hits(mesh, make, call, windows):
    whole = make(mesh, 4)
    plain = [t.to_local() for t in whole]
    seconds_per_call(call, *whole, CALLS)
    return [seconds_per_call(call, *whole, CALLS) - seconds_per_call(call, *plain, CALLS) for _ in range(windows)]


size = 4


def misses(mesh, make, call, calls):
    global size
    samples = []
    for _ in range(calls):
        size += 1
        whole = make(mesh, size)
        plain = [t.to_local() for t in whole]
        samples.append(seconds_per_call(call, *whole, 1) - seconds_per_call(call, *plain, 1))
    return samples


def main():
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    mesh = init_device_mesh("cpu", (2,))

    def run(request):
        kind, count = request.split()
        measure = hits if kind == "hit" else misses
        with torch.no_grad():
            rows = {name: measure(mesh, make, call, int(count)) for name, (make, call) in ROWS.items()}
        middle = {name: sorted(samples)[len(samples) // 2] for name, samples in rows.items()}
        worst = max(middle, key=middle.get)
        return {"seconds": rows[worst], "rows": middle}

    serve(run)


main()
