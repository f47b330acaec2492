#!/usr/bin/env python3
"""Trains under `sherd run --restarts 100`, kills a rank every few seconds, and compares with an undisturbed run, bit for bit.

Usage: tools/soak/restarts.py [--sherd build/release/bin/sherd] [--minutes 10] [--kill-after 5 20] [--ranks 2] [--seed N]

Its steps are captured and fit a memory budget. For so many minutes one of its ranks is killed by SIGKILL, after 5 to 20 s
at random, and again 5 to 20 s later, and so on, 100 times at most; `--restarts 100 --backoff 0` are to start all ranks again.
When they make steps once more the launcher is told to stop, and the same training runs undisturbed, in eager steps, for as many
as are saved then. It fails when a kill is not followed by a restart, or there are others, when the job ends with another status
than that of a stop with a save, leaves a process behind, or makes no step any more, or when a loss or gradient norm of any step,
or a byte of the last save, differs from the undisturbed run's.
Needs nothing but Python and the program. `--min-ranks` and other flags are tested in tests/tools/restart_test.cpp, jobs that
end because their work is done by faults.py.
"""
import argparse
import pathlib
import random
import signal
import sys
import tempfile
import time

from jobs import Failure, Job, check, digest, losses, send, steps_of_saves

STOPPED_AND_SAVED = 4
MOST_KILLS = 100
ENDLESS = 100_000_000  # steps
# From a kill to a restart: peers have a second to say what they lost, and five to end; and the machine may be busy.
RESTART_SECONDS = 20

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


def training(options, folder, steps, run_flags, flags):
    folder.mkdir()
    command = [options.sherd, "run", "-n", str(options.ranks), *run_flags, "--", options.sherd, "train",
               str(options.config), "--steps", str(steps), "--metrics", str(folder / "metrics.jsonl"),
               "--save", str(folder / "checkpoint"), *flags]
    return Job(command, folder / "output", folder.name)


def last_step(folder):
    return max(losses(folder / "metrics.jsonl"), default=0)


def restarts_of(job):
    return job.text().count("sherd run: restart ")


def wait_until(job, condition, seconds, text):
    end = time.monotonic() + seconds
    while not condition():
        check(job.wait(0.05) is None, f"ends with status {job.status()}:\n{job.text()[-3000:]}")
        check(time.monotonic() < end, f"{text} for {seconds:.0f} s:\n{job.text()[-3000:]}")


def kill_a_rank(job, rng):
    ranks = [process.pid for process in job.processes() if process.name.startswith("rank")]
    check(ranks, f"no rank is there to be killed:\n{job.text()[-3000:]}")
    send(rng.choice(ranks), signal.SIGKILL)


def disturbed(options, folder, rng):
    """The number of steps."""
    flags = ["--save-minutes", str(options.kill_after[0] / 60 / 4),  # four saves in the least time
             "--compile", "--memory-budget", "80%"]
    job = training(options, folder, ENDLESS, ["--restarts", str(MOST_KILLS), "--backoff", "0"], flags)
    kills, end = 0, time.monotonic() + 60 * options.minutes
    try:
        while kills < MOST_KILLS and (moment := time.monotonic() + rng.uniform(*options.kill_after)) < end:
            wait_until(job, lambda: time.monotonic() >= moment, 60 + options.kill_after[1], "no kill")
            kill_a_rank(job, rng)
            kills += 1
            wait_until(job, lambda: restarts_of(job) >= kills, RESTART_SECONDS, f"no restart after kill {kills}")
        check(kills > 0, "no kill met the run; give it more minutes")
        seen = last_step(folder)
        wait_until(job, lambda: last_step(folder) > seen, 120, "no step after the last kill")
        send(job.process.pid, signal.SIGTERM)
        status = job.wait(60)
        check(status == STOPPED_AND_SAVED, f"told to stop, it ends with status {status}:\n{job.text()[-3000:]}")
        check(restarts_of(job) == kills, f"{kills} kills, but {restarts_of(job)} restarts")
        job.check_nothing_is_left()
    finally:
        job.end()
    steps = steps_of_saves(folder / "checkpoint")[-1]
    print(f"{kills} kills, {kills} restarts, {steps} steps", flush=True)
    return steps


def undisturbed(options, folder, steps):
    job = training(options, folder, steps, [], [])
    try:
        limit = 600 + 120 * options.minutes
        status = job.wait(limit)
        check(status is not None, f"the undisturbed run does not end within {limit:.0f} s")
        check(status == 0, f"the undisturbed run ends with status {status}:\n{job.text()[-2000:]}")
    finally:
        job.end()


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(root / "build/release/bin/sherd"))
    parser.add_argument("--minutes", type=float, default=10, help="of the run that is struck; the other takes less")
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
            steps = disturbed(options, base / "struck", rng)
            undisturbed(options, base / "quiet", steps)
            quiet, after = (losses(base / name / "metrics.jsonl") for name in ("quiet", "struck"))
            check(len(quiet) == steps and quiet == after, "losses differ from the undisturbed run's at the steps "
                  f"{[step for step in sorted(quiet | after) if quiet.get(step) != after.get(step)][:10]}")
            check(digest(base / "quiet/checkpoint") == digest(base / "struck/checkpoint"), "the last saves differ")
        except Failure as failure:
            sys.exit(f"restarts: {failure}; seed {options.seed}")
    print("losses and the last save are those of the undisturbed run, bit for bit")


if __name__ == "__main__":
    main()
