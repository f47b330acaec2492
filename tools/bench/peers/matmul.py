"""Matrix products. A request is "NN|NT|TN M N K f32|bf16 CALLS": op(A) [M, K] op(B) [K, N], T for one stored transposed."""

import time

import torch

from side import serve

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def run(request):
    kind, m, n, k, dtype, calls = request.split()
    m, n, k = int(m), int(n), int(k)
    a = torch.ones(*((k, m) if kind[0] == "T" else (m, k)), dtype=DTYPES[dtype])
    b = torch.ones(*((n, k) if kind[1] == "T" else (k, n)), dtype=DTYPES[dtype])
    a = a.t() if kind[0] == "T" else a
    b = b.t() if kind[1] == "T" else b
    c = torch.empty(m, n, dtype=DTYPES[dtype])
    seconds = []
    for _ in range(int(calls) + 1):
        start = time.perf_counter()
        torch.mm(a, b, out=c)
        seconds.append(time.perf_counter() - start)
    return {"seconds": seconds[1:]}


torch.set_num_threads(1)
serve(run)
