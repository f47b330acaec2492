"""A step as a user of PyTorch would write it for one device: AdamW, in f32 or with FSDP2's mixed precision.

That is MixedPrecisionPolicy(param_dtype=bfloat16, reduce_dtype=float32) without the collectives: parameters, norms,
the residual stream and gradients are bf16, the loss is taken of f32 logits, and f32 masters take the optimizer's step
from gradients widened to f32. Buffers stay as they are.
"""

import torch

from llama import LLAMAS, Llama
from model import MODELS, LanguageModel

# layers, heads, width, tokens, batch, vocabulary; the same rows as tools/bench/models.cpp
GPTS = {**MODELS, "gpt124m": (12, 12, 768, 256, 4, 50257)}
ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def make_model(name):
    """The model in f32, its batch, tokens and vocabulary."""
    if name in LLAMAS:
        *shape, tokens, batch, vocabulary = LLAMAS[name]
        return Llama(*shape, tokens, vocabulary), batch, tokens, vocabulary
    layers, heads, width, tokens, batch, vocabulary = GPTS[name]
    return LanguageModel(layers, heads, width, tokens, vocabulary), batch, tokens, vocabulary


class Training:
    """`compiled` wraps the model's forward; the loss of step() stays on the device."""

    def __init__(self, model, dtype, compiled=lambda model: model):
        self.parameters = list(model.parameters())
        self.masters = self.parameters
        if dtype == "bf16":
            self.masters = [p.detach().clone() for p in self.parameters]
            for p in self.parameters:
                p.data = p.data.bfloat16()
        fused = {"fused": True} if self.parameters[0].is_cuda else {}
        self.optimizer = torch.optim.AdamW(self.masters, **ADAMW, **fused)
        self.net = compiled(model)

    def step(self, tokens, targets):
        loss = self.net(tokens, targets)
        loss.backward()
        if self.masters is not self.parameters:
            self.widen_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters is not self.parameters:
            with torch.no_grad():
                copy_all(self.parameters, self.masters)
        return loss.detach()

    def widen_gradients(self):
        wide = [torch.empty_like(master) for master in self.masters]
        copy_all(wide, [p.grad for p in self.parameters])
        for p, master, gradient in zip(self.parameters, self.masters, wide):
            p.grad, master.grad = None, gradient


def copy_all(to, source):
    """In few launches where this torch has a call for it."""
    if hasattr(torch, "_foreach_copy_"):
        torch._foreach_copy_(to, source)
    else:
        for a, b in zip(to, source):
            a.copy_(b)
