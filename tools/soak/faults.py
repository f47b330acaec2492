#!/usr/bin/env python3
"""Trainings met by random faults, resumed or restarted after each, and compared with an undisturbed run, bit for bit.

Usage: tools/soak/faults.py [--faults 3000] [--minutes M] [--jobs 2] [--seed N] [--only I] [--configurations A,B] [--journal FILE]

A trial trains a tiny model with a save every 5 steps on 2 to 4 ranks, from its start to its end, and on the way meets
up to 8 faults (fault_kinds.py): a process of the job is killed, frozen or stopped for a while, or gets a signal; a call to a
file fails, or the process is killed or frozen in it; the disk is full. After each the training is resumed, or `sherd run
--restarts` has done that. A trial fails when
  - a job makes no step and does not end for longer than its deadline and 5 s,
  - it ends with a status, or without words, that the fault does not explain; under `--restarts` only what met the launcher,
    and a user's signal, explains any other than 0,
  - under `--restarts` a rank is killed or frozen, or a call fails that matters, and no restart follows,
  - a frozen rank ends or restarts its job later than `--frozen-after`, 5 s and the time that a start takes on this machine,
  - it leaves a process, a temporary file, or what is no part of a save; after a run without a fault, a part of a save,
  - a save that had been committed is gone, or more steps are lost than lie between two saves,
  - the finished run differs in any bit of a loss or of its last save from the undisturbed one, or lacks a loss (but for the
    steps before a save that could not be read, was passed over, and could be read by the next start),
  - the folder does not hold the last 3 saves at the end.
Only faults that have met a job are counted: a process that was there, a call that was made. Calls fail by a library that
is preloaded (tests/support/file_faults). Full disks are small ones in memory, where the program may mount such; else there
are none but those of that library, which says so to single calls. The seed is printed; trial I of seed S is repeated by --seed S
--only I. SIGTERM and Ctrl-C end the soak when the trainings under way are at their end. With a journal a soak that was
cut off goes on where it was: the same command, and the seed that it printed.
"""
import argparse
import collections
import concurrent.futures
import errno
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

import fault_kinds
from fault_kinds import CONFIG, CONFIGURATIONS, EVERY, KEEP, NO_ROOM, SAVED, STEPS, Fault
from jobs import Disk, Failure, Job, Watch, check, digest, folders_of_saves, losses, may_mount, send, steps_of_saves

FAULTS_OF_A_TRIAL = 8
MOST_ATTEMPTS = 40
MOST_FAILED = 20  # of trials; it would go on so


class Training:
    """One training of a configuration in a folder: its files in `place`, what is said of it in `notes`."""

    def __init__(self, options, configuration, place, notes):
        self.options, self.configuration, self.place, self.notes = options, configuration, place, notes
        for folder in (place, place / "tmp", notes):
            folder.mkdir()
        shutil.copy(options.text, place / "text.txt")
        self.metrics, self.saves = place / "metrics.jsonl", place / "checkpoint"

    def start(self, mark, run_flags=(), flags=(), keep=KEEP, environment=None):
        ranks, own = CONFIGURATIONS[self.configuration]
        sherd = self.options.sherd
        resume = ["--resume", str(self.saves)] if steps_of_saves(self.saves) else []
        command = [sherd, "run", "-n", str(ranks), *run_flags, "--", sherd, "train", str(self.options.config),
                   "--data", str(self.place / "text.txt"), "--save-every", str(EVERY), "--keep", str(keep),
                   "--metrics", str(self.metrics), "--save", str(self.saves),
                   "--deadline", str(self.options.deadline), "--frozen-after", str(self.options.frozen_after),
                   *own, *resume, *flags]
        return Job(command, self.notes / "output", mark, dict(environment or {}, TMPDIR=str(self.place / "tmp")))

    def last_step(self):
        """The last one that the metrics show."""
        return max(losses(self.metrics), default=0)

    def counting(self, name):
        places = ":".join(str(self.place / place) for place in ("checkpoint", "text.txt", "metrics.jsonl", "tmp"))
        return {"LD_PRELOAD": self.options.file_faults, "FILE_FAULT_UNDER": places,
                "FILE_FAULT_COUNTS": str(self.notes / name)}

    def calls(self, name):
        counts = {}
        for line in (self.notes / name).read_text().splitlines():
            rank, path, call, count = line.rsplit(" ", 3)
            if rank:
                counts[int(rank), pathlib.Path(path).name, call] = int(count)
        return counts

    def tail(self):
        output = self.notes / "output"
        return "\n".join(output.read_text(errors="replace").splitlines()[-25:]) if output.exists() else ""


def undisturbed(options, configuration, base):
    """What faults are compared with. Resumed from its middle, it must come to the same end."""
    training = Training(options, configuration, base / f"{configuration}", base / f"{configuration}-notes")
    start = time.monotonic()
    job = training.start(configuration, keep=1000, environment=training.counting("calls"))
    try:
        while job.status() is None and not training.last_step():
            job.wait(0.01)
        first = time.monotonic()
        status = job.wait(600)
        check(status == 0, f"the undisturbed run of {configuration} ends with status {status}: {training.tail()}")
        seconds = (time.monotonic() - first) / STEPS
        save = folders_of_saves(training.saves)[-1]
        known = fault_kinds.Known(losses(training.metrics), digest(training.saves), first - start, seconds,
                                  sum(path.stat().st_size for path in save.iterdir()), training.calls("calls"), {})
        check(set(known.losses) == set(range(1, STEPS + 1)), f"the undisturbed run of {configuration} lacks steps")
        for folder in folders_of_saves(training.saves)[STEPS // 2 // EVERY:]:
            shutil.rmtree(folder)
        job = training.start(configuration, flags=["--steps", str(STEPS // 2 + 1)],
                             environment=training.counting("first-calls"))
        status = job.wait(600)
        check(status == 0, f"{configuration}, resumed, ends with status {status}: {training.tail()}")
        known.first_calls = training.calls("first-calls")
        for step, values in losses(training.metrics).items():
            check(known.losses[step] == values, f"{configuration}, resumed, differs at step {step}")
        return known
    finally:
        job.end()
        shutil.rmtree(training.place)


class Attempt:
    """One job of a trial, and the faults that it meets."""

    def __init__(self, trial, number, wanted):
        self.trial, self.options = trial, trial.options
        self.kinds = trial.kinds
        # Of its own, so that a trial that is repeated draws the same, however far it had come by then.
        self.rng = random.Random(f"{self.options.seed}/{trial.index}/{number}")
        self.first = max(steps_of_saves(trial.training.saves), default=0)
        self.faults = []
        self.mark = trial.training.notes / f"mark-{number}"
        # A job that goes on or is started again may meet several.
        self.most = min(wanted, self.rng.randint(1, 4)) if trial.restarts else wanted
        if wanted > 0:
            self.faults.append(self.draw(at_start=True))

    def draw(self, at_start):
        first = max(steps_of_saves(self.trial.training.saves), default=0)
        return fault_kinds.draw(self.rng, self.kinds, self.trial.known, self.trial.configuration, first, at_start,
                                self.trial.disk.is_own and not self.trial.restarts)

    def preload(self, fault):
        """What makes a call go wrong."""
        if not fault.call:
            return {}
        what = {"FILE_FAULT_ERROR": str(getattr(errno, fault.kind, 0))}
        if fault.kind in self.kinds:
            what = {"FILE_FAULT_SIGNAL": str(getattr(signal, "SIG" + self.kinds[fault.kind].signals[0]).value)}
        return dict(what, LD_PRELOAD=self.options.file_faults, FILE_FAULT_MARK=str(self.mark),
                    FILE_FAULT_UNDER=str(self.trial.training.place / fault.place), FILE_FAULT_CALL=fault.call,
                    FILE_FAULT_AT=str(fault.at), FILE_FAULT_RANK=fault.victim.split()[1],
                    FILE_FAULT_LASTS=str(int(fault.kind == "ENOSPC")))

    def run(self):
        """The status of the job, and what it said."""
        first = self.faults[0] if self.faults else Fault("")
        if first.kind == "full disk":
            self.trial.disk.leave_room(first.room)
        # Ranks that are frozen after a user's signal last as long as the grace, which no hang may be taken for.
        run_flags = ["--frozen-after", str(self.options.frozen_after), "--save-grace", str(self.options.deadline / 2)]
        run_flags += ["--restarts", "100", "--backoff", "0"] if self.trial.restarts else []
        job = self.trial.training.start(f"{self.options.seed}-{self.trial.index}", run_flags,
                                        environment=self.preload(first))
        try:
            self.watch = Watch(job, self.trial.training.metrics, self.options.deadline + 5)
            while self.faults:
                goes_on = self.meet(job, self.faults[-1])
                if job.status() is not None or len(self.faults) >= self.most or not goes_on and self.rng.random() < 0.9:
                    break
                self.faults.append(self.draw(at_start=False))
                if not goes_on:  # right behind the other
                    self.faults[-1].step, self.faults[-1].delay = 0, self.rng.random() * 0.3
            self.watch.until_end()
            ended = time.time()
            text = job.text()
            for fault in self.faults:
                self.note(fault)
                if fault.kind == "full disk":
                    fault.met = NO_ROOM in text
            if self.faults and self.faults[-1].began > 0 and self.faults[-1].seconds == 0:
                self.faults[-1].seconds = ended - self.faults[-1].began
            job.check_nothing_is_left()
            return job.status(), text
        finally:
            job.end()
            self.trial.disk.make_room()

    def meet(self, job, fault):
        """Waits for the fault's moment, and for what follows from it. Whether the job goes on."""
        restarts = self.watch.restarts
        if fault.kind == "full disk":
            return False
        if fault.call:
            self.watch.until(self.has_failed)
        else:
            if fault.step > 0:
                self.watch.until(lambda: self.watch.shows(fault.step))
            self.watch.until(lambda: False, fault.delay)
            self.watch.look()
            restarts = self.watch.restarts
            self.strike(job, fault)
        self.note(fault)
        if fault.is_harmless(self.kinds):
            return True
        if not self.trial.restarts or not fault.met:
            return False
        limit = self.trial.restart_seconds
        if not self.watch.until(lambda: self.watch.restarts > restarts, limit):
            is_ending = any(other.met and other.ends_for_good(self.kinds) for other in self.faults)
            check(job.status() is not None or is_ending or not fault.is_fatal(self.kinds),
                  f"no restart and no end within {limit:.1f} s of {fault}")
            return False
        fault.seconds = time.time() - fault.began
        return True

    def has_failed(self):
        """The call."""
        return self.mark.exists() and self.mark.stat().st_size > 0

    def strike(self, job, fault):
        found = [process.pid for process in job.processes() if process.name == fault.victim]
        if not found or job.status() is not None:
            return
        signals = [getattr(signal, "SIG" + name) for name in self.kinds[fault.kind].signals]
        fault.is_early = self.trial.training.last_step() < STEPS
        fault.met = send(found[0], signals[0])
        fault.began = time.time()
        for number in signals[1:]:
            self.watch.until(lambda: False, fault.pause)
            if job.status() is None:
                send(found[0], number)

    def note(self, fault):
        """Whether and when a call has failed."""
        if fault.call and self.has_failed():
            fault.met = True
            fault.began = self.mark.stat().st_mtime
            fault.path = self.mark.read_text().split(" ", 3)[3].strip()


class Trial:
    def __init__(self, soak, index, disk, notes):
        self.soak, self.options, self.index, self.disk = soak, soak.options, index, disk
        options = self.options
        rng = random.Random(f"{options.seed}/{index}")
        self.configuration = rng.choice(options.configurations)
        self.restarts = rng.random() < 0.25
        self.known = soak.known_of(self.configuration)
        # From a fault to the restart, or the end, of the job. Ranks that start count what others do not come from when they
        # wait themselves, so there is the time that a start takes here as well, beside what else this machine does.
        self.restart_seconds = options.frozen_after + 5 + self.known.start_seconds
        self.kinds = fault_kinds.strikes(options.frozen_after)
        self.training = Training(options, self.configuration, disk.folder / f"trial-{index}", notes / f"trial-{index}")
        self.story, self.met, self.failure = [], [], ""
        self.kept = []  # saves before an attempt
        self.may_lack = set()  # steps of the metrics

    def title(self):
        return self.configuration + (" with restarts" if self.restarts else "")

    def run(self):
        try:
            for number in range(MOST_ATTEMPTS):
                is_over = self.options.only is None and self.soak.is_over()
                attempt = Attempt(self, number, 0 if is_over else FAULTS_OF_A_TRIAL - len(self.met))
                try:
                    status, text = attempt.run()
                finally:
                    self.story += [str(fault) for fault in attempt.faults]
                self.met += [fault for fault in attempt.faults if fault.met]
                self.check_end(attempt, status, text)
                self.check_saves(attempt, status, text)
                self.check_leftovers(attempt, status)
                if status == 0:
                    return self.check_result()
            raise Failure(f"has not ended in {MOST_ATTEMPTS} attempts")
        except Failure as failure:
            self.failure = f"{failure}\n{self.training.tail()}"
        finally:
            if not self.failure or not self.options.keep_failed:
                shutil.rmtree(self.training.notes)
            else:
                shutil.move(self.training.notes, self.options.keep_failed / f"{self.index}-notes")
                shutil.move(self.training.place, self.options.keep_failed / f"{self.index}")
            shutil.rmtree(self.training.place, ignore_errors=True)

    def check_frozen(self, met):
        """Not after a user's signal: then all ranks have the grace for their end. (Where another fault comes right behind,
        no time is taken of the first.)"""
        if any(fault.kind in self.kinds and self.kinds[fault.kind].asks_for_end for fault in met):
            return
        for fault in met:
            check(fault.kind != "freeze" or fault.seconds <= self.restart_seconds,
                  f"{fault.seconds:.1f} s, more than {self.restart_seconds:.1f} s, to the end or restart by {fault}")

    def check_end(self, attempt, status, text):
        met = [fault for fault in attempt.faults if fault.met]
        self.check_frozen(met)
        ends = [fault.ends(self.kinds) for fault in met if not self.restarts or fault.ends_for_good(self.kinds)]
        explained = {0}.union(*(end.statuses for end in ends))
        check(status in explained, f"ends with status {status}; explained are {sorted(explained)}")
        if status == 0:
            check(self.training.last_step() == STEPS, f"status 0 after step {self.training.last_step()}")
            for fault in met:
                # Where nothing is started again, a frozen rank may have been thawed by the next fault.
                matters = self.restarts or fault.kind in ("EIO", "ENOSPC")
                check(attempt.watch.restarts > 0 or not (matters and fault.is_fatal(self.kinds)),
                      f"status 0, and no restart, in spite of {fault}")
            check(attempt.watch.restarts <= len(met), f"{attempt.watch.restarts} restarts for {len(met)} faults")
            return
        if status < 0:
            return  # the launcher itself, which could say nothing
        says = [all(re.search(word, text) for word in end.words) for end in ends if status in end.statuses]
        check(any(says), f"ends with status {status}, and says nothing of "
                         f"{' or '.join(' + '.join(end.words) for end in ends if status in end.statuses)}")

    def check_saves(self, attempt, status, text):
        kept, last = steps_of_saves(self.training.saves), self.training.last_step()
        # What could not be read once, and can be later: the metrics were cut after the older save by then.
        older = [int(step) for step in re.findall(r"going on with \"[^\"]*/step-(\d+)", text)]
        passed_over = bool(older)
        if older:
            self.may_lack |= set(range(min(older) + 1, max(self.kept + kept) + 1))
        check(kept or not self.kept, "all saves are gone")
        before = self.kept[:-1] if passed_over else self.kept
        check(not before or kept[-1] >= before[-1], f"before there were saves {self.kept}, left are {kept}")
        # The line of a step is written before its save, so the save of the last step may be missing; and one that is
        # made beside training may be on its way.
        certain = (last - 1) // EVERY * EVERY - (EVERY if fault_kinds.saves_beside(self.configuration) else 0)
        check(max(kept, default=0) >= certain, f"step {last} was made, but only {kept} are saved")
        if status == SAVED:
            check(kept and kept[-1] == last, f"status {SAVED}, step {last} was made, saves are {kept}")
        self.kept = kept

    def check_leftovers(self, attempt, status):
        """No names but those of saves; and whole saves only, where nothing kept a run from tidying up."""
        place, saves = self.training.place, self.training.saves
        left = [path for path in (place / "tmp").iterdir()]
        left += [path for path in place.iterdir() if path.name not in ("tmp", "text.txt", "metrics.jsonl", "checkpoint")]
        left += [path for path in pathlib.Path("/dev/shm").iterdir() 
                 if path.name.startswith("sherd") and not path.name.startswith(("sherd-soak-", "sherd-test-"))]
        # It has saved, and so has removed what others left.
        undisturbed_end = status == 0 and attempt.first < STEPS and not any(fault.met for fault in attempt.faults)
        for path in sorted(saves.rglob("*")) if saves.exists() else []:
            name = path.relative_to(saves).parts
            if path.is_dir():
                is_known = len(name) == 1 and name[0].startswith("step-")
                is_known = is_known and (not undisturbed_end or (path / "manifest.json").exists())
            else:
                is_partial = path.suffix == ".partial"
                file = path.stem if is_partial else path.name
                of_a_save = file == "manifest.json" or (file.startswith("rank-") and file.endswith(".safetensors"))
                is_known = (name == ("lock",) and not undisturbed_end) or (
                    len(name) == 2 and of_a_save and not (is_partial and undisturbed_end))
            left += [] if is_known else [path]
        check(not left, f"left behind: {', '.join(map(str, left))}")

    def check_result(self):
        seen = losses(self.training.metrics)
        differing = [step for step in range(1, STEPS + 1) if seen.get(step) != self.known.losses[step] and
                     (step in seen or step not in self.may_lack)]
        check(not differing, f"losses differ from the undisturbed run's at the steps {differing[:10]}")
        check(digest(self.training.saves) == self.known.digest, "the last save differs from the undisturbed run's")
        # More than asked for if the last process was kept from tidying up. A signal saves too, so not all are multiples.
        kept = steps_of_saves(self.training.saves)
        check(KEEP <= len(kept) <= KEEP + 2 and kept[-1] == STEPS and kept[-KEEP] >= STEPS - (KEEP - 1) * EVERY,
              f"at the end the saves are {kept}")


class Tally:
    """What has been done, in a file too, from which a later process goes on."""

    def __init__(self, options):
        self.options, self.start, self.lock = options, time.monotonic(), threading.Lock()
        self.kinds, self.calls, self.configurations = (collections.Counter() for _ in range(3))
        self.seconds = collections.defaultdict(list)
        self.done, self.failed, self.late = set(), [], 0
        self.journal = None
        if options.journal:
            for line in options.journal.read_text().splitlines() if options.journal.exists() else []:
                entry = json.loads(line)
                if entry["seed"] == options.seed:
                    self.add(entry)
            self.journal = open(options.journal, "a")
            if self.done:
                print(f"{len(self.done)} trials with {self.faults()} faults are in the journal", flush=True)
        self.said = time.monotonic()

    def faults(self):
        return sum(self.kinds.values())

    def add(self, entry):
        self.done.add(entry["trial"])
        self.late += entry["late"]
        self.configurations[entry["configuration"]] += len(entry["met"])
        for title, where, seconds in entry["met"]:
            self.kinds[title] += 1
            self.calls.update([where] if where else [])
            self.seconds[title] += [seconds] if seconds else []
        if entry["failure"]:
            self.failed.append(entry["trial"])

    def note(self, trial):
        with self.lock:
            entry = {"seed": self.options.seed, "trial": trial.index, "configuration": trial.title(),
                     "met": [(fault.title(), fault.where(), round(fault.seconds, 2)) for fault in trial.met],
                     "late": len(trial.story) - len(trial.met), "failure": trial.failure}
            self.add(entry)
            if self.journal:
                self.journal.write(json.dumps(entry) + "\n")
                self.journal.flush()
            if trial.failure or self.options.only is not None:
                print(f"trial {trial.index}: {trial.failure or 'good'}\n  {'; '.join([trial.title(), *trial.story])}", flush=True)
            if time.monotonic() - self.said > 60:
                self.said = time.monotonic()
                print(self.text(), flush=True)

    def text(self):
        return (f"{self.faults()} faults in {len(self.done)} trainings, {self.late} came too late, "
                f"{len(self.failed)} trainings failed{self.failed or ''}, {time.monotonic() - self.start:.0f} s; "
                f"seed {self.options.seed}")

    def table(self):
        lines = []
        for title, count in self.kinds.most_common():
            seconds = self.seconds[title]
            lines.append(f"{count:6}  {title}" + (f", end or restart after {statistics.median(seconds):.1f} s in the median, "
                                                  f"{max(seconds):.1f} s at most" if seconds else ""))
        for name, counts in (("calls", self.calls), ("configurations", self.configurations)):
            lines.append(f"{name}: " + ", ".join(f"{what} {count}" for what, count in sorted(counts.items())))
        return "\n".join(lines)


class Soak:
    """Trials, several at a time, until there have been enough faults."""

    def __init__(self, options, base):
        self.options, self.base = options, base
        self.tally, self.lock, self.next = Tally(options), threading.Lock(), 0
        self.is_stopped = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: setattr(self, "is_stopped", True))
        self.known, self.known_locks = {}, {name: threading.Lock() for name in CONFIGURATIONS}

    def known_of(self, configuration):
        with self.known_locks[configuration]:
            if configuration not in self.known:
                self.known[configuration] = undisturbed(self.options, configuration, self.base)
            return self.known[configuration]

    def is_over(self):
        time_over = self.options.minutes and time.monotonic() - self.tally.start > 60 * self.options.minutes
        return self.is_stopped or time_over or self.tally.faults() >= self.options.faults or len(self.tally.failed) >= MOST_FAILED

    def take(self):
        with self.lock:
            if self.options.only is not None:
                self.next += 1
                return self.options.only if self.next == 1 else None
            while self.next in self.tally.done:
                self.next += 1
            self.next += 1
            return None if self.is_over() else self.next - 1

    def work(self, number):
        disk, folder = Disk(self.base / f"disk-{number}", self.options.may_mount), self.base / f"folder-{number}"
        folder.mkdir()
        own = Disk(folder / "place", is_mounted=False)
        while (index := self.take()) is not None:
            place = disk if random.Random(f"{self.options.seed}/{index}/place").random() < 0.7 else own
            trial = Trial(self, index, place, folder)
            trial.run()
            self.tally.note(trial)


def arguments():
    root = pathlib.Path(__file__).resolve().parents[2] / "build/release"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sherd", default=str(root / "bin/sherd"))
    parser.add_argument("--file-faults", default=str(root / "tests/libfile_faults.so"))
    parser.add_argument("--faults", type=int, default=3000, help="stop after so many")
    parser.add_argument("--minutes", type=float, default=0, help="stop after so long; 0: only after all faults")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="trainings at a time")
    parser.add_argument("--configurations", type=lambda text: text.split(","), default=list(CONFIGURATIONS),
                        help="of these only, with commas between them")
    parser.add_argument("--deadline", type=float, default=20, help="of the trainings, in seconds")
    parser.add_argument("--frozen-after", type=float, default=3, help="of the trainings, in seconds")
    parser.add_argument("--journal", type=pathlib.Path, help="what was done is added to this file")
    parser.add_argument("--keep-failed", type=pathlib.Path, help="a folder for what failed trials leave")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--only", type=int, help="one trial of that seed")
    return parser.parse_args()


def main():
    options = arguments()
    for path in (options.sherd, options.file_faults):
        if not os.path.exists(path):
            sys.exit(f"faults: \"{path}\" is not there; build the release preset")
    options.may_mount = may_mount()
    print(f"seed {options.seed}{'' if options.may_mount else '; no disk may be mounted, so none is full'}", flush=True)
    if options.keep_failed:
        options.keep_failed.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sherd-soak-") as folder:
        base = pathlib.Path(folder)
        options.text, options.config = base / "text.txt", base / "tiny.toml"
        options.text.write_text("the quick brown fox jumps over a lazy dog;\n" * 60)
        options.config.write_text(f"steps = {STEPS}{CONFIG}decay_steps = {STEPS}\n")
        soak = Soak(options, base)
        try:
            with concurrent.futures.ThreadPoolExecutor(options.jobs) as threads:
                for work in [threads.submit(soak.work, number) for number in range(options.jobs)]:
                    work.result()
        except Failure as failure:
            sys.exit(f"faults: {failure}")
        finally:
            subprocess.run(["umount", *base.glob("disk-*")], stderr=subprocess.DEVNULL)
        print(soak.tally.table())
        print(soak.tally.text())
        sys.exit(1 if soak.tally.failed else 0)


if __name__ == "__main__":
    main()
