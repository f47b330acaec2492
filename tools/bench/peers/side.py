"""How a peer talks to `sherd bench`: it says once that it is ready, then answers each line of its input.

The first line it prints is a JSON object with "peer", its name. Every request is one line; the answer is one JSON
object with "seconds", a list of samples. So both sides of a comparison stay in memory and take turns, while the other
sleeps in read(). By hand: `echo 3 | python3 step.py mini f32 1`.
"""

import json
import sys

import torch


def memory_bytes(field):
    """VmRSS (now) or VmHWM (the peak) of this process."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def say(**answer):
    print(json.dumps(answer), flush=True)


def requests():
    for line in sys.stdin:
        if line.strip():
            yield line.strip()


def serve(answer_to):
    """Answers every request by the dict answer_to(request)."""
    say(peer="torch " + torch.__version__.split("+")[0])
    for request in requests():
        say(**answer_to(request))
