"""The benchmark's Llamas in plain PyTorch: rotary positions, RMS norm, grouped queries, SwiGLU, a head of their own.

Letters: B sequences, T tokens, D width, H heads, K = D / H. One product for q, k, v and one for gate and up.
"""

import torch
import torch.nn.functional as F
from torch import nn

# name: layers, heads, key heads, width, feed-forward width, tokens, batch, vocabulary; as in tools/configs/bench
LLAMAS = {"llama1b": (16, 16, 4, 2048, 8192, 4096, 4, 128256), "tiny_llama": (1, 2, 1, 16, 32, 8, 2, 17)}


class RmsNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return F.rms_norm(x, (x.shape[-1],), self.weight, 1e-5)


class LlamaBlock(nn.Module):
    def __init__(self, heads, kv_heads, width, hidden):
        super().__init__()
        self.heads, self.kv_heads, self.head = heads, kv_heads, width // heads
        self.attention_norm, self.mlp_norm = RmsNorm(width), RmsNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * kv_heads) * self.head, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x, cos, sin):  # x [B, T, D]
        batch, tokens, _ = x.shape
        packed = self.qkv(self.attention_norm(x)).view(batch, tokens, -1, self.head).transpose(1, 2)
        q, k, v = packed.split((self.heads, self.kv_heads, self.kv_heads), dim=1)

        def turn(y):  # in f32, rounded once
            a, b = y.chunk(2, -1)
            return torch.cat((a * cos - b * sin, b * cos + a * sin), -1).to(v.dtype)

        q, k = turn(q), turn(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, tokens, -1))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self, layers, heads, kv_heads, width, hidden, tokens, vocabulary):
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(LlamaBlock(heads, kv_heads, width, hidden) for _ in range(layers))
        self.norm = RmsNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        half = width // heads // 2
        angle = torch.arange(tokens)[:, None] / 500000.0 ** (torch.arange(half) / half)
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1).float(), targets.flatten())
