#!/usr/bin/env python3
"""Writes tests/golden/huggingface: tiny models as transformers saves them, with random weights, and what it computes.

Usage: make_huggingface.py    (needs torch, transformers and numpy; torch 2.15 and transformers 5.23 made the committed files)

Each `<model>/` is a directory as on the Hub. `<model>.safetensors` holds, computed by transformers' model in f64 from the
weights as stored: `in.tokens` and `in.targets` [B, T], `out.logits` [B, T, V], and `out.losses` [20], the losses that 20 steps
of torch.optim.AdamW see on that batch; attributes are under the model's name.
"""
import pathlib
import shutil

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import load_file, save_file

from case import File, integers, normal
from safetensors_format import save

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "tests" / "golden" / "huggingface"
TRAINING = {"steps": 20, "lr": 3e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
BATCH, VOCABULARY = 3, 67

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


def main():
    shutil.rmtree(FOLDER, ignore_errors=True)
    for name, (config, dtype, file_size) in MODELS.items():
        model = transformers.AutoModelForCausalLM.from_config(config)
        draw(name, model)
        folder = FOLDER / name
        model.to(dtype).save_pretrained(folder, max_shard_size=file_size)
        (folder / "generation_config.json").unlink()
        if name == "gpt2_old":
            make_old(folder)

        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager")
        length = 14
        tokens, targets = (torch.tensor(integers(f"{name}.{what}", VOCABULARY, BATCH, length))
                           for what in ("tokens", "targets"))
        file = File(__doc__.splitlines()[0])
        file.attributes(name, **TRAINING)
        file.put("in.tokens", tokens)
        file.put("in.targets", targets)
        file.put("out.logits", model(tokens).logits)
        file.put("out.losses", train(model, tokens, targets))
        save(FOLDER / f"{name}.safetensors", file.tensors, file.metadata)
        for path in folder.iterdir():
            path.chmod(0o644)
        print(name, sum(path.stat().st_size for path in folder.iterdir()), "bytes,", len(list(folder.iterdir())), "files")


if __name__ == "__main__":
    main()
