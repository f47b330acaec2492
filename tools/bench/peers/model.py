"""The benchmark's language models in plain PyTorch: learned positions, pre-norm blocks, tanh GELU, tied head, biases.

Letters: B sequences, T tokens, D width, H heads, K = D / H.
"""

import torch
import torch.nn.functional as F
from torch import nn

# name: layers, heads, width, tokens, batch, vocabulary; the same rows as tools/bench/models.cpp
MODELS = {
    "tiny": (1, 2, 16, 8, 2, 17),
    "mini": (4, 4, 128, 64, 12, 65),
    "bigger": (6, 6, 384, 256, 8, 256),
}


class SelfAttention(nn.Module):
    def __init__(self, width, heads, tokens):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)
        self.register_buffer("future", torch.full((tokens, tokens), float("-inf")).triu(1), persistent=False)

    def forward(self, x):  # [B, T, D]
        batch, tokens, width = x.shape
        projected = self.project(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = projected.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, K] each
        if hasattr(F, "scaled_dot_product_attention"):  # torch 2
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            scores = q @ k.transpose(2, 3) * q.shape[-1] ** -0.5 + self.future[:tokens, :tokens]
            y = scores.softmax(dim=-1).to(v.dtype) @ v
        return self.output(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads, tokens):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads, tokens)
        self.mlp_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x):
        x = x + self.attention(self.attention_norm(x))
        return x + self.down(F.gelu(self.up(self.mlp_norm(x)), approximate="tanh"))


class LanguageModel(nn.Module):
    def __init__(self, layers, heads, width, tokens, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(tokens, width)
        self.blocks = nn.Sequential(*(Block(width, heads, tokens) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        logits = F.linear(self.norm(self.blocks(x)), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())


class Training:
    """One model, one batch of random text, AdamW; step() is a whole training step and returns the loss."""

    def __init__(self, name, dtype="f32", rank=0, wrap=lambda model: model):
        layers, heads, width, tokens, batch, vocabulary = MODELS[name]
        torch.manual_seed(1)
        self.model = LanguageModel(layers, heads, width, tokens, vocabulary)
        self.net = wrap(self.model)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1)
        text = torch.randint(vocabulary, (batch, tokens + 1), generator=torch.Generator().manual_seed(2 + rank))
        self.tokens, self.targets = text[:, :-1].contiguous(), text[:, 1:].contiguous()
        self.autocast = dtype == "bf16"

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = self.net(self.tokens, self.targets)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_bytes(self):
        """What lives between steps, and with the gradients: {"persistent": ..., "peak": ...}."""
        parameters = list(self.model.parameters())
        moments = [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        count = lambda tensors: sum(t.numel() * t.element_size() for t in tensors)
        persistent = count(parameters) + count(moments)
        return {"persistent": persistent, "peak": persistent + count(p.grad for p in parameters if p.grad is not None)}
