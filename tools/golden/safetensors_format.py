"""Writes and reads .safetensors files: 8 bytes of header length, a JSON header, the tensors' bytes.

Format: https://github.com/huggingface/safetensors (README, section "Format"). Only F32 and I64 are used here.
"""
import json
import struct

import numpy as np

NAMES = {np.dtype("<f4"): "F32", np.dtype("<i8"): "I64"}
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def save(path, tensors, metadata):
    """Writes `tensors` (name -> f32 or i64 array) in the order of the names, and `metadata` (str -> str)."""
    header, offset = {"__metadata__": metadata}, 0
    arrays = {name: np.asarray(array) for name, array in sorted(tensors.items())}
    for name, array in arrays.items():
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape),
                        "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-len(text) % 8)  # the tensors start at a multiple of 8
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for array in arrays.values():
            file.write(array.tobytes())


def load(path):
    """Returns (tensors, metadata) as save() takes them."""
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header, data = json.loads(file.read(size)), file.read()
    metadata, tensors = header.pop("__metadata__"), {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = np.frombuffer(data[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors, metadata
