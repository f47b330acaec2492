"""A training step on several ranks, every rank with its own batch: DistributedDataParallel or FSDP2, over gloo.

usage: sharded_step.py ddp|fsdp2 MODEL RANKS f32|autocast|bf16 eager|compile; each request is a number of steps. bf16 is
FSDP2's mixed precision, autocast is DDP's. The answer also has the bytes of one rank's parameters, gradients and
optimizer state.
"""

import sys
import time

import ranks  # first: it sets what torch reads when it loads
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from training import ADAMW, make_batch, make_model


def local(tensor):
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def count_bytes(tensors):
    return sum(local(t).numel() * t.element_size() for t in tensors)


class Training:
    def __init__(self, kind, name, dtype, mode, rank):
        torch.manual_seed(1)
        model, *shape = make_model(name)
        self.batch = make_batch(*shape, rank)
        if kind == "ddp":
            self.net = DistributedDataParallel(model, gradient_as_bucket_view=True)
            if mode == "compile":
                self.net = torch.compile(self.net)
        else:
            policy = MixedPrecisionPolicy(torch.bfloat16, torch.float32) if dtype == "bf16" else MixedPrecisionPolicy()
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            for block in model.blocks:
                if mode == "compile":
                    block.compile()
                fully_shard(block, mesh=mesh, mp_policy=policy)
            self.net = fully_shard(model, mesh=mesh, mp_policy=policy)
        self.parameters = list(self.net.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, **ADAMW, fused=True)
        self.autocast = torch.autocast("cpu", torch.bfloat16, enabled=dtype == "autocast")
        self.gradient_bytes = 0

    def step(self):
        with self.autocast:
            loss = self.net(*self.batch)
        loss.backward()
        self.optimizer.step()
        self.gradient_bytes = self.gradient_bytes or count_bytes(p.grad for p in self.parameters if p.grad is not None)
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def state_bytes(self):
        """What lives between steps, and with the gradients."""
        moments = [t for state in self.optimizer.state.values() for t in state.values() if torch.is_tensor(t)]
        persistent = count_bytes(self.parameters) + count_bytes(moments)
        return {"persistent": persistent, "peak": persistent + self.gradient_bytes}


def main(rank, kind, *arguments):
    training = Training(kind, *arguments, rank)
    for _ in range(3):
        training.step()

    def answer(request):
        seconds = []
        for _ in range(int(request)):
            dist.barrier()
            start = time.perf_counter()
            loss = training.step()
            seconds.append(time.perf_counter() - start)
        return {"seconds": seconds, "loss": loss, "state_bytes": training.state_bytes()}

    ranks.serve(rank, f"torch {torch.__version__.split('+')[0]} {kind.upper()}/gloo", answer)


if __name__ == "__main__":
    kind, name, world, dtype, mode = sys.argv[1:]
    ranks.start(main, int(world), kind, name, dtype, mode)
