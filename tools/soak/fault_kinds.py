"""What may happen to a training, as data: the faults, the moment at which each comes, and what it may and must lead to."""
import dataclasses
import errno
import os
import re
import signal

STEPS, EVERY, KEEP = 60, 5, 3
NO_ROOM = os.strerror(errno.ENOSPC)
SAVED = 4  # exit status of a run that a signal has ended, after a save

CONFIG = """
vocabulary = "bytes"
seed = 11
batch = 12
threads = 1
eval_batches = 1
save_minutes = 0
[model]
layers = 2
heads = 2
width = 32
sequence = 16
[optimizer]
lr = 1e-3
warmup = 2
"""

# Ranks and flags.
CONFIGURATIONS = {
    "eager": (2, []),
    "eager3": (3, []),
    "captured": (2, ["--compile"]),
    "planned": (2, ["--compile", "--memory-budget", "90%"]),
    "planned_tp_async": (2, ["--mesh", "tp=2", "--save-async", "true", "--compile", "--memory-budget", "90%"]),
    "planned_hsdp": (4, ["--mesh", "replicate=2,dp=2", "--param-dtype", "bf16", "--compile", "--memory-budget", "97%"]),
    "planned_offload": (2, ["--offload", "optimizer", "--compile", "--memory-budget", "95%"]),
    "bf16": (2, ["--param-dtype", "bf16"]),
    "tp": (2, ["--mesh", "tp=2"]),
    "tp_async": (2, ["--mesh", "tp=2", "--save-async", "true", "--compile"]),
    "two_axes": (4, ["--mesh", "dp=2,tp=2"]),
    "hsdp": (4, ["--mesh", "replicate=2,dp=2", "--compile"]),
    "hsdp_async": (4, ["--mesh", "replicate=2,dp=2", "--save-async", "true"]),
    "async": (2, ["--save-async", "true"]),
    "async_captured": (3, ["--save-async", "true", "--compile"]),
    "offload": (2, ["--offload", "optimizer"]),
    "offload_all": (2, ["--offload", "all"]),
    "offload_all_backward": (2, ["--offload", "all", "--optimizer.clip", "0", "--compile"]),
    "offload_parameters": (2, ["--offload", "parameters", "--param-dtype", "bf16"]),
    "offload_backward": (2, ["--offload", "optimizer", "--optimizer.clip", "0", "--compile"]),
    "offload_async": (2, ["--offload", "all", "--save-async", "true"]),
}


def saves_beside(configuration):
    return "--save-async" in CONFIGURATIONS[configuration][1]


@dataclasses.dataclass(frozen=True)
class End:
    """How a job may end because of a fault, besides well; and what its output then says, as regular expressions."""
    statuses: frozenset
    words: tuple = ()


def end(*statuses, words=()):
    return End(frozenset(statuses), tuple(words))


@dataclasses.dataclass(frozen=True)
class Strike:
    """Signals from outside, at a moment. `pause`: seconds between two of them, least and most."""
    weight: int
    signals: tuple
    victims: dict  # "rank", "launcher", "guard": End
    pause: tuple = (0, 0)
    is_harmless: bool = False  # the run goes on without a restart
    is_deadly: bool = False  # a rank that it meets does no more work
    asks_for_end: bool = False  # by a user, after whom nothing is started again
    ends_only_at_start: tuple = ()  # victims that listen before the first step


# By its peers, or where they have ended by the launcher.
FROZEN = end(1, 137, words=[r"rank {number}(?: \(.*)? is frozen: no sign of life|"
                            r"ranks? .*\b{number}\b.* (not (?:come|answered) within .* no sign of life|has been stopped for)"])


# What a signal that asks for an end does to those who do not listen to it yet, or any more: it ends them.
def asking(number):
    name = signal.Signals(number).name
    return {"rank": end(SAVED, 128 + number, words=[name]), "launcher": end(SAVED, 128 + number, -number, words=[name]),
            "guard": end()}


def strikes(frozen_after):
    any_process = {"rank": end(), "launcher": end(), "guard": end()}
    return {
        "kill": Strike(20, ("KILL",), {"rank": end(137, words=["{victim} was killed by SIGKILL"]), "launcher": end(-9),
                                       "guard": end(1, words=["second process was killed by signal 9"])}, is_deadly=True),
        "freeze": Strike(5, ("STOP",), {"rank": FROZEN}, is_deadly=True),
        "thaw": Strike(2, ("STOP", "CONT"), {"rank": FROZEN}, (0.7 * frozen_after, 1.5 * frozen_after)),
        "pause": Strike(5, ("STOP", "CONT"), any_process, (0.01, 0.4 * frozen_after), is_harmless=True),
        "term": Strike(6, ("TERM",), asking(signal.SIGTERM), asks_for_end=True),
        "int": Strike(4, ("INT",), asking(signal.SIGINT), asks_for_end=True),
        "twice": Strike(3, ("TERM", "TERM"), {"launcher": asking(signal.SIGTERM)["launcher"]}, (0, 0.3), asks_for_end=True),
        "hup": Strike(2, ("HUP",), {"rank": end(129, words=["{victim} was killed by SIGHUP"]),
                                    "launcher": end(129, -1, words=["SIGHUP"])}, asks_for_end=True),
        # One who does not listen to it yet is ended by it: of ranks, a process that has not come to its main program.
        "usr1": Strike(4, ("USR1",), {"rank": end(138, words=["{victim} was killed by SIGUSR1"]), "launcher": end(-10),
                                      "guard": end()}, is_harmless=True, ends_only_at_start=("rank",)),
    }


# Calls to files, by where the file is, and how often each is chosen; "tmp" holds what is offloaded.
CALLS = {
    ("checkpoint", "open"): 4, ("checkpoint", "read"): 4, ("checkpoint", "write"): 4, ("checkpoint", "sync"): 4,
    ("checkpoint", "rename"): 4, ("checkpoint", "close"): 2, ("checkpoint", "mkdir"): 1, ("checkpoint", "unlink"): 3,
    ("checkpoint", "lock"): 1, ("checkpoint", "truncate"): 1, ("checkpoint", "stat"): 3,
    ("text.txt", "open"): 1, ("text.txt", "read"): 1, ("text.txt", "stat"): 1,
    ("metrics.jsonl", "open"): 1, ("metrics.jsonl", "read"): 1, ("metrics.jsonl", "flush"): 1,
    ("metrics.jsonl", "truncate"): 1,
    ("tmp", "open"): 1, ("tmp", "read"): 2, ("tmp", "write"): 2, ("tmp", "allocate"): 2,
}
TAKES_ROOM = {"open", "write", "sync", "mkdir", "allocate", "flush"}
# What goes wrong at the call, and how often.
ACTIONS = {
    "EIO": 12,
    "ENOSPC": 3,  # from then on, at each such call of the process
    "kill": 5,
    "freeze": 1,
    "term": 2,
}


@dataclasses.dataclass
class Fault:
    kind: str
    victim: str = ""  # as Process.name
    # A strike comes when the metrics show the step, or at once if it is 0, and then after `delay` s.
    step: int = 0
    delay: float = 0.0
    pause: float = 0.0
    # One at a call: the `at`th of the victim.
    place: str = ""
    call: str = ""
    at: int = 0
    room: int = 0  # bytes on the disk that is full
    met: bool = False
    is_early: bool = False  # when it came there were steps to do
    began: float = 0.0  # when it met the job, as time.time() says
    seconds: float = 0.0  # from then to the end of the job or its restart
    path: str = ""  # of the file of the call

    def title(self):
        """What is counted together."""
        if self.call:
            return f"{self.kind} at a call"
        return self.kind + (f" of the {self.victim}" if self.victim in ("launcher", "guard") else
                            " of a rank" if self.victim else "")

    def where(self):
        return self.call and f"{self.call} in {self.place}"

    def __str__(self):
        if self.kind == "full disk":
            return f"a disk with room for {self.room} bytes"
        if self.call:
            return f"{self.kind} at {self.call} {self.at} of {self.victim} in {self.place}{self.path and f' ({self.path})'}"
        return (f"{self.kind} of {self.victim} {self.delay:.3f} s after {f'step {self.step}' if self.step else 'a start'}"
                f"{self.pause and f' for {self.pause:.2f} s' or ''}{'' if self.met else ', too late'}")

    def ends(self, kinds):
        """How the job may end by it."""
        if self.kind == "full disk":
            return end(1, words=[NO_ROOM])
        if self.kind in ("EIO", "ENOSPC"):
            # A file of a save is named as what it will be called.
            name = re.escape(os.path.basename(self.path).removesuffix(".partial") or self.place)
            if "/#" in self.path:
                name = self.place  # it has no name
            # A disk that is full stays so, and the first call may be one that need not work.
            names = [name] + ([r"rank-\d+\.safetensors", "manifest.json"] if self.kind == "ENOSPC" else [])
            return end(1, words=[os.strerror(getattr(errno, self.kind)), "|".join(names)])
        strike, who = kinds[self.kind], self.victim.split()[0]
        if self.step > 0 and who in strike.ends_only_at_start:
            return end()
        of = strike.victims[who]
        number = self.victim.removeprefix("rank ")
        return End(of.statuses, tuple(word.format(victim=self.victim, number=number) for word in of.words))

    def ends_for_good(self, kinds):
        """Whether it explains the end of a job that starts its ranks again after failures: it has met the launcher, which
        then does nothing any more, or asks for the end. Failures of ranks must be mended, whatever their status."""
        return self.victim in ("launcher", "guard") or self.kind in kinds and kinds[self.kind].asks_for_end

    def is_fatal(self, kinds):
        """Whether it ends this start of the ranks, so that the work is done only if there is another start. A signal may
        come too late, to a rank that is on its way out; who calls lives."""
        if self.victim in ("launcher", "guard"):
            return False
        if self.kind in kinds:
            return kinds[self.kind].is_deadly and (self.is_early or bool(self.call))
        return bool(self.call) and not self.may_be_ignored()

    def is_harmless(self, kinds):
        """Whether the job is likely to go on."""
        return kinds[self.kind].is_harmless if self.kind in kinds else bool(self.call) and self.may_be_ignored()

    def may_be_ignored(self):
        """Whether the job may end well although the call has failed."""
        if self.call in ("unlink", "lock", "close", "stat", "truncate", "allocate") or self.path.endswith("/lock"):
            return True
        if (self.call, self.place) == ("open", "tmp"):
            return True  # there may be no O_TMPFILE
        # What a load cannot read is passed over, and each rank looks by itself which config the newest save has.
        return self.call in ("open", "read") and self.place == "checkpoint" and not self.path.endswith(".partial")


def weighted(rng, weights):
    return rng.choices(list(weights), list(weights.values()))[0]


@dataclasses.dataclass
class Known:
    """Of the undisturbed run of a configuration."""
    losses: dict
    digest: str
    start_seconds: float  # until the first step is logged
    step_seconds: float
    save_bytes: int
    calls: dict  # by (rank, place, call): how many a whole run makes
    first_calls: dict  # and how many a resumed one makes until its first save


def draw_call(rng, known, configuration, first):
    """One at a call that the run will make, rather soon than late."""
    def count(rank, place, call):
        whole = known.calls.get((rank, place, call), 0)
        if first == 0:
            return whole
        return known.first_calls.get((rank, place, call), 0) + whole * (STEPS - first) // STEPS
    ranks = range(CONFIGURATIONS[configuration][0])
    weights = {key: weight for key, weight in CALLS.items() if any(count(rank, *key) for rank in ranks)}
    place, call = weighted(rng, weights)
    rank = rng.choice([rank for rank in ranks if count(rank, place, call)])
    kind = weighted(rng, {kind: weight for kind, weight in ACTIONS.items() if kind != "ENOSPC" or call in TAKES_ROOM})
    return Fault(kind, f"rank {rank}", place=place, call=call, at=1 + int(count(rank, place, call) * rng.random() ** 3))


def draw_strike(rng, kinds, known, configuration, first):
    kind = weighted(rng, {name: strike.weight for name, strike in kinds.items()})
    victim = weighted(rng, {name: 4 if name == "rank" else 1 for name in kinds[kind].victims})
    if victim == "rank":
        victim = f"rank {rng.randrange(CONFIGURATIONS[configuration][0])}"
    step = first + int((STEPS + 1 - first) * rng.random() ** 3)
    delay = rng.random() * (known.start_seconds if step == first else 2 * known.step_seconds)
    return Fault(kind, victim, step=step if step > first else 0, delay=delay, pause=rng.uniform(*kinds[kind].pause))


def draw(rng, kinds, known, configuration, first, at_start, can_fill):
    """A fault for a run that goes on after step `first`. One at a call must be known when the job is started."""
    groups = {"strike": 12 if kinds else 0, "call": 9 if at_start else 0, "full disk": 1 if at_start and can_fill else 0}
    group = weighted(rng, groups)
    if group == "strike":
        return draw_strike(rng, kinds, known, configuration, first)
    if group == "call":
        return draw_call(rng, known, configuration, first)
    return Fault("full disk", room=int(rng.random() * 1.5 * known.save_bytes))
