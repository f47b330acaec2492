"""Op calls of PyTorch on a GPU. usage: gpu_ops.py [small]; requests are those of ../gpu_works.cpp.

Sizes and names are those of ../gpu_ops.cpp. Calls are queued together and waited for once; the sample is their mean. Short
calls are recorded into one CUDA graph, as on our side; "how" says so. On a machine without a GPU only `small` works, on the
CPU.
"""

import sys
import time

import torch
import torch.nn.functional as F

from side import serve

SMALL = "small" in sys.argv[1:]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
N, D, FF, V, B, T, H, G, K = (64, 64, 64, 512, 1, 32, 16, 4, 128) if SMALL else (
    16384, 2048, 8192, 128256, 4, 4096, 16, 4, 128)


def normal(*shape, dtype=torch.bfloat16):
    return torch.randn(*shape, device=DEVICE, dtype=torch.float32).to(dtype)


def ids(shape, below):
    return torch.randint(below, shape if isinstance(shape, tuple) else (shape,), device=DEVICE)


def rms_norm(x, w):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), w, 1e-5)
    return (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-5)).to(x.dtype) * w


def cross_entropy(x, y):
    return F.cross_entropy(x if DEVICE == "cuda" else x.float(), y)  # the CPU has no bf16 form


def backward_of(forward, *inputs):
    inputs = [t.requires_grad_() if t.is_floating_point() else t for t in inputs]
    out = forward(*inputs)
    grad = torch.ones_like(out)
    wanted = [t for t in inputs if t.requires_grad]
    return lambda: torch.autograd.grad(out, wanted, grad, retain_graph=True)


def rope():
    x, angle = normal(B, H, T, K), torch.rand(T, K // 2, device=DEVICE)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()

    def turn():
        a, b = x.chunk(2, -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)

    return turn


def adamw():
    p = torch.nn.Parameter(normal(V * D, dtype=torch.float32))
    p.grad = normal(V * D, dtype=torch.float32)
    optimizer = torch.optim.AdamW([p], lr=1e-4, **({"fused": True} if DEVICE == "cuda" else {}))
    return optimizer.step


def attention(backward):
    q, k, v = normal(B, H, T, K), normal(B, G, T, K), normal(B, G, T, K)
    grouped = {"enable_gqa": True}
    if tuple(int(n) for n in torch.__version__.split(".")[:2]) < (2, 5):
        k, v, grouped = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1), {}
    if not hasattr(F, "scaled_dot_product_attention"):
        mask = torch.full((T, T), float("-inf"), device=DEVICE).triu(1).bfloat16()
        call = lambda q, k, v: (q @ k.transpose(2, 3) * K ** -0.5 + mask).softmax(-1) @ v
    else:
        call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)
    return backward_of(call, q, k, v) if backward else lambda: call(q, k, v)


def head():
    x, w, y = normal(N, D).requires_grad_(), normal(V, D).requires_grad_(), ids(N, V)
    return lambda: torch.autograd.grad(F.cross_entropy((x @ w.t()).float(), y), (x, w))


def swiglu(gate, up):
    return F.silu(gate) * up


def with_inputs(call, *inputs):
    return lambda: call(*inputs)


OPS = {
    "add": lambda: with_inputs(torch.add, normal(N, D), normal(N, D)),
    "cast": lambda: with_inputs(lambda x: x.to(torch.bfloat16), normal(N * D, dtype=torch.float32)),
    "transpose": lambda: with_inputs(lambda x: x.transpose(1, 2).contiguous(), normal(B, T, H, K)),
    "sum": lambda: with_inputs(lambda x: x.sum(0), normal(N, D)),
    "rms_norm.forward": lambda: with_inputs(rms_norm, normal(N, D), normal(D)),
    "rms_norm.backward": lambda: backward_of(rms_norm, normal(N, D), normal(D)),
    "layer_norm.forward": lambda: with_inputs(lambda x, w, b: F.layer_norm(x, (D,), w, b), normal(N, D), normal(D), normal(D)),
    "rope": rope,
    "swiglu.forward": lambda: with_inputs(swiglu, normal(N, FF), normal(N, FF)),
    "swiglu.backward": lambda: backward_of(swiglu, normal(N, FF), normal(N, FF)),
    "softmax": lambda: with_inputs(lambda x: x.softmax(1), normal(N, T)),
    "cross_entropy.forward": lambda: with_inputs(cross_entropy, normal(T, V), ids(T, V)),
    "cross_entropy.backward": lambda: backward_of(cross_entropy, normal(T, V), ids(T, V)),
    "head": head,
    "embedding": lambda: with_inputs(lambda table, i: F.embedding(i, table), normal(V, D), ids(N, V)),
    "embedding.backward": lambda: backward_of(lambda table, i: F.embedding(i, table), normal(V, D), ids(N, V)),
    "gather": lambda: with_inputs(lambda x, i: x.gather(1, i), normal(N, T), ids((N, D), T)),
    "scatter_add": lambda: with_inputs(lambda x, i, y: x.scatter_add(1, i, y), normal(T, T), ids((T, D), T), normal(T, D)),
    "topk": lambda: with_inputs(lambda x: x.topk(5 if SMALL else 50), normal(16, V)),
    "var": lambda: with_inputs(lambda x: x.var(1), normal(N, D)),
    "adamw": adamw,
    "power_sum": lambda: with_inputs(lambda g: g.norm(), normal(V * D, dtype=torch.float32)),
    "attention.forward": lambda: attention(False),
    "attention.backward": lambda: attention(True),
}


def product(kind, m, n, k):
    a = normal(k, m).t() if kind[0] == "T" else normal(m, k)
    b = normal(n, k).t() if kind[1] == "T" else normal(k, n)
    return lambda: a @ b


def wait():
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(work):
    wait()
    start = time.perf_counter()
    work()
    wait()
    return time.perf_counter() - start


SHORT_SECONDS = 100e-6  # below this a call is no longer than what the host takes to queue it


def recorded(all_calls):
    """The calls as one CUDA graph, or why there is none."""
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
            all_calls()
        graph.replay()
        return graph, "one graph"
    except RuntimeError as error:
        return None, f"queued one by one: {error}".splitlines()[0]


def measure(request):
    name, *words = request.split()
    calls = int(words[-1])
    call = product(words[0], *map(int, words[1:4])) if name == "matmul" else OPS[name]()
    for _ in range(3):
        call()

    def all_calls():
        for _ in range(calls):
            call()

    seconds, how = seconds_of(all_calls), "queued one by one"
    if DEVICE == "cuda" and seconds / calls < SHORT_SECONDS:
        graph, how = recorded(all_calls)
        if graph:
            seconds = seconds_of(graph.replay)
    return {"seconds": [seconds / calls], "how": how}


def answer(request):
    if DEVICE == "cpu":
        return measure(request)
    with torch.cuda.stream(torch.cuda.Stream()):  # recording wants one, and backward runs on the stream of its forward
        result = measure(request)
    torch.cuda.empty_cache()
    return result


serve(answer)
