#!/usr/bin/env python3
"""Writes tests/golden/fully_shard.safetensors: gradients under PyTorch's fully_shard (FSDP2) with bf16 parameters and the
default reduce_dtype, on 2 to 4 processes over gloo.

Usage: make_fully_shard.py            writes the file (in the environment of `tools/setup --python`)
       make_fully_shard.py --check    recomputes and compares with the committed file

A case is "<model>.<numbers>.<mesh>". Each rank takes its rows of `in.x` and `in.cotangent`, rounded to bf16, and gradients
are the means over all ranks. "integers" are small, so that every number on the way is exact and gradients have one value;
the first half of their cotangents is 256 times as large: each rank's gradient is a bf16 number, their mean in f32 is not,
so rounding it on its way shows. "normals" are rounded at every step.
"""
import os
import sys
import tempfile

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import case
import safetensors_format
from make_golden import FOLDER, differences

ROWS = 12
MESHES = {"dp2": (2,), "dp3": (3,), "dp4": (4,), "replicate2_dp2": (2, 2)}
SIZES = {"even": (8, 8, 4), "uneven": (5, 7, 3)}
TIED = (7, 4)  # rows of the table, width


class Block(torch.nn.Module):
    """relu(x W^T + b), as Block of tests/parallel/nets.h."""

    def __init__(self, n_in, n_out):
        super().__init__()
        self.linear = torch.nn.Linear(n_in, n_out)

    def forward(self, x):
        return torch.relu(self.linear(x))


class Net(torch.nn.Module):
    """Net of tests/parallel/nets.h: blocks, then a linear head that the root owns."""

    def __init__(self, sizes):
        super().__init__()
        self.blocks = torch.nn.ModuleList([Block(a, b) for a, b in zip(sizes[:-2], sizes[1:-1])])
        self.head = torch.nn.Linear(sizes[-2], sizes[-1])

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Tied(torch.nn.Module):
    """An embedding whose table is the head's weight too."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(*TIED)
        self.middle = torch.nn.Linear(TIED[1], TIED[1])
        self.blocks = []

    def forward(self, tokens):
        return torch.nn.functional.linear(torch.relu(self.middle(self.table(tokens))), self.table.weight)


def make(model):
    return Tied() if model == "tied" else Net(SIZES[model])


def draw(key, numbers, *shape):
    if numbers == "normals":
        return case.normal(key, *shape)
    return (case.integers(key, 3, *shape) - 1).astype("f4")


def inputs_of(model, numbers):
    """Input and cotangent of the whole batch, and values of the parameters."""
    key = f"fully_shard.{model}.{numbers}"
    net = make(model)
    if model == "tied":
        x, width = case.integers(f"{key}.x", TIED[0], ROWS), TIED[0]
    else:
        x, width = draw(f"{key}.x", numbers, ROWS, SIZES[model][0]), SIZES[model][-1]
    values = {name: draw(f"{key}.{name}", numbers, *p.shape) for name, p in net.named_parameters()}
    cotangent = draw(f"{key}.cotangent", numbers, ROWS, width)
    if numbers == "integers":
        cotangent[:ROWS // 2] *= 256
    return x, cotangent, values


def gradients(model, numbers, mesh):
    """The whole gradients by parameter; collective."""
    x, cotangent, values = inputs_of(model, numbers)
    net = make(model)
    with torch.no_grad():
        for name, p in net.named_parameters():
            p.copy_(torch.tensor(values[name]))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    for module in [*net.blocks, net]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    rows = ROWS // dist.get_world_size()
    own = slice(dist.get_rank() * rows, (dist.get_rank() + 1) * rows)
    net(torch.tensor(x[own])).backward(torch.tensor(cotangent[own]).bfloat16())
    return {name: p.grad.full_tensor().numpy() for name, p in net.named_parameters()}


def run_rank(rank, mesh_name, folder):
    shape = MESHES[mesh_name]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/{mesh_name}.store", rank=rank,
                            world_size=int(np.prod(shape)))
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "dp")[-len(shape):])
    found = {}
    for model in [*SIZES, "tied"]:
        for numbers in ("integers", "normals"):
            if numbers == "integers" and len(set(shape) - {2, 4}) > 0:
                continue  # a mean over 3 is not exact
            for name, gradient in gradients(model, numbers, mesh).items():
                assert gradient.dtype == np.float32
                found[f"{model}.{numbers}.{mesh_name}.grad.{name}"] = gradient
    if rank == 0:
        np.savez(f"{folder}/{mesh_name}.npz", **found)
    dist.destroy_process_group()


def compute():
    file = case.File(f"gradients of fully_shard(mp_policy = bf16 parameters) of PyTorch {torch.__version__.split('+')[0]}")
    for model in [*SIZES, "tied"]:
        for numbers in ("integers", "normals"):
            x, cotangent, values = inputs_of(model, numbers)
            file.put(f"{model}.{numbers}.in.x", x)
            file.put(f"{model}.{numbers}.in.cotangent", cotangent)
            for name, value in values.items():
                file.put(f"{model}.{numbers}.in.{name}", value)
    with tempfile.TemporaryDirectory() as folder:
        for mesh_name, shape in MESHES.items():
            # Forked: they need not import torch again, which takes longer than all else here.
            mp.start_processes(run_rank, (mesh_name, folder), int(np.prod(shape)), start_method="fork")
            with np.load(f"{folder}/{mesh_name}.npz") as found:
                for key in found.files:
                    file.put(key, found[key])
    return file


def main():
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    path, file = FOLDER / "fully_shard.safetensors", compute()
    if "--check" in sys.argv[1:]:
        found = list(differences(file, path))
        print(f"{path.name}: {'same' if not found else 'differs in ' + ', '.join(found)}")
        return 1 if found else 0
    safetensors_format.save(path, file.tensors, file.metadata)
    print(f"{path.name}: {len(file.tensors)} tensors, {path.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
