"""A training step of one process. usage: step.py MODEL f32|bf16 THREADS; each request is a number of steps."""

import sys
import time

import torch

from side import memory_bytes, serve

imported_bytes = memory_bytes("VmRSS")  # before anything of a model exists

from model import Training  # noqa: E402  (only now)


def main():
    name, dtype, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    training = Training(name, dtype)
    for _ in range(2):
        training.step()

    def run(steps):
        seconds = []
        for _ in range(int(steps)):
            start = time.perf_counter()
            loss = training.step()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "loss": loss, "growth_bytes": memory_bytes("VmHWM") - imported_bytes}

    serve(run)


main()
