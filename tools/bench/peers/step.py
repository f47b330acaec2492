"""A training step of one process. usage: step.py MODEL f32|autocast|bf16 THREADS eager|compile; each request is a number of steps."""

import sys
import time

import torch

from side import memory_bytes, serve

imported_bytes = memory_bytes("VmRSS")  # before anything of a model exists

from training import Training, make_batch, make_model  # noqa: E402  (only now)


def main():
    name, dtype, threads, mode = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.manual_seed(1)
    model, *shape = make_model(name)
    training = Training(model, dtype, torch.compile if mode == "compile" else lambda net: net)
    batch = make_batch(*shape)
    for _ in range(3):
        training.step(*batch)

    def run(steps):
        seconds = []
        for _ in range(int(steps)):
            start = time.perf_counter()
            loss = training.step(*batch).item()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "loss": loss, "growth_bytes": memory_bytes("VmHWM") - imported_bytes}

    serve(run)


main()
