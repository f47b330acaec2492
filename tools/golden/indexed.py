"""Goldens of the rows with an index per element, of topk and of var."""
import numpy as np
import torch

from case import File, generator, integers, normal


def without_repeats(case, high, *shape):
    """Indices along the last dim, no two equal: what scatter's gradient is defined for in PyTorch."""
    lines = [generator(f"{case}.{line}").permutation(high)[:shape[-1]] for line in range(int(np.prod(shape[:-1])))]
    return np.array(lines, "i8").reshape(shape)


def indexed():
    file = File("gather(x, dim, index), scatter(x, dim, index, source), scatter_add(x, dim, index, source), topk(x, k, dim): "
                "values are the output, `<case>.places` their indices; var(x, dims (bit mask), correction)")
    for case, x, index, dim in (("vector", (7,), (4,), 0), ("rows", (5, 3), (9, 3), 0), ("columns", (4, 6), (3, 5), 1),
                                ("middle", (2, 5, 3), (2, 8, 2), 1)):
        file.add(f"gather_{case}", lambda x, index, dim=dim: torch.gather(x, dim, index),
                 {"x": normal(f"gather_{case}", *x), "index": integers(f"gather_{case}.index", x[dim], *index)}, dim=dim)
        file.add(f"scatter_add_{case}",
                 lambda x, index, source, dim=dim: torch.scatter_add(x, dim, index, source),
                 {"x": normal(f"scatter_add_{case}", *x),
                  "index": integers(f"scatter_add_{case}.index", x[dim], *index),
                  "source": normal(f"scatter_add_{case}.source", *index)}, dim=dim)
    for case, x, index, dim in (("vector", (9,), (4,), 0), ("last", (3, 8), (2, 5), 1), ("first", (8, 3), (5, 2), 0)):
        places = without_repeats(f"scatter_{case}", x[dim], *(index if dim == len(x) - 1 else index[::-1]))
        file.add(f"scatter_{case}", lambda x, index, source, dim=dim: torch.scatter(x, dim, index, source),
                 {"x": normal(f"scatter_{case}", *x), "index": places if dim == len(x) - 1 else places.T.copy(),
                  "source": normal(f"scatter_{case}.source", *index)}, dim=dim)
    for case, shape, k, dim in (("last", (3, 17), 5, 1), ("first", (9, 4), 3, 0), ("all", (6,), 6, 0), ("one", (2, 3, 4), 1, 1)):
        x = normal(f"topk_{case}", *shape)
        file.add(f"topk_{case}", lambda x, k=k, dim=dim: torch.topk(x, k, dim).values, {"x": x}, k=k, dim=dim)
        file.put(f"topk_{case}.places", torch.topk(torch.tensor(x), k, dim).indices)
    for case, shape, dims, correction, mean in (("all", (3, 7), (0, 1), 1, 0), ("last", (4, 9), (1,), 0, 0),
                                                ("first", (11, 3), (0,), 1, 100), ("outer", (4, 3, 5), (0, 2), 2, -3)):
        file.add(f"var_{case}",
                 lambda x, dims=dims, correction=correction: torch.var(x, dims, correction=correction),
                 {"x": normal(f"var_{case}", *shape, mean=mean)},
                 dims=sum(1 << d for d in dims), correction=correction)
    return file
