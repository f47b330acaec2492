"""Two tiny language models as whole-state goldens: weights, logits, loss, every gradient, ten losses of training.

Written from the papers' formulas in f64, without torch.nn, and with the library's parameter names. Keys:
`<case>.in.<parameter>`, `<case>.in.tokens` and `.targets` [B, T], `<case>.out.logits` [B, T, V], `<case>.out.loss`,
`<case>.grad.<parameter>`, `<case>.out.losses` and `.norms` [10]: loss and gradient norm (before clipping) seen by each
of ten AdamW steps on the one batch.
"""
import torch
import torch.nn.functional as F

from case import File, integers, normal
from fused import attention, rms_norm, rope

TRAINING = {"steps": 10, "lr": 1e-2, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0}
COMMON = {"vocabulary": 11, "layers": 2, "width": 16, "block": 8, "norm_eps": 1e-5, "batch": 3}


def split_heads(x, heads):
    """[B, T, heads * K] -> [B, heads, T, K]."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def self_attention(p, prefix, x, heads, kv_heads, rotate):
    """Causal attention of x [B, T, C]; `rotate` is applied to queries and keys."""
    q, k, v = (split_heads(F.linear(x, p[f"{prefix}.{w}.weight"], p.get(f"{prefix}.{w}.bias")), count)
               for w, count in (("wq", heads), ("wk", kv_heads), ("wv", kv_heads)))
    y = attention(rotate(q), rotate(k), v, causal=True).transpose(1, 2).flatten(-2)
    return F.linear(y, p[f"{prefix}.wo.weight"], p.get(f"{prefix}.wo.bias"))


def gpt2(p, tokens, config):
    """Pre-norm blocks, learned positions, erf GELU, head tied to the token table; biases where `p` has them."""
    def norm(x, name):
        return F.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p.get(f"{name}.bias"), config["norm_eps"])

    heads = config["heads"]
    x = p["tok.weight"][tokens] + p["pos.weight"][: tokens.shape[1]]
    for i in range(config["layers"]):
        block = f"blocks.{i}"
        x = x + self_attention(p, f"{block}.attn", norm(x, f"{block}.attn_norm"), heads, heads, lambda t: t)
        h = F.linear(norm(x, f"{block}.mlp_norm"), p[f"{block}.mlp.up.weight"], p.get(f"{block}.mlp.up.bias"))
        x = x + F.linear(F.gelu(h), p[f"{block}.mlp.down.weight"], p.get(f"{block}.mlp.down.bias"))
    return F.linear(norm(x, "norm"), p["tok.weight"])


def llama(p, tokens, config):
    """RMSNorm, rotary positions, grouped queries, SwiGLU (w1 gate, w3 up, w2 down), a head of its own."""
    def norm(x, name):
        return rms_norm(x, p[f"{name}.weight"], config["norm_eps"])

    heads, kv_heads = config["heads"], config["kv_heads"]
    x = p["tok.weight"][tokens]
    for i in range(config["layers"]):
        block = f"blocks.{i}"
        x = x + self_attention(p, f"{block}.attn", norm(x, f"{block}.attn_norm"), heads, kv_heads,
                               lambda t: rope(t, config["theta"]))
        h, w = norm(x, f"{block}.mlp_norm"), {name: p[f"{block}.mlp.{name}.weight"] for name in ("w1", "w2", "w3")}
        x = x + F.linear(F.silu(F.linear(h, w["w1"])) * F.linear(h, w["w3"]), w["w2"])
    return F.linear(norm(x, "norm"), p["head.weight"])


def gpt2_shapes(config, bias):
    C = config["width"]
    shapes = {"tok.weight": (config["vocabulary"], C), "pos.weight": (config["block"], C)}
    affine = {"norm": (C,)}
    for i in range(config["layers"]):
        affine.update({f"blocks.{i}.attn_norm": (C,), f"blocks.{i}.mlp_norm": (C,)})
        affine.update({f"blocks.{i}.attn.{w}": (C, C) for w in ("wq", "wk", "wv", "wo")})
        affine.update({f"blocks.{i}.mlp.up": (4 * C, C), f"blocks.{i}.mlp.down": (C, 4 * C)})
    for name, shape in affine.items():
        shapes[f"{name}.weight"] = shape
        if bias:
            shapes[f"{name}.bias"] = shape[:1]
    return shapes


def llama_shapes(config):
    C, V, hidden = config["width"], config["vocabulary"], config["hidden"]
    kv = C // config["heads"] * config["kv_heads"]
    shapes = {"tok.weight": (V, C), "norm.weight": (C,), "head.weight": (V, C)}
    for i in range(config["layers"]):
        block = f"blocks.{i}"
        shapes.update({f"{block}.attn_norm.weight": (C,), f"{block}.mlp_norm.weight": (C,),
                       f"{block}.attn.wq.weight": (C, C), f"{block}.attn.wk.weight": (kv, C),
                       f"{block}.attn.wv.weight": (kv, C), f"{block}.attn.wo.weight": (C, C),
                       f"{block}.mlp.w1.weight": (hidden, C), f"{block}.mlp.w3.weight": (hidden, C),
                       f"{block}.mlp.w2.weight": (C, hidden)})
    return shapes


def draw(case, name, shape):
    """Weights large enough that every path matters to the loss."""
    if len(shape) == 2:
        return normal(f"{case}.{name}", *shape, scale=0.25)
    return normal(f"{case}.{name}", *shape, scale=0.1, mean=1.0 if name.endswith("weight") else 0.0)


def train(parameters, loss_of):
    """Ten AdamW steps, decay on matrices only, clipped; returns the losses and gradient norms they saw."""
    matrices = [p for p in parameters if p.dim() >= 2]
    vectors = [p for p in parameters if p.dim() < 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": TRAINING["weight_decay"]},
                                   {"params": vectors, "weight_decay": 0.0}], lr=TRAINING["lr"],
                                  betas=(TRAINING["beta1"], TRAINING["beta2"]), eps=TRAINING["eps"])
    losses, norms = [], []
    for _ in range(TRAINING["steps"]):
        optimizer.zero_grad()
        loss = loss_of()
        loss.backward()
        norms.append(float(torch.nn.utils.clip_grad_norm_(parameters, TRAINING["clip"])))
        losses.append(loss.item())
        optimizer.step()
    return losses, norms


def model(case, forward, shapes, config):
    file = File(__doc__.splitlines()[0])
    file.attributes(case, **config, **TRAINING)
    parameters = {}
    for name, shape in shapes.items():
        start = draw(case, name, shape)
        file.put(f"{case}.in.{name}", start)
        parameters[name] = torch.tensor(start.astype("f8"), requires_grad=True)
    tokens, targets = (torch.tensor(integers(f"{case}.{name}", config["vocabulary"], config["batch"], config["block"]))
                       for name in ("tokens", "targets"))
    file.put(f"{case}.in.tokens", tokens)
    file.put(f"{case}.in.targets", targets)

    logits = forward(parameters, tokens, config)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
    loss.backward()
    file.put(f"{case}.out.logits", logits)
    file.put(f"{case}.out.loss", loss)
    for name, parameter in parameters.items():
        file.put(f"{case}.grad.{name}", parameter.grad)
    losses, norms = train(list(parameters.values()), lambda: F.cross_entropy(
        forward(parameters, tokens, config).flatten(0, 1), targets.flatten()))
    file.put(f"{case}.out.losses", losses)
    file.put(f"{case}.out.norms", norms)
    return file


def models():
    """File name -> File."""
    gpt2_config = {**COMMON, "heads": 2}
    llama_config = {**COMMON, "heads": 4, "kv_heads": 2, "hidden": 24, "theta": 10000.0}
    return {
        "gpt2": model("gpt2", gpt2, gpt2_shapes(gpt2_config, True), {**gpt2_config, "bias": True}),
        "gpt2_no_bias": model("gpt2_no_bias", gpt2, gpt2_shapes(gpt2_config, False), {**gpt2_config, "bias": False}),
        "llama": model("llama", llama, llama_shapes(llama_config), llama_config),
    }
