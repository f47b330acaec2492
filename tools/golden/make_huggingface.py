#!/usr/bin/env python3
"""Writes tests/golden/huggingface: tiny models as transformers saves them, with random weights, and what it computes.

Usage: make_huggingface.py            writes the files (in the environment of `tools/setup --python`, which made the committed ones)
       make_huggingface.py --check    makes them in another folder and compares with the committed ones

Each `<model>/` is a directory as on the Hub. `<model>.safetensors` holds, computed by transformers' model in f64 from the
weights as stored: `in.tokens` and `in.targets` [B, T], `out.logits` [B, T, V], and `out.losses` [20], the losses that 20 steps
of torch.optim.AdamW see on that batch; attributes are under the model's name.
"""
import json
import pathlib
import shutil
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from case import File, integers, normal
from safetensors_format import load, save

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "huggingface"
TRAINING = {"steps": 20, "lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
BATCH, VOCABULARY = 3, 67
# In an f64 model too transformers takes rotary angles, RMS norms and softmax in f32, whose rounding differs between CPUs:
# by 1.5e-6 in logits of Llamas between an Intel and an AMD. The tests ask for 1e-5.
ROUNDING = 5e-6

GPT2 = dict(vocab_size=VOCABULARY, n_positions=16, n_embd=24, n_layer=2, n_head=3, attn_pdrop=0.0, embd_pdrop=0.0,
            resid_pdrop=0.0, bos_token_id=0, eos_token_id=0)
LLAMA = dict(vocab_size=VOCABULARY, hidden_size=24, intermediate_size=40, num_hidden_layers=2, num_attention_heads=6,
             num_key_value_heads=2, max_position_embeddings=32, bos_token_id=0, eos_token_id=0)

# name: config, dtype of the files, size of one file
MODELS = {
    "gpt2": (transformers.GPT2Config(**GPT2), torch.float32, "1GB"),
    # Named as by the first releases: no prefix, the causal masks stored, a tied head stored too.
    "gpt2_old": (transformers.GPT2Config(**GPT2, n_inner=40, activation_function="gelu", layer_norm_epsilon=1e-4),
                 torch.float16, "1GB"),
    "llama": (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False, rms_norm_eps=1e-4,
                                       rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
              torch.float32, "24KB"),
    # The same model as transformers 4 writes its config.
    "llama_4": (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=False, rms_norm_eps=1e-4,
                                         rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
                torch.bfloat16, "1GB"),
    "llama_tied": (transformers.LlamaConfig(**LLAMA, tie_word_embeddings=True), torch.bfloat16, "1GB"),
}


def draw(name, model):
    """Weights large enough that every path matters to the loss."""
    with torch.no_grad():
        for path, p in model.named_parameters():
            if p.dim() == 2:
                values = normal(f"{name}.{path}", *p.shape, scale=0.25)
            else:
                values = normal(f"{name}.{path}", *p.shape, scale=0.1, mean=1.0 if path.endswith("weight") else 0.0)
            p.copy_(torch.from_numpy(values))


def make_old(folder):
    """What transformers wrote before version 4: see MODELS."""
    path = folder / "model.safetensors"
    tensors = {name.removeprefix("transformer."): t for name, t in load_file(path).items()}
    for layer in range(GPT2["n_layer"]):
        mask = torch.tril(torch.ones(GPT2["n_positions"], GPT2["n_positions"], dtype=torch.uint8))
        tensors[f"h.{layer}.attn.bias"] = mask[None, None]
    tensors["lm_head.weight"] = tensors["wte.weight"].clone()
    save_file(tensors, path, {"format": "pt"})


def make_config_of_4(folder):
    """Rewrites config.json with transformers 4's names of what 5 calls otherwise."""
    path = folder / "config.json"
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config.update(rope_theta=rope["rope_theta"], rope_scaling=None, torch_dtype=config.pop("dtype"),
                  transformers_version="4.44.0")
    path.write_text(json.dumps(dict(sorted(config.items())), indent=2) + "\n")


def train(model, tokens, targets):
    """The loss before each AdamW step; weight decay on matrices only."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": TRAINING["weight_decay"]},
                                   {"params": vectors, "weight_decay": 0.0}], lr=TRAINING["lr"],
                                  betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"])
    losses = []
    for _ in range(TRAINING["steps"]):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).logits.flatten(0, 1), targets.flatten())
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    return losses


def make(name, to):
    """Writes to / name and to / name.safetensors."""
    config, dtype, file_size = MODELS[name]
    model = transformers.AutoModelForCausalLM.from_config(config)
    draw(name, model)
    folder = to / name
    model.to(dtype).save_pretrained(folder, max_shard_size=file_size)
    (folder / "generation_config.json").unlink()
    if name == "gpt2_old":
        make_old(folder)

    # The oracle reads what transformers itself wrote; what is rewritten below only names it otherwise.
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
    if name == "llama_4":
        make_config_of_4(folder)
    length = 14
    tokens, targets = (torch.tensor(integers(f"{name}.{what}", VOCABULARY, BATCH, length))
                       for what in ("tokens", "targets"))
    file = File(__doc__.splitlines()[0])
    file.attributes(name, **TRAINING)
    file.put("in.tokens", tokens)
    file.put("in.targets", targets)
    file.put("out.logits", model(tokens).logits)
    file.put("out.losses", train(model, tokens, targets))
    save(to / f"{name}.safetensors", file.tensors, file.metadata)
    for path in folder.iterdir():
        path.chmod(0o644)


def differences(made, committed):
    """Yields the files of the folder `made` that `committed` has otherwise: in bytes, but for rounding in the oracles."""
    for path in sorted(path for path in made.rglob("*") if path.is_file()):
        name = path.relative_to(made)
        other = committed / name
        if not other.exists():
            yield name
        elif name.parent == pathlib.Path("."):
            (tensors, metadata), (others, other_metadata) = load(path), load(other)
            same = metadata == other_metadata and tensors.keys() == others.keys()
            if not same or not all(np.allclose(tensors[key], others[key], rtol=1e-6, atol=ROUNDING) for key in tensors):
                yield name
        elif path.read_bytes() != other.read_bytes():
            yield name


def main():
    if "--check" in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as scratch:
            made = pathlib.Path(scratch)
            for name in MODELS:
                make(name, made)
            wrong = [str(name) for name in differences(made, FOLDER)]
        print("huggingface: " + ("differs in " + ", ".join(wrong) if wrong else "same"))
        return len(wrong) > 0
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name in MODELS:
        make(name, FOLDER)
        files = list((FOLDER / name).iterdir())
        print(name, sum(path.stat().st_size for path in files), "bytes,", len(files), "files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
