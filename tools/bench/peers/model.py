"""The benchmark's language models in plain PyTorch: learned positions, pre-norm blocks, tanh GELU, tied head, biases.

Letters: B sequences, T tokens, D width, H heads, K = D / H.
"""

import torch
import torch.nn.functional as F
from torch import nn

# name: layers, heads, width, tokens, batch, vocabulary; as in tools/configs/bench
MODELS = {
    "tiny": (1, 2, 16, 8, 2, 17),
    "mini": (4, 4, 128, 64, 12, 65),
    "bigger": (6, 6, 384, 256, 8, 256),
}


class SelfAttention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x):  # [B, T, D]
        batch, tokens, width = x.shape
        projected = self.project(x).view(batch, tokens, 3, self.heads, width // self.heads)
        q, k, v = projected.permute(2, 0, 3, 1, 4).unbind(0)  # [B, H, T, K] each
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.output(y.transpose(1, 2).reshape(batch, tokens, width))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = SelfAttention(width, heads)
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
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        for weight in self.parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        logits = F.linear(self.norm(self.blocks(x)), self.token.weight)
        return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
