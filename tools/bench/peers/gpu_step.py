"""Training steps on a GPU. usage: gpu_step.py MODEL; a request is "MODE STEPS", of MODE eager or one of torch.compile's.

The modes train one model, made on the device; training.py says how it computes in bf16. A mode is compiled when it is
first asked for. Steps are queued together and waited for once; the sample is their mean. The answer also holds
device_peak_bytes. On a machine without a GPU: on the CPU, to see that it runs.
"""

import contextlib
import sys
import time

import torch

from side import serve
from training import Training, make_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def compiled(model, mode):
    if mode == "eager":
        return model
    return torch.compile(model, mode=None if mode == "default" else mode)


def main():
    name, = sys.argv[1:]
    torch.manual_seed(1)
    with torch.device(DEVICE) if DEVICE == "cuda" else contextlib.nullcontext():  # a billion normals take the CPU long
        model, batch, tokens, vocabulary = make_model(name)
    training = Training(model, "bf16")
    text = torch.randint(vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    nets = {}

    def run(request):
        mode, steps = request.split()
        is_new = mode not in nets
        training.net = nets.setdefault(mode, compiled(model, mode))
        for _ in range(5 if is_new else 1):  # compilation, recording of graphs, the allocator's memory
            training.step(*batch)
        wait()
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
