"""A training step on a GPU. usage: gpu_step.py MODEL eager|default|reduce-overhead|...; each request is a number of steps.

The mode is torch.compile's; training.py says how it computes in bf16. Steps are queued together and waited for once;
the sample is their mean. The answer also holds device_peak_bytes. On a machine without a GPU: on the CPU, to see that
it runs.
"""

import sys
import time

import torch

from side import serve
from training import Training, make_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def main():
    name, mode = sys.argv[1:]
    torch.manual_seed(1)
    model, batch, tokens, vocabulary = make_model(name)
    compiled = (lambda net: net) if mode == "eager" else (
        lambda net: torch.compile(net, mode=None if mode == "default" else mode))
    training = Training(model.to(DEVICE), "bf16", compiled)
    text = torch.randint(vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    for _ in range(5):  # compilation, recording of graphs, the allocator's memory
        training.step(*batch)
    wait()

    def run(steps):
        if DEVICE == "cuda":
            torch.cuda.reset_peak_memory_stats()
        start = time.perf_counter()
        for _ in range(int(steps)):
            loss = training.step(*batch)
        wait()
        seconds = (time.perf_counter() - start) / int(steps)
        peak = torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0
        return {"seconds": [seconds], "loss": loss.item(), "device_peak_bytes": peak}

    serve(run)


main()
