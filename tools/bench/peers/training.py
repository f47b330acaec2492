"""A step as a user of PyTorch would write it for one device: fused AdamW, in f32 or by one of two ways to compute in bf16.

"autocast" keeps f32 weights and casts at each product. "bf16" is FSDP2's MixedPrecisionPolicy(param_dtype=bfloat16,
reduce_dtype=float32) without the collectives: parameters, norms, the residual stream and gradients are bf16, the loss is
taken of f32 logits, and f32 masters take the optimizer's step from gradients widened to f32. Buffers stay as they are.
"""

import torch

from llama import LLAMAS, Llama
from model import MODELS, LanguageModel

# layers, heads, width, tokens, batch, vocabulary; as in tools/configs/bench
GPTS = {**MODELS, "gpt124m": (12, 12, 768, 256, 4, 50257)}
ADAMW = dict(lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)


def make_model(name):
    """The model in f32, its batch, tokens and vocabulary."""
    if name in LLAMAS:
        *shape, tokens, batch, vocabulary = LLAMAS[name]
        return Llama(*shape, tokens, vocabulary), batch, tokens, vocabulary
    layers, heads, width, tokens, batch, vocabulary = GPTS[name]
    return LanguageModel(layers, heads, width, tokens, vocabulary), batch, tokens, vocabulary


def make_batch(batch, tokens, vocabulary, rank=0):
    """Random tokens and targets [batch, tokens], other ones on every rank."""
    text = torch.randint(vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(2 + rank))
    return text[:, :-1].contiguous(), text[:, 1:].contiguous()


class Training:
    """`compiled` wraps the model's forward; the loss of step() stays on the device."""

    def __init__(self, model, dtype, compiled=lambda model: model):
        self.parameters = list(model.parameters())
        self.masters = self.parameters
        self.autocast = torch.autocast(self.parameters[0].device.type, torch.bfloat16, enabled=dtype == "autocast")
        if dtype == "bf16":
            self.masters = [p.detach().clone() for p in self.parameters]
            for p in self.parameters:
                p.data = p.data.bfloat16()
        self.optimizer = torch.optim.AdamW(self.masters, **ADAMW, fused=True)
        self.net = compiled(model)

    def step(self, tokens, targets):
        with self.autocast:
            loss = self.net(tokens, targets)
        loss.backward()
        if self.masters is not self.parameters:
            self.widen_gradients()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if self.masters is not self.parameters:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, self.masters)
        return loss.detach()

    def widen_gradients(self):
        wide = [torch.empty_like(master) for master in self.masters]
        torch._foreach_copy_(wide, [p.grad for p in self.parameters])
        for p, master, gradient in zip(self.parameters, self.masters, wide):
            p.grad, master.grad = None, gradient
