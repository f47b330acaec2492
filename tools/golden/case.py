"""One golden case: inputs are drawn in f32, everything is computed in f64, and results are stored in f32.

Keys: `<case>.in.<input>`, `<case>.out`, `<case>.cotangent` (what backward starts from), `<case>.grad.<input>`; the
attributes of a case are a JSON object in the file's metadata under the case's name.
"""
import json
import zlib

import numpy as np
import torch


class File:
    """The cases of one golden file."""

    def __init__(self, note):
        self.tensors, self.metadata = {}, {"note": note}

    def put(self, key, value):
        """Stores a tensor or array: integers as i64, anything else as f32."""
        if isinstance(value, torch.Tensor):
            value = value.detach().numpy()
        value = np.asarray(value)
        self.tensors[key] = value.astype("<i8" if value.dtype.kind == "i" else "<f4")

    def attributes(self, case, **values):
        self.metadata[case] = json.dumps(values, sort_keys=True)

    def add(self, case, fn, inputs, **attributes):
        """Runs fn(*inputs) in f64; stores inputs, output, a random cotangent, gradients of floating inputs."""
        if attributes:
            self.attributes(case, **attributes)
        leaves = {}
        for name, value in inputs.items():
            self.put(f"{case}.in.{name}", value)
            leaves[name] = torch.tensor(value if value.dtype.kind == "i" else value.astype("f8"),
                                        requires_grad=value.dtype.kind == "f")
        out = fn(*leaves.values())
        cotangent = normal(f"{case}.cotangent", *out.shape)
        out.backward(torch.tensor(cotangent.astype("f8")))
        self.put(f"{case}.out", out)
        self.put(f"{case}.cotangent", cotangent)
        for name, leaf in leaves.items():
            if leaf.requires_grad:
                self.put(f"{case}.grad.{name}", leaf.grad)


def generator(key):
    """A generator seeded by a name, so that a new case changes no other."""
    return np.random.Generator(np.random.PCG64(zlib.crc32(key.encode())))


def normal(key, *shape, scale=1.0, mean=0.0):
    """f32 normals. A 0-d shape gives a 0-d array."""
    return np.asarray(generator(key).normal(mean, scale, shape), "f4")


def integers(key, high, *shape):
    """i64 uniform in [0, high)."""
    return generator(key).integers(0, high, shape, "i8")
