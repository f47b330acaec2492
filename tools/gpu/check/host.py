"""The machine that is checked: where things are, what programs find in their environment, what a step's words stand for."""

import collections
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

import steps

CHECK = pathlib.Path(__file__).absolute().parent

# What the programs of steps that are written in Python know of their call.
Call = collections.namedtuple("Call", "folder bundle seconds hang_after dry torch")


def call():
    """What gpu_check.py has told this process, which it started."""
    has = os.environ
    return Call(pathlib.Path(has["CHECK_FOLDER"]), pathlib.Path(has["CHECK_BUNDLE"]), float(has["CHECK_SECONDS"]),
                float(has["CHECK_HANG_AFTER"]), has["CHECK_DRY"] == "1", has["CHECK_TORCH"] or None)


def word(name, dry):
    return steps.WORDS[name][1 if dry else 0]


def packages(python):
    """The version of a Python's torch, or nothing, and the folders of CUDA's libraries in its nvidia wheels. Does not import
    torch, which takes seconds."""
    code = """
import glob, importlib.metadata as metadata, importlib.util as util
found = util.find_spec("nvidia")
print(":".join(d for r in found.submodule_search_locations for d in glob.glob(r + "/*/lib")) if found else "")
print(metadata.version("torch") if util.find_spec("torch") else "")"""
    said = subprocess.run([python, "-c", code], capture_output=True, text=True)
    wheels, torch = (said.stdout.splitlines() + ["", ""])[:2]
    return torch if said.returncode == 0 else "of an unknown version", wheels


class Host:
    """`emulated` is the build folder that holds the emulated GPU, for a dry run; else None."""

    def __init__(self, bundle, folder, emulated=None, hang_after=steps.TEST_SECONDS):
        self.bundle, self.folder, self.emulated, self.hang_after = bundle, folder, emulated, hang_after
        self.python = os.environ.get("PYTHON") or sys.executable
        self.torch, wheels = packages(self.python)
        self.environment = self._environment(wheels)

    def _environment(self, wheels):
        environment = dict(os.environ)
        join = lambda *parts: ":".join(str(part) for part in parts if part)
        beside = self.emulated and self.emulated / "lib/emulated"
        # CUDA's libraries: the wheels, the toolkit, the driver.
        environment["LD_LIBRARY_PATH"] = join(self.bundle / "lib", beside, wheels, "/usr/local/cuda/lib64",
                                              "/usr/local/nvidia/lib64", os.environ.get("LD_LIBRARY_PATH"))
        environment["PATH"] = join(self.bundle / "bin", self.emulated and self.emulated / "bin", os.environ.get("PATH"),
                                   "/usr/local/cuda/bin")
        # Streams that wait for the host must not stand before others, and a first launch not wait for them to load its code.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        environment["CUDA_MODULE_LOADING"] = "EAGER"
        environment["SHERD_CACHE"] = str(self.folder / "cache")  # what was found out about this card, and nothing of another run
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.folder / "inductor")  # a second call need not compile again
        if self.emulated:
            environment["SHERD_CUDA_LIB"] = str(self.emulated / "lib/emulated/libsherd_cuda_emulated.so")
            environment["SHERD_GPU_LIMITS"] = str(self.emulated / "bin/bench_gpu_limits_emulated")
        environment.update(CHECK_FOLDER=str(self.folder), CHECK_BUNDLE=str(self.bundle), CHECK_DRY="1" if self.emulated else "0",
                           CHECK_HANG_AFTER=str(self.hang_after), CHECK_TORCH=self.python if self.torch else "")
        return environment

    def environment_of(self, step, seconds):
        return {**self.environment, "CHECK_SECONDS": str(seconds), **step.environment}

    def has(self, program):
        """Whether this host has a program that a step needs; "torch" is a package."""
        return bool(self.torch) if program == "torch" else shutil.which(program, path=self.environment["PATH"]) is not None

    def fill(self, text):
        places = {name: word(name, self.emulated) for name in steps.WORDS}
        return text.format(python=self.python, python3=sys.executable, check=CHECK, peers=self.bundle / "tools/bench/peers",
                           **places)

    def command(self, step):
        words = [self.fill(part) for part in shlex.split(step.command)]
        return [piece for given, filled in zip(shlex.split(step.command), words)
                for piece in (filled.split() if given in ("{products}", "{smoke}") else [filled])]

    def input_of(self, step):
        return "".join(self.fill(request) + "\n" for request in step.requests.values())


def now():
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
