#!/usr/bin/env python3
"""Trains under `sherd run --restarts 100`, kills a rank every few seconds, and compares with an undisturbed run, bit for bit.

Usage: tools/soak/restarts.py [--sherd build/release/bin/sherd] [--minutes 10] [--kill-after 5 20] [--ranks 2] [--seed N]

First an undisturbed run, of so many steps that the struck one takes about --minutes; a short one before tells how many. Then
the same training runs under `--restarts 100 --backoff 0`; after 5 to 20 s at random one of its ranks is killed by SIGKILL, and
so on until it ends, or has been killed as often as fits into the time. It fails when the job ends with another status than 0, leaves a process behind, takes ten times as long as undisturbed, was not
restarted after a kill, or when a loss or gradient norm of any step, or a byte of the last save, differs from the
undisturbed run's. Needs nothing but Python and the program. `--min-ranks` and other flags are tested in tests/tools/restart_test.cpp.
"""
import argparse
import pathlib
import random
import re
import signal
import sys
import tempfile
import time

from jobs import Failure, Job, check, digest, losses, send

CONFIG = """
vocabulary = "bytes"
seed = 11
batch = 24
threads = 1
eval_batches = 1
save_minutes = 0
[model]
layers = 4
heads = 4
width = 128
sequence = 64
[optimizer]
lr = 1e-3
warmup = 20
decay_steps = 100000
"""


def training(options, folder, steps, every, flags):
    folder.mkdir()
    command = [options.sherd, "run", "-n", str(options.ranks), *flags, "--", options.sherd, "train", str(options.config),
               "--steps", str(steps), "--save-every", str(every),
               "--metrics", str(folder / "metrics.jsonl"), "--save", str(folder / "checkpoint")]
    return Job(command, folder / "output", folder.name)


def undisturbed(options, folder, steps, every):
    start = time.monotonic()
    job = training(options, folder, steps, every, [])
    try:
        status = job.wait(600 + 60 * options.minutes)
        check(status is not None, "the undisturbed run does not end")
        check(status == 0, f"the undisturbed run ends with status {status}:\n{job.text()[-2000:]}")
    finally:
        job.end()
    return time.monotonic() - start


def disturbed(options, folder, steps, every, limit, rng):
    """The number of kills."""
    job = training(options, folder, steps, every, ["--restarts", "100", "--backoff", "0"])
    start = time.monotonic()
    struck, end = 0, start + limit
    most = min(100, max(2, int(2 * 60 * options.minutes / sum(options.kill_after))))  # a slow machine gets on, too
    try:
        while (status := job.wait(rng.uniform(*options.kill_after))) is None:
            check(time.monotonic() < end, f"takes more than {limit:.0f} s")
            ranks = [process.pid for process in job.processes() if process.name.startswith("rank")]
            if ranks and struck < most:
                struck += send(rng.choice(ranks), signal.SIGKILL)
        check(status == 0, f"ends with status {status}:\n{job.text()[-3000:]}")
        job.check_nothing_is_left()
    finally:
        job.end()
    restarts = max([int(n) for n in re.findall(r"sherd run: restart (\d+) of 100", job.text())], default=0)
    # The last kill may have met a rank that had done its part; one may meet a start that another kill has ended.
    check(restarts >= struck / 2, f"{struck} kills, but {restarts} restarts")
    print(f"{struck} kills, {restarts} restarts, {time.monotonic() - start:.0f} s", flush=True)
    return struck


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(root / "build/release/bin/sherd"))
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--kill-after", type=float, nargs=2, default=[5, 20], metavar=("LEAST", "MOST"))
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # as Ctrl-C does, it leaves nothing behind
    print(f"seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as name:
        base = pathlib.Path(name)
        (base / "text.txt").write_text("the quick brown fox jumps over a lazy dog;\n" * 600)
        options.config = base / "small.toml"
        options.config.write_text(f'data = "{base / "text.txt"}"' + CONFIG)
        try:
            seconds = undisturbed(options, base / "probe", 40, 1000)
            aim = 0.7 * 60 * options.minutes  # of the undisturbed run; starts, and steps made again, take the rest
            steps = max(40, int(40 * aim / seconds) // 20 * 20)
            every = max(1, int(steps * options.kill_after[0] / (4 * aim)))  # 4 saves in the least time
            seconds = undisturbed(options, base / "quiet", steps, every)
            print(f"{steps} steps, a save every {every}, {seconds:.0f} s undisturbed", flush=True)
            struck = disturbed(options, base / "struck", steps, every, 10 * seconds + 60, rng)
            quiet, after = (losses(base / name / "metrics.jsonl") for name in ("quiet", "struck"))
            check(struck > 0, "no kill met the run; give it more minutes")
            check(len(quiet) == steps and quiet == after, "losses differ from the undisturbed run's at the steps "
                  f"{[step for step in sorted(quiet | after) if quiet.get(step) != after.get(step)][:10]}")
            check(digest(base / "quiet/checkpoint") == digest(base / "struck/checkpoint"), "the last saves differ")
        except Failure as failure:
            sys.exit(f"restarts: {failure}; seed {options.seed}")
    print("losses and the last save are those of the undisturbed run, bit for bit")


if __name__ == "__main__":
    main()
