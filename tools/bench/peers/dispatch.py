"""The peer of `sherd bench dispatch`: the same add in PyTorch. Prints one JSON object, nanoseconds per call.

The loop is Python's own timeit with the body `a + b`; the cost of an empty body is taken off. Python's binding of
the operator stays in: it is what a user of the peer pays.
"""

import json
import statistics
import timeit

import torch

CALLS, WINDOWS = 2000, 501


def median_nanoseconds(body, names):
    def window(code):
        timer = timeit.Timer(code, globals=names)
        timer.timeit(CALLS)
        return statistics.median(timer.timeit(CALLS) for _ in range(WINDOWS)) / CALLS * 1e9

    return window(body) - window("pass")


def main():
    torch.set_num_threads(1)
    a, b = torch.ones(1), torch.ones(1)
    with torch.no_grad():
        plain = median_nanoseconds("a + b", {"a": a, "b": b})
    a.requires_grad_(True)
    recording = median_nanoseconds("a + b", {"a": a, "b": b})
    print(json.dumps({"peer": "torch " + torch.__version__, "dispatch.plain": plain, "dispatch.recording": recording}))


main()
