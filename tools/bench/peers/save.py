"""A save of N tensors of 64 MiB by torch.distributed.checkpoint, in one process, synced to disk. A request is "sync", a
save, or "load". Usage: save.py N"""

import os
import shutil
import sys
import tempfile
import time

import torch
import torch.distributed.checkpoint as checkpoint

from side import serve

state = {f"w{i:03}": torch.full((64 << 18,), float(i + 1)) for i in range(int(sys.argv[1]))}
folder = tempfile.mkdtemp(prefix="sherd-bench-dcp-")
number = 0


def save():
    global number
    last, number = os.path.join(folder, str(number)), number + 1
    writer = checkpoint.FileSystemWriter(os.path.join(folder, str(number)), sync_files=True)
    checkpoint.save(state, storage_writer=writer, no_dist=True)
    shutil.rmtree(last, ignore_errors=True)


def load():
    checkpoint.load(state, storage_reader=checkpoint.FileSystemReader(os.path.join(folder, str(number))), no_dist=True)


def run(request):
    if request == "load" and number == 0:
        save()
    start = time.perf_counter()
    {"sync": save, "load": load}[request]()
    return {"seconds": [time.perf_counter() - start]}


torch.set_num_threads(1)
try:
    serve(run)
finally:
    shutil.rmtree(folder, ignore_errors=True)
