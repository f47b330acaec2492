#!/usr/bin/env python3
"""Trains under `sherd run --restarts 100`, kills a rank every few seconds, and compares with an undisturbed run, bit for bit.

Usage: tools/soak/restarts.py [--sherd build/release/bin/sherd] [--minutes 10] [--kill-after 5 20] [--ranks 2] [--seed N]

Half of the time goes to the undisturbed run, whose number of steps is chosen by a short one before. Then the same
training runs under `--restarts 100 --backoff 0`; after 5 to 20 s at random one of its ranks is killed by SIGKILL, and so on until it
ends. It fails when the job ends with another status than 0, leaves a process behind, takes ten times as long as undisturbed, was not
restarted after a kill, or when a loss or gradient norm of any step, or a byte of the last save, differs from the
undisturbed run's. Needs nothing but Python and the program. `--min-ranks` and other flags are tested in tests/tools/restart_test.cpp.
"""
import argparse
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

import kills

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


class Job:
    """One `sherd run`, whose ranks are found by a mark in their environment."""

    def __init__(self, options, folder, steps, every, flags):
        folder.mkdir()
        self.folder = folder
        self.mark = f"SHERD_SOAK_MARK={folder.name}-{os.getpid()}"
        name, value = self.mark.split("=")
        command = [options.sherd, "run", "-n", str(options.ranks), *flags, "--", options.sherd, "train",
                   str(options.config), "--steps", str(steps), "--save-every", str(every),
                   "--metrics", str(folder / "metrics.jsonl"), "--save", str(folder / "checkpoint")]
        self.err = open(folder / "err.txt", "wb")
        self.process = subprocess.Popen(command, env=dict(os.environ, **{name: value}), stdin=subprocess.DEVNULL,
                                        stdout=self.err, stderr=self.err)

    def processes(self, ranks_only):
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes().split(b"\0")
                    lives = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
                except OSError:
                    continue  # ended meanwhile
                is_rank = any(item.startswith(b"SHERD_RANK=") for item in environment)
                if self.mark.encode() in environment and lives and (is_rank or not ranks_only):
                    found.append(int(entry.name))
        return found

    def wait(self, seconds):
        """The exit status, None if it runs on."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        for pid in self.processes(ranks_only=False):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.err.close()

    def text(self):
        return (self.folder / "err.txt").read_text(errors="replace")


def digest(folder, steps):
    kills.STEPS = steps
    return kills.digest(folder)


def undisturbed(options, folder, steps, every):
    start = time.monotonic()
    job = Job(options, folder, steps, every, [])
    try:
        status = job.wait(600 + 60 * options.minutes)
        kills.check(status is not None, "the undisturbed run does not end")
        kills.check(status == 0, f"the undisturbed run ends with status {status}:\n{job.text()[-2000:]}")
    finally:
        job.end()
    return time.monotonic() - start


def disturbed(options, folder, steps, every, limit, rng):
    """The number of kills."""
    job = Job(options, folder, steps, every, ["--restarts", "100", "--backoff", "0"])
    struck, end = 0, time.monotonic() + limit
    most = min(100, max(2, int(60 * options.minutes / sum(options.kill_after))))  # a slow machine gets on, too
    try:
        while (status := job.wait(rng.uniform(*options.kill_after))) is None:
            kills.check(time.monotonic() < end, f"takes more than {limit:.0f} s")
            ranks = job.processes(ranks_only=True)
            if ranks and struck < most:
                try:
                    os.kill(rng.choice(ranks), signal.SIGKILL)
                    struck += 1
                except ProcessLookupError:
                    pass
        kills.check(status == 0, f"ends with status {status}:\n{job.text()[-3000:]}")
        left = time.monotonic() + 10  # what was killed with its parent may take a moment to go
        while job.processes(ranks_only=False):
            kills.check(time.monotonic() < left, "a process is left behind")
    finally:
        job.end()
    restarts = max([int(n) for n in re.findall(r"sherd run: restart (\d+) of 100", job.text())], default=0)
    # The last kill may have met a rank that had done its part; one may meet a start that another kill has ended.
    kills.check(restarts >= struck / 2, f"{struck} kills, but {restarts} restarts")
    print(f"{struck} kills, {restarts} restarts", flush=True)
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
    print(f"seed {options.seed}", flush=True)
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as name:
        base = pathlib.Path(name)
        (base / "text.txt").write_text("the quick brown fox jumps over a lazy dog;\n" * 600)
        options.config = base / "small.toml"
        options.config.write_text(f'data = "{base / "text.txt"}"' + CONFIG)
        try:
            seconds = undisturbed(options, base / "probe", 40, 1000)
            steps = max(40, int(40 * options.minutes * 30 / seconds) // 20 * 20)
            every = max(1, int(steps * options.kill_after[0] / (options.minutes * 30 * 4)))  # 4 saves in the least time
            seconds = undisturbed(options, base / "quiet", steps, every)
            print(f"{steps} steps, a save every {every}, {seconds:.0f} s undisturbed", flush=True)
            struck = disturbed(options, base / "struck", steps, every, 10 * seconds + 60, rng)
            quiet, after = kills.losses(base / "quiet"), kills.losses(base / "struck")
            kills.check(struck > 0, "no kill met the run; give it more minutes")
            kills.check(len(quiet) == steps and quiet == after, "losses differ from the undisturbed run's at the steps "
                        f"{[step for step in sorted(quiet | after) if quiet.get(step) != after.get(step)][:10]}")
            kills.check(digest(base / "quiet", steps) == digest(base / "struck", steps), "the last saves differ")
        except kills.Failure as failure:
            sys.exit(f"restarts: {failure}; seed {options.seed}")
    print("losses and the last save are those of the undisturbed run, bit for bit")


if __name__ == "__main__":
    main()
