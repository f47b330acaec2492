"""Losses from a given start. usage: loss.py MODEL f32|bf16 FOLDER

FOLDER/start.safetensors, which ../step_works.cpp wrote, holds the weights under Sherd's names and the batches. Any
request trains on all of them and answers the loss of each step. On the GPU if there is one.
"""

import json
import mmap
import re
import struct
import sys
import time

import torch

from side import serve
from training import Training, make_model

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {"F32": torch.float32, "I32": torch.int32}  # 4 bytes each

# A module of ours: those of Sherd whose tensors, one below the other, are its own.
NAMES = {
    "LanguageModel": {"token": ["tok"], "position": ["pos"], "norm": ["norm"], "attention_norm": ["attn_norm"],
                      "mlp_norm": ["mlp_norm"], "attention.project": ["attn.wq", "attn.wk", "attn.wv"],
                      "attention.output": ["attn.wo"], "up": ["mlp.up"], "down": ["mlp.down"]},
    "Llama": {"token": ["tok"], "norm": ["norm"], "head": ["head"], "attention_norm": ["attn_norm"],
              "mlp_norm": ["mlp_norm"], "qkv": ["attn.wq", "attn.wk", "attn.wv"], "out": ["attn.wo"],
              "gate_up": ["mlp.w1", "mlp.w3"], "down": ["mlp.w2"]},
}


def read(path):
    """name -> tensor over the mapped file."""
    with open(path, "rb") as file:
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    size, = struct.unpack("<Q", data[:8])
    tensors = {}
    for name, entry in json.loads(data[8:8 + size]).items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        flat = torch.frombuffer(data, dtype=DTYPES[entry["dtype"]], count=(end - begin) // 4, offset=8 + size + begin)
        tensors[name] = flat.view(entry["shape"])
    return tensors


def load(model, tensors):
    """Fills the model; every tensor must have its place."""
    names, unused = NAMES[type(model).__name__], set(tensors)
    for name, parameter in model.named_parameters():
        block, module, kind = re.fullmatch(r"(blocks\.\d+\.)?(.*)\.(weight|bias)", name).groups()
        parts = [f"{block or ''}{part}.{kind}" for part in names[module]]
        unused -= set(parts)
        with torch.no_grad():
            parameter.copy_(torch.cat([tensors[part] for part in parts]))
    if unused:
        sys.exit(f"the model has no place for {', '.join(sorted(unused))}")


def main():
    name, dtype, folder = sys.argv[1:]
    tensors = read(folder + "/start.safetensors")
    text = tensors.pop("batches").long()  # [steps, B, T + 1]
    model = make_model(name)[0]
    load(model, tensors)
    training = Training(model.to(DEVICE), dtype)

    def run(_):
        start = time.perf_counter()
        losses = []
        for batch in text:
            batch = batch.to(DEVICE)
            losses.append(training.step(batch[:, :-1].contiguous(), batch[:, 1:].contiguous()))
        losses = [loss.item() for loss in losses]
        return {"seconds": [(time.perf_counter() - start) / len(losses)], "losses": losses}

    serve(run)


main()
