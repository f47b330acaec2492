"""Runs the steps of a call, each under its limit and its group's. After every step what is known is saved."""

import signal
import time

import facts
import process
import report
import steps
from host import now

PATIENCE = 0.4  # of its time a step waits for the one that it comes after
REPORTED = "---- "  # what a program prints below a line that begins so is what it has to report


def plan(call, state, only=()):
    """The steps of a call in their order: all in the first; later those that failed, then those that were not reached."""
    ranks = {"failed": 1, "absent": 2, "not reached": 2}
    chosen = {}
    for step in steps.STEPS:
        if only and step.name not in only and step.group not in only and not step.always:
            continue
        leader = chosen.get(step.after)
        rank = 0 if step.always or call == "first" else ranks.get(state.status(step.name))
        if leader is not None and not by_name(step.after).background:
            rank = max(leader, rank or 0)
        if rank is not None:
            chosen[step.name] = rank
    leaders = {by_name(name).after for name in chosen}
    ordered = sorted(chosen, key=lambda name: chosen[name])  # stable: among equals, as in the table
    return [by_name(name) for name in ordered if not by_name(name).background or name in leaders]


def by_name(name):
    return next(step for step in steps.STEPS if step.name == name)


class Runner:
    def __init__(self, host, state, out, seconds, groups=None):
        self.host, self.state, self.out, self.seconds = host, state, out, seconds
        self.deadline = time.monotonic() + seconds
        self.left_of = dict(groups or steps.GROUPS)
        self.beside = {}  # steps that run in the background, by name

    def left(self):
        return self.deadline - time.monotonic()

    def run(self, chosen):
        for step in chosen:
            if step.background and not self.missing(step):
                try:
                    self.beside[step.name] = step, self.start(step, step.seconds)
                except OSError as error:
                    self.note(step, self.outcome("failed", str(error)), {})
        for step in chosen:
            if not step.background:
                report.announce(step)
                self.note(step, *self.perform(step))
            elif self.missing(step):
                self.note(step, self.outcome(*self.missing(step)), {})
        for name in list(self.beside):
            self.collect(name, 0)

    def start(self, step, seconds):
        log = self.log_of(step)
        log.write_text("")
        return process.Running(self.host.command(step), log, stdin=self.host.input_of(step), cwd=self.host.bundle,
                               environment=self.host.environment_of(step, seconds))

    def log_of(self, step):
        return self.state.folder / "logs" / f"{step.name.replace(' ', '-')}.log"

    def missing(self, step):
        """Why a step cannot run: its status and a line; else None."""
        for need in step.needs:
            if any(need == other.name for other in steps.STEPS):
                if self.state.status(need) != "ok":
                    return "not reached", f"it needs step {need}, which is {self.state.status(need)}"
            elif not self.host.has(need):
                return "absent", f"{need} is not on this host"
        return None

    def perform(self, step):
        """The outcome of a step, and its facts."""
        if process.stopping.is_set():
            return self.outcome("not reached", "the check was told to end"), {}
        missing = self.missing(step)
        if missing:
            return self.outcome(*missing), {}
        limit = min(step.seconds, self.left_of[step.group], self.left())
        if limit <= 0:
            whose = "the call" if self.left() <= 0 else f"the steps of {step.group}"
            return self.outcome("not reached", f"the time of {whose} was over"), {}
        began = time.monotonic()
        if step.after in self.beside:
            self.collect(step.after, PATIENCE * limit)
        limit = max(0.0, limit - (time.monotonic() - began))
        try:
            ended = self.start(step, limit).wait(limit)
            done = self.judged(step, ended, limit)
        except Exception as error:  # a fault of ours or of the bundle ends its step, not the call
            done = self.outcome("failed", f"{type(error).__name__}: {error}"), {}
        self.left_of[step.group] -= time.monotonic() - began
        return done

    def collect(self, name, seconds):
        """Waits for a step in the background, but not for its end once it has said what is asked of it; then stops it. What it has
        done so far stays in its cache."""
        step, running = self.beside.pop(name)

        def is_done():
            text = self.log_of(step).read_text(errors="replace")
            return bool(step.judge) and facts.all_hold(step.judge, facts.read(step.name, step.requests, text)[0])

        ended = running.wait(min(seconds, self.left()), watch=is_done)
        if is_done():
            ended = ended._replace(status=0, timed_out=False)
        self.note(step, *self.judged(step, ended, ended.seconds))

    def judged(self, step, ended, limit):
        text = self.log_of(step).read_text(errors="replace")
        found, card, error = facts.read(step.name, step.requests, text)
        self.state.card = card or self.state.card
        why = self.why(step, ended, limit, text) or error or self.unfulfilled(step, found)
        shown = told(text)
        if shown and shown[0][:300] == why:  # told already
            shown = shown[1:]
        note = shown[-1] if shown and REPORTED in text else ", ".join(
            f"{name} {value(entry)}" for name, entry in found.items() if not isinstance(entry.get("value"), (list, str)))
        status = "ok" if not why else "not reached" if ended.timed_out and self.is_cut(step, limit) else "failed"
        return self.outcome(status, why or "", ended.seconds, limit, shown if why else [], note[:240]), found

    @staticmethod
    def is_cut(step, limit):
        """Whether a step that did not end had so little time left that this says nothing of it."""
        return process.stopping.is_set() or limit < step.seconds / 2

    @staticmethod
    def why(step, ended, limit, text):
        lines = told(text)
        if ended.timed_out:
            return "the check was told to end" if process.stopping.is_set() else f"longer than {limit:.0f} s"
        if ended.status < 0:
            return f"killed by signal {-ended.status} ({signal.Signals(-ended.status).name})"
        if ended.status not in step.statuses:
            return lines[0 if REPORTED in text else -1][:300] if lines else f"status {ended.status}"
        return None

    def unfulfilled(self, step, found):
        for condition in step.judge:
            holds = facts.holds(condition, found)
            if not holds:
                name = facts.parse(condition)[0]
                return f"it did not say {name}" if holds is None else f"{name} is {facts.lookup(found, name)}; wanted: {condition}"
        return None

    def outcome(self, status, why, seconds=0.0, limit=0.0, lines=(), note=""):
        return {"status": status, "why": why, "seconds": round(seconds, 1), "limit": round(limit, 1), "lines": list(lines),
                "note": note, "card": self.state.card, "date": now()}

    def note(self, step, outcome, found):
        self.state.record(step.name, found, **outcome)
        report.tell(step, outcome)
        self.save()

    def save(self):
        if not self.beside:  # it would change under the reader
            self.state.keep_compiled()
        (self.out / "report.txt").write_text(report.text(self.state, self.out) + "\n")
        self.state.save(self.out)


def value(entry):
    number = entry["value"]
    return f"{number:.4g}" if isinstance(number, float) else number


def told(text):
    """What a program reported, or else the last lines that it printed; no facts."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("{")]
    marks = [place for place, line in enumerate(lines) if line.startswith(REPORTED)]
    return lines[marks[-1] + 1:][:200] if marks else lines[-30:]
