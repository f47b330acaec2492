#!/usr/bin/env python3
"""Writes tests/golden/*.safetensors: what the library must compute, by PyTorch's autograd in f64.

Usage: make_golden.py            writes the files (in the environment of `tools/setup --python`)
       make_golden.py --check    recomputes and compares with the committed files
"""
import pathlib
import sys

import numpy as np

import einsums
import fused
import indexed
import models
import optim
import safetensors_format

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden"


def all_files():
    return {"norm": fused.norms(), "softmax": fused.softmaxes(), "activation": fused.activations(),
            "attention": fused.attentions(), "loss": fused.losses(), "product": fused.products(), "indexed": indexed.indexed(),
            "einsum": einsums.einsums(), "optim": optim.optimizers(), **models.models()}


def differences(file, path):
    """Yields the keys in which the committed file at `path` is not what `file` computes."""
    tensors, metadata = safetensors_format.load(path)
    if metadata != file.metadata:
        yield "metadata"
    for key in sorted(tensors.keys() | file.tensors.keys()):
        a, b = tensors.get(key), file.tensors.get(key)
        if a is None or b is None or a.shape != b.shape or not np.allclose(a, b, rtol=1e-6, atol=1e-7):
            yield key


def main():
    files, wrong = all_files(), 0
    for name, file in files.items():
        path = FOLDER / f"{name}.safetensors"
        if "--check" in sys.argv[1:]:
            found = list(differences(file, path))
            wrong += len(found)
            print(f"{path.name}: {'same' if not found else 'differs in ' + ', '.join(found)}")
        else:
            safetensors_format.save(path, file.tensors, file.metadata)
            print(f"{path.name}: {len(file.tensors)} tensors, {path.stat().st_size} bytes")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
