"""Ranks over gloo on this machine, each with one thread on one CPU; rank 0 talks to `sherd bench` for all (side.py)."""

import os
import tempfile

os.environ.pop("OMP_PROC_BIND", None)  # would bind all ranks to one CPU; read when torch loads

import torch  # noqa: E402
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

from side import requests, say


def start(main, ranks, *arguments):
    """Runs main(rank, *arguments), a function of the program's top level, on every rank of a process group."""
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        context = multiprocessing.get_context("spawn")
        others = [context.Process(target=run, args=(rank, ranks, store, main, arguments), daemon=True)
                  for rank in range(1, ranks)]
        for other in others:
            other.start()
        run(0, ranks, store, main, arguments)
        for other in others:
            other.join()


def run(rank, ranks, store, main, arguments):
    cpus = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method="file://" + store)
    main(rank, *arguments)
    dist.destroy_process_group()


def serve(rank, peer, answer_to):
    """side.serve on all ranks: each gets the request, rank 0 prints its answer."""
    if rank == 0:
        say(peer=peer)
    lines = requests() if rank == 0 else iter(())
    while True:
        request = [next(lines, "")]
        dist.broadcast_object_list(request, 0)
        if not request[0]:
            return
        dist.barrier()
        answer = answer_to(request[0])
        if rank == 0:
            say(**answer)
