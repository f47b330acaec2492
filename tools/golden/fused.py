"""Goldens of the rows that PyTorch has too, written as plain formulas in f64.

Letters: B batch, H heads, T positions, K head width, C model width, V vocabulary.
"""
import numpy as np
import torch
import torch.nn.functional as F

from case import File, integers, normal


def shuffled(case, count):
    return np.argsort(normal(f"{case}.order", count))


def rms_norm(x, weight=None, eps=1e-5):
    y = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight


def rope(x, theta=10000.0, first_position=0):
    """x [B, H, T, K]. Llama's half rotation: the pair (i, i + K/2) turns by (first_position + t) * theta^(-2i/K)."""
    T, K = x.shape[-2:]
    positions = torch.arange(first_position, first_position + T, dtype=torch.float64)
    angle = positions[:, None] * theta ** (-torch.arange(0, K, 2, dtype=torch.float64) / K)  # [T, K/2]
    x1, x2 = x[..., : K // 2], x[..., K // 2:]
    return torch.cat([x1 * angle.cos() - x2 * angle.sin(), x2 * angle.cos() + x1 * angle.sin()], -1)


def attention(q, k, v, causal):
    """q [B, H, Tq, K], k and v [B, Hkv, Tk, K] with Hkv | H: query head h reads key head h / (H / Hkv).

    Causal: query i sees keys up to i + Tk - Tq.
    """
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
    if causal:
        Tq, Tk = scores.shape[-2:]
        scores = scores.masked_fill(torch.ones(Tq, Tk, dtype=torch.bool).triu(1 + Tk - Tq), -torch.inf)
    return torch.softmax(scores, -1) @ v


def norms():
    file = File("layer_norm(x, weight?, bias?), rms_norm(x, weight?) over the last dim")

    def add(case, fn, *shape, names=(), **draw):
        inputs = {"x": normal(case, *shape, **draw)}
        for name in names:
            inputs[name] = normal(f"{case}.{name}", shape[-1], scale=0.5, mean=1.0 if name == "weight" else 0.0)
        file.add(case, fn, inputs, eps=1e-5)

    def layer_norm(x, weight=None, bias=None):
        return F.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)

    add("layer_norm", layer_norm, 3, 5, 16, names=("weight", "bias"))
    add("layer_norm_no_bias", layer_norm, 4, 33, names=("weight",))
    add("layer_norm_plain", layer_norm, 2, 3, 2, 7)
    add("layer_norm_offset", layer_norm, 6, 65, names=("weight", "bias"), mean=10.0)
    add("layer_norm_wide", layer_norm, 2, 515, names=("weight", "bias"))
    add("rms_norm", rms_norm, 3, 5, 16, names=("weight",))
    add("rms_norm_odd", rms_norm, 4, 33, names=("weight",), scale=5.0)
    add("rms_norm_plain", rms_norm, 2, 3, 2, 7)
    add("rms_norm_wide", rms_norm, 2, 515, names=("weight",))
    return file


def softmaxes():
    file = File("softmax(x, dim), log_softmax(x, dim)")
    for name, fn in (("softmax", torch.softmax), ("log_softmax", torch.log_softmax)):
        for suffix, shape, dim, scale in (("last", (3, 5, 17), -1, 1), ("first", (4, 3), 0, 1), ("one", (4, 1), -1, 1),
                                          ("middle", (2, 9, 4), 1, 1), ("vector", (33,), 0, 1),
                                          ("large", (5, 40), -1, 30)):
            case = f"{name}_{suffix}"
            file.add(case, lambda x, fn=fn, dim=dim: fn(x, dim), {"x": normal(case, *shape, scale=scale)}, dim=dim)
    return file


def activations():
    file = File("gelu erf and tanh, silu(x), swiglu(gate, up) = silu(gate) * up; `_grid` runs from -12 to 12")
    grid = np.linspace(-12, 12, 97, dtype="f4")
    unary = {"gelu_erf": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}
    for name, fn in unary.items():
        file.add(name, fn, {"x": normal(name, 5, 7, scale=2.0)})
        file.add(f"{name}_grid", fn, {"x": grid})
    for case, gate in (("swiglu", normal("swiglu.gate", 2, 3, 24, scale=2.0)), ("swiglu_grid", grid)):
        file.add(case, lambda gate, up: F.silu(gate) * up, {"gate": gate, "up": normal(f"{case}.up", *gate.shape)})
    return file


def attentions():
    file = File("scaled_dot_product_attention(q, k, v): q [B,H,Tq,K], k v [B,Hkv,Tk,K], scale 1/sqrt(K); causal: "
                "query i sees keys up to i + Tk - Tq. "
                "rope(x [B,H,T,K]): half rotation [x1*cos - x2*sin, x2*cos + x1*sin], angle "
                "(first_position + t) * theta^(-2i/K)")
    #          B, H, Hkv, Tq, Tk, K
    shapes = [(2, 2, 2, 1, 1, 8), (2, 2, 2, 7, 7, 8), (1, 4, 2, 33, 33, 8), (1, 4, 1, 65, 65, 4), (1, 3, 3, 7, 7, 5)]
    for B, H, Hkv, Tq, Tk, K in shapes + [(2, 2, 1, 7, 33, 8)]:
        for causal in (True, False):
            case = f"sdpa_{'causal' if causal else 'full'}_h{H}_kv{Hkv}_q{Tq}_k{Tk}_w{K}"
            file.add(case, lambda q, k, v, causal=causal: attention(q, k, v, causal),
                     {"q": normal(f"{case}.q", B, H, Tq, K), "k": normal(f"{case}.k", B, Hkv, Tk, K),
                      "v": normal(f"{case}.v", B, Hkv, Tk, K)}, causal=causal)
    for case, shape, start in (("rope", (2, 3, 7, 8), 0), ("rope_one", (1, 2, 1, 4), 0), ("rope_at", (1, 2, 5, 16), 9)):
        file.add(case, lambda x, start=start: rope(x, first_position=start), {"x": normal(case, *shape)},
                 theta=10000.0, first_position=start)
    return file


def losses():
    file = File("cross_entropy(logits [N,V], targets [N]): mean over targets that are not ignore_index; "
                "linear_cross_entropy(x [N,C], weight [V,C], targets): the same of x weight^T")

    def targets_of(case, N, V, kept):
        targets = integers(f"{case}.targets", V, N)
        targets[kept:] = -100
        return targets[shuffled(case, N)]

    for case, N, V, kept, scale in (("cross_entropy", 6, 11, 6, 1), ("cross_entropy_ignore", 13, 7, 8, 1),
                                    ("cross_entropy_one_left", 9, 5, 1, 1), ("cross_entropy_large", 5, 33, 5, 40)):
        file.add(case, lambda logits, targets: F.cross_entropy(logits, targets),
                 {"logits": normal(case, N, V, scale=scale), "targets": targets_of(case, N, V, kept)},
                 ignore_index=-100)
    for case, N, V, C, kept in (("linear_cross_entropy", 13, 37, 8, 13),
                                ("linear_cross_entropy_ignore", 33, 10, 6, 20)):
        file.add(case, lambda x, weight, targets: F.cross_entropy(x @ weight.T, targets),
                 {"x": normal(f"{case}.x", N, C), "weight": normal(f"{case}.weight", V, C),
                  "targets": targets_of(case, N, V, kept)}, ignore_index=-100)
    return file


def products():
    file = File("linear(x, weight [out,in], bias?), matmul(a, b), embedding(table [V,C], ids)")
    file.add("linear", F.linear, {"x": normal("linear.x", 2, 5, 7), "weight": normal("linear.w", 3, 7),
                                  "bias": normal("linear.b", 3)})
    file.add("linear_no_bias", F.linear, {"x": normal("linear_no_bias.x", 9, 33),
                                          "weight": normal("linear_no_bias.w", 17, 33)})
    for case, a, b in (("matmul", (5, 33), (33, 9)), ("matmul_batched", (3, 5, 7), (3, 7, 4)),
                       ("matmul_broadcast", (2, 1, 4, 6), (3, 6, 5)), ("matmul_one", (1, 1), (1, 1))):
        file.add(case, torch.matmul, {"a": normal(f"{case}.a", *a), "b": normal(f"{case}.b", *b)})
    ids = np.array([[3, 0, 3, 9], [3, 1, 0, 9]], "i8")
    file.add("embedding", lambda table, ids: F.embedding(ids, table),
             {"table": normal("embedding.table", 10, 6), "ids": ids})
    return file
