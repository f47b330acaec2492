"""The machine a stage runs on: where things are, how programs are started, how much time is left, what is kept."""

import collections
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

GOODBYE_SECONDS = 3  # between SIGTERM and SIGKILL


class Result(collections.namedtuple("Result", "status seconds why lines note")):
    """Of a step. status: 0, an exit status, "absent" (a tool is not on this host). `why` is one line, `lines` are the
    last of what was printed, `note` is what a step that went well has to say."""

    @property
    def failed(self):
        return self.status not in (0, "absent")


def result(status=0, seconds=0.0, why="", lines=(), note=""):
    return Result(status, seconds, why, list(lines), note)


Ended = collections.namedtuple("Ended", "status seconds timed_out")  # of one process; status < 0: a signal


class Host:
    def __init__(self, stage, bundle, out, dry, hang_after, seconds):
        self.stage, self.bundle, self.out, self.dry, self.hang_after = stage, bundle, out, dry, hang_after
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.seconds = seconds
        self.device = None  # its name, once a program has said it
        self.notes = []
        out.mkdir(parents=True, exist_ok=True)
        self.log = out / f"{stage}.log"
        self.log.write_text("")
        self.python = os.environ.get("PYTHON") or sys.executable
        self.environment = self._environment()

    def _environment(self):
        environment = dict(os.environ)
        # CUDA's libraries: the wheels of Python's nvidia packages, the toolkit, the driver.
        wheels = subprocess.run(
            [self.python, "-c", 'import nvidia,glob;print(":".join(d for r in nvidia.__path__ for d in glob.glob(r+"/*/lib")))'],
            capture_output=True, text=True).stdout.strip()
        join = lambda *parts: ":".join(str(part) for part in parts if part)
        emulated = self.bundle / "lib/emulated" if self.dry else None
        environment["LD_LIBRARY_PATH"] = join(self.bundle / "lib", emulated, wheels, "/usr/local/cuda/lib64", "/usr/local/nvidia/lib64",
                                              os.environ.get("LD_LIBRARY_PATH"))
        environment["PATH"] = join(self.bundle / "bin", os.environ.get("PATH"), "/usr/local/cuda/bin")
        # Streams that wait for the host must not stand before others, and a first launch not wait for them to load its code.
        environment["CUDA_DEVICE_MAX_CONNECTIONS"] = "32"
        environment["CUDA_MODULE_LOADING"] = "EAGER"
        environment["SHERD_CACHE"] = str(self.out / "cache")  # what was found out about this card, and nothing of another run
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(self.out / "inductor")  # a second call need not compile again
        if self.dry:
            environment["SHERD_CUDA_LIB"] = str(self.bundle / "lib/emulated/libsherd_cuda_emulated.so")
            environment["SHERD_GPU_LIMITS"] = str(self.bundle / "bin/bench_gpu_limits_emulated")
        return environment

    def sized(self, full, small):
        return small if self.dry else full

    def has(self, program):
        return shutil.which(program, path=self.environment["PATH"]) is not None

    def has_torch(self):
        return subprocess.run([self.python, "-c", "import torch"], capture_output=True).returncode == 0

    def limits_program(self):
        return self.sized("bench_gpu_limits", "bench_gpu_limits_emulated")

    def test_program(self):
        """In a dry run the one whose kernels the emulated GPU runs; the other's are nvcc's."""
        return self.sized("test_cuda_device", "test_cuda")

    def left(self):
        return self.deadline - time.monotonic()

    def run(self, command, seconds, output, stdin="", environment=(), cwd=None, watch=None):
        """Runs a program into the file `output`, for at most so many seconds and those that the stage has left; then all
        of its process group is stopped. `watch()` is called ten times a second and may stop it by returning True."""
        until = time.monotonic() + max(0.0, min(seconds, self.left()))
        start = time.monotonic()
        with open(output, "ab") as file:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=file,
                                       stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True,
                                       env={**self.environment, **dict(environment)})
            try:
                process.stdin.write(stdin.encode())
                process.stdin.close()
            except BrokenPipeError:
                pass  # it ended before it read; its status says why
            stopped = False
            while process.poll() is None:
                if time.monotonic() >= until or (watch and watch()):
                    stopped = True
                    self._stop(process)
                    break
                try:
                    process.wait(min(0.1, max(0.01, until - time.monotonic())))
                except subprocess.TimeoutExpired:
                    pass
        return Ended(process.returncode, time.monotonic() - start, stopped)

    @staticmethod
    def _stop(process):
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
            except ProcessLookupError:
                pass
            try:
                process.wait(GOODBYE_SECONDS)
                break
            except subprocess.TimeoutExpired:
                continue
        try:
            os.killpg(process.pid, signal.SIGKILL)  # what it left behind
        except ProcessLookupError:
            pass
        process.wait()

    def run_step(self, step, command, **options):
        """A program that is all of a step; its output goes to the stage's log too. Returns the result and the output."""
        output = self.out / f"{self.stage}-{step.name.replace(' ', '-')}.log"
        output.write_text("")
        ended = self.run(command, step.seconds, output, **options)
        text = output.read_text(errors="replace")
        self.append_log(step, command, text)
        return judged(ended, text, min(step.seconds, self.seconds)), text

    def append_log(self, step, command, text):
        with open(self.log, "a") as log:
            log.write(f"== {step.name}: {' '.join(str(word) for word in command)}\n{text}\n")

    def note(self, step, result):
        """One more step is over. The file is replaced whole, so that it is never half a file."""
        self.notes.append((step, result))
        steps = [{"step": s.name, "status": r.status, "seconds": round(r.seconds, 1), "limit": s.seconds, "why": r.why,
                  "note": r.note} for s, r in self.notes]
        self.write_json(f"{self.stage}.json", {
            "stage": self.stage, "dry_run": self.dry, "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": self.device, "seconds": round(time.monotonic() - self.began, 1), "limit": self.seconds, "steps": steps})

    def write_json(self, name, value):
        part = self.out / (name + ".part")
        part.write_text(json.dumps(value, indent=1) + "\n")
        part.replace(self.out / name)

    def read_json(self, name):
        try:
            return json.loads((self.out / name).read_text())
        except (OSError, ValueError):
            return None


def judged(ended, text, limit):
    """The result of a process: what it printed last says why it failed."""
    lines = [line for line in text.splitlines() if line.strip()]
    if ended.timed_out:
        return result(124, ended.seconds, f"longer than {limit:g} s", lines[-30:])
    if ended.status < 0:
        return result(128 - ended.status, ended.seconds, f"killed by signal {-ended.status} ({signal.Signals(-ended.status).name})",
                      lines[-30:])
    if ended.status:
        return result(ended.status, ended.seconds, lines[-1][:300] if lines else f"status {ended.status}", lines[-30:])
    return result(0, ended.seconds)
