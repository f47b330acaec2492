"""Training steps on a GPU. usage: gpu_step.py MODEL [BATCH]; a request is "MODE STEPS", of MODE eager or one of torch.compile's.

The modes train one model, made on the device; training.py says how it computes in bf16. A mode is compiled when it is
first asked for. Steps are queued together and waited for once; the sample is their mean. The answer also holds
device_peak_bytes. 0 steps compile and no more: a forward and a backward, without the optimizer's memory; the sample is what
they take. On a machine without a GPU tiny models run on the CPU, to see that it works.
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
    name, *sequences = sys.argv[1:]
    if DEVICE == "cpu" and not name.startswith("tiny"):
        sys.exit(f"torch {torch.__version__} sees no GPU, and {name} is not for a CPU")
    torch.manual_seed(1)
    with torch.device(DEVICE) if DEVICE == "cuda" else contextlib.nullcontext():  # a billion normals take the CPU long
        model, batch, tokens, vocabulary = make_model(name)
    batch = int(sequences[0]) if sequences else batch
    training = Training(model, "bf16")
    text = torch.randint(vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(2)).to(DEVICE)
    batch = text[:, :-1].contiguous(), text[:, 1:].contiguous()
    nets = {}

    def compile_only():
        start = time.perf_counter()
        with training.autocast:
            loss = training.net(*batch)
        loss.backward()
        model.zero_grad(set_to_none=True)
        wait()
        return {"seconds": [time.perf_counter() - start], "loss": loss.item()}

    def run(request):
        mode, steps = request.split()
        is_new = mode not in nets
        training.net = nets.setdefault(mode, compiled(model, mode))
        if steps == "0":
            return compile_only()
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
