"""What one op call costs: a 1-element add. A request is "plain WINDOWS" or "recording WINDOWS"; each sample is one call.

The loop is Python's own timeit with the body `a + b`; the cost of an empty body is taken off. Python's binding of the
operator stays in: it is what a user of the peer pays.
"""

import timeit

import torch

from side import serve

CALLS = 2000


def windows(body, count, names):
    timer = timeit.Timer(body, globals=names)
    timer.timeit(CALLS)
    return [timer.timeit(CALLS) / CALLS for _ in range(count)]


def run(request):
    kind, count = request.split()
    recording = kind == "recording"
    names = {"a": torch.ones(1, requires_grad=recording), "b": torch.ones(1)}
    with torch.set_grad_enabled(recording):
        adds = windows("a + b", int(count), names)
    empty = sorted(windows("pass", int(count), names))[int(count) // 2]
    return {"seconds": [add - empty for add in adds]}


torch.set_num_threads(1)
serve(run)
