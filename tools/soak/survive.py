#!/usr/bin/env python3
"""Trains under `sherd run --survive`, kills a random rank again and again, and checks what the run has become.

Usage: tools/soak/survive.py [--bin build/release/bin] [--kills 100] [--minutes M] [--ranks 4] [--every 2 5] [--seed N]

A hybrid_shard training on two replicas, compiled, with check_replicas = 1 (parameters of all replicas bit-equal after
every step, or the run ends). After 2 to 5 s at random in which both replicas took part one of the ranks is killed by
SIGKILL; the launcher starts its replica again, which takes the state from its peer's memory. After --kills of them, or
--minutes, the run is told to stop (SIGTERM). It fails when
  - the job ends with another status than that of a stop with a save, or a restart of all ranks was needed,
  - a step is missing in the metrics, is there twice, or has another loss than one rank that takes the same rows
    (soak_one_rank; f32, so by rounding: 1e-4 of the loss, in the first 4,000 steps),
  - the step of a kill took more than twice the median step and 5 s,
  - memory, mappings or descriptors of a rank that lives through all of it grow with the number of groups,
  - a process is left behind.
"""
import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

CONFIG = """
vocabulary = "bytes"
seed = 11
steps = 100000000
batch = 16
threads = 1
eval_every = 0
eval_batches = 1
save_minutes = 0
check_replicas = 1
compile = true
strategy = "hybrid_shard"
deadline = 60.0
[model]
layers = 2
heads = 2
width = 64
sequence = 32
[optimizer]
lr = 3e-4
warmup = 20
decay_steps = 100000
"""
STOPPED_AND_SAVED = 4
COMPARED = 4000  # steps; rounding grows from step to step by itself: 5e-6 of the loss after 3,300, 4e-4 after 13,000


def random_text():
    """Words in an order that no model learns by heart: near a loss of 0 a rounding would grow without limit."""
    rng = random.Random(5)
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(2, 6))) for _ in range(1000)]
    return " ".join(rng.choices(words, k=200_000))


class Failure(Exception):
    pass


def check(holds, text):
    if not holds:
        raise Failure(text)


class Job:
    def __init__(self, options, folder):
        self.folder, self.mark = folder, f"SHERD_SOAK_MARK=survive-{os.getpid()}"
        name, value = self.mark.split("=")
        sherd = str(pathlib.Path(options.bin) / "sherd")
        command = [sherd, "run", "--survive", "--backoff", "0", "-n", str(options.ranks), "--", sherd, "train",
                   str(folder / "run.toml"), "--metrics", str(folder / "run.jsonl"), "--save", str(folder / "saves")]
        self.err = open(folder / "err.txt", "wb")
        self.process = subprocess.Popen(command, env=dict(os.environ, **{name: value}), stdin=subprocess.DEVNULL,
                                        stdout=self.err, stderr=self.err)
        self.metrics, self.last = None, {}

    def ranks(self):
        """Processes by rank."""
        found = {}
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                lives = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
            except OSError:
                continue  # ended meanwhile
            rank = [int(item[11:]) for item in environment if item.startswith(b"SHERD_RANK=")]
            if self.mark.encode() in environment and lives and rank:
                found[rank[0]] = int(entry.name)
        return found

    def last_step(self):
        """The newest line of the metrics, or the one before."""
        try:
            with open(self.folder / "run.jsonl", "rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - 8192))
                lines = file.read().split(b"\n")[1:-1]
            self.last = json.loads(lines[-1]) if lines else self.last
        except (OSError, ValueError):
            pass
        return self.last

    def text(self):
        return (self.folder / "err.txt").read_text(errors="replace")

    def check_lives(self):
        check(self.process.poll() is None, f"the job ends with status {self.process.returncode}:\n{self.text()[-3000:]}")

    def end(self):
        for pid in self.ranks().values():
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        self.err.close()


def whole(job, limit):
    """Waits until all replicas take part in a step, and some more have been made since."""
    end, begin = time.monotonic() + limit, None
    while True:
        job.check_lives()
        step = job.last_step()
        is_whole = "step" in step and "replicas" not in step
        begin = (begin or step["step"]) if is_whole else None
        if is_whole and step["step"] > begin + 3:
            return
        check(time.monotonic() < end, f"not all replicas are back after {limit:.0f} s:\n{job.text()[-3000:]}")
        time.sleep(0.02)


def resources(pid):
    base = pathlib.Path(f"/proc/{pid}")
    status = (base / "status").read_text()
    rss = int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) / 1024
    maps = (base / "maps").read_text()
    return {"rss MiB": rss, "mappings": maps.count("\n"), "segments": maps.count("memfd:sherd"),
            "descriptors": len(list((base / "fd").iterdir())), "threads": int(re.search(r"Threads:\s+(\d+)", status).group(1))}


def strike(options, job, rng):
    """The number of kills. Two out of three strike replica 1, so that a rank of replica 0 lives long; then any."""
    struck, seen = 0, {}
    until = time.monotonic() + 60 * options.minutes if options.minutes else float("inf")
    whole(job, 120)
    while struck < options.kills and time.monotonic() < until:
        end = time.monotonic() + rng.uniform(*options.every)
        while time.monotonic() < end:
            job.check_lives()
            time.sleep(0.02)
        ranks = job.ranks()
        half = options.ranks // 2
        spares_zero = struck < options.kills * 2 // 3
        choice = [rank for rank in ranks if not spares_zero or rank >= half]
        if spares_zero and 0 in ranks and struck % 5 == 4:
            seen[struck] = resources(ranks[0])
        os.kill(ranks[rng.choice(choice)], signal.SIGKILL)
        struck += 1
        whole(job, 60)
    return struck, seen


def check_resources(seen):
    if len(seen) < 2:
        return
    first, last = seen[min(seen)], seen[max(seen)]
    for what, before in first.items():
        slack = 1.25 * before + (32 if what == "rss MiB" else 8)
        check(last[what] <= slack, f"{what} of rank 0 grow with the groups: {before:.0f} after {min(seen) + 1} losses, "
              f"{last[what]:.0f} after {max(seen) + 1}")
    print(f"rank 0 after {min(seen) + 1} losses: {first}; after {max(seen) + 1}: {last}", flush=True)


def stop(job):
    job.process.send_signal(signal.SIGTERM)
    try:
        status = job.process.wait(60)
    except subprocess.TimeoutExpired:
        raise Failure(f"does not stop:\n{job.text()[-2000:]}") from None
    check(status == STOPPED_AND_SAVED, f"ends with status {status}:\n{job.text()[-3000:]}")
    check(not job.ranks(), "a process is left behind")


def check_steps(options, job, struck):
    steps = [line for line in map(json.loads, open(job.folder / "run.jsonl")) if "step" in line]
    check([line["step"] for line in steps] == list(range(1, len(steps) + 1)), "steps are missing, or there twice")
    usual = [line["step_seconds"] for line in steps if "regroup" not in line and "replicas" not in line]
    median = statistics.median(usual)
    lost = [line for line in steps if line.get("regroup", {}).get("lost")]
    back = [line for line in steps if line.get("regroup", {}).get("returned")]
    of_kills = [line["regroup"]["seconds"] + line["step_seconds"] for line in lost]
    returns = [line["regroup"]["seconds"] for line in back]
    text = job.text()
    losses = len(re.findall(r"sherd run: .*is lost", text))
    check(losses >= struck and "restart 1" not in text, f"{struck} kills, {losses} losses that were outlived")
    worst = max(of_kills)
    print(f"{struck} kills, {len(lost)} losses and {len(back)} returns in {len(steps)} steps; median step {median:.4f} s; step of a "
          f"kill: median {statistics.median(of_kills):.2f} s, most {worst:.2f} s; standstill of a return: median "
          f"{statistics.median(returns):.2f} s, most {max(returns):.2f} s", flush=True)
    check(worst <= 2 * median + 5, f"the step of a kill took {worst:.2f} s, more than 2 x {median:.4f} + 5 s")


def check_losses(options, job, bound):
    lines = (job.folder / "run.jsonl").read_text().splitlines(keepends=True)
    (job.folder / "compared.jsonl").write_text("".join(lines[:1 + COMPARED]))
    answer = subprocess.run([str(pathlib.Path(options.bin) / "soak_one_rank"), str(job.folder / "run.toml"),
                             str(job.folder / "compared.jsonl"), "2"], capture_output=True, text=True, check=False)
    check(answer.returncode == 0, answer.stderr)
    steps, most = answer.stdout.split()
    print(f"losses of {steps} steps differ from one rank's by at most {float(most):.2g} of the loss", flush=True)
    check(float(most) <= bound, f"that is more than {bound}")


def main():
    root = pathlib.Path(__file__).resolve().parents[2]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=str(root / "build/release/bin"))
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--ranks", type=int, default=4, help="of two replicas")
    parser.add_argument("--every", type=float, nargs=2, default=[2, 5], metavar=("LEAST", "MOST"))
    parser.add_argument("--bound", type=float, default=1e-4, help="on the difference of losses, as a share of the loss")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as name:
        folder = pathlib.Path(name)
        (folder / "text.txt").write_text(random_text())
        (folder / "run.toml").write_text(f'data = "{folder / "text.txt"}"\nmesh = "replicate=2,dp={options.ranks // 2}"'
                                         + CONFIG)
        job = Job(options, folder)
        try:
            struck, seen = strike(options, job, random.Random(options.seed))
            stop(job)
            check_resources(seen)
            check_steps(options, job, struck)
            check_losses(options, job, options.bound)
        except Failure as failure:
            sys.exit(f"survive: {failure}; seed {options.seed}")
        finally:
            job.end()
    print("all replicas were equal after every step, and every loss is that of one rank with the same rows")


if __name__ == "__main__":
    main()
