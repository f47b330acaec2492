"""Trainings under `sherd run` for the soak programs: their processes, what they do and leave, the disk they are on."""
import ctypes
import dataclasses
import hashlib
import json
import os
import pathlib
import signal
import subprocess
import time

DISK_BYTES = 32 << 20


class Failure(Exception):
    """What must not happen has happened."""


def check(condition, text):
    if not condition:
        raise Failure(text)


@dataclasses.dataclass
class Process:
    pid: int
    name: str  # "launcher", "guard" (the launcher's second process), "rank 0", ...


class Job:
    """One `sherd run`, whose processes are found again wherever they go. Its output is added to the file `output`."""

    def __init__(self, command, output, mark, environment=None):
        self.mark = f"SHERD_SOAK_MARK={mark}-{os.getpid()}"
        name, value = self.mark.split("=")
        self.output = output
        self.begin = output.stat().st_size if output.exists() else 0
        with open(output, "ab") as file:
            self.process = subprocess.Popen(command, env=dict(os.environ, **(environment or {}), **{name: value}),
                                            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                            start_new_session=True)  # Ctrl-C is for the soak

    def processes(self):
        """Those that live."""
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            if not entry.name.isdigit():
                continue
            try:
                environment = (entry / "environ").read_bytes().split(b"\0")
                if self.mark.encode() not in environment or \
                        (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                    continue
            except OSError:
                continue  # ended meanwhile
            ranks = [item.split(b"=")[1].decode() for item in environment if item.startswith(b"SHERD_RANK=")]
            pid = int(entry.name)
            found.append(Process(pid, f"rank {ranks[0]}" if ranks else "launcher" if pid == self.process.pid else "guard"))
        return sorted(found, key=lambda process: process.pid)

    def status(self):
        """Of the launcher as the shell says it, minus a signal that has killed it; None while it runs."""
        return self.process.poll()

    def wait(self, seconds):
        """The status, None if it runs on."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self):
        """Leaves nothing of it, whatever it does."""
        while processes := self.processes():
            for process in processes:
                send(process.pid, signal.SIGKILL)
        self.process.wait()

    def check_nothing_is_left(self):
        end = time.monotonic() + 10  # what was killed with its parent may take a moment to go
        while left := self.processes():
            check(time.monotonic() < end, f"left behind: {', '.join(f'{p.name}, process {p.pid}' for p in left)}")

    def text(self):
        with open(self.output, "rb") as file:
            file.seek(self.begin)
            return file.read().decode(errors="replace")


def send(pid, number):
    """Whether the process was there."""
    try:
        os.kill(pid, number)
        return True
    except ProcessLookupError:
        return False


def losses(metrics):
    """By step, the loss and the gradient norm that the file of metrics holds."""
    result = {}
    for line in metrics.read_text().splitlines() if metrics.exists() else []:
        try:
            item = json.loads(line)
        except ValueError:
            continue  # the last line of a killed run
        if "loss" in item:
            result[item["step"]] = (item["loss"], item["grad_norm"])
    return result


def folders_of_saves(folder):
    """Of the committed saves, oldest first; a step may have several, the last of which counts."""
    def key(path):
        return tuple(int(part) for part in path.name.removeprefix("step-").split("."))
    return sorted((path.parent for path in folder.glob("step-*/manifest.json")), key=key)


def steps_of_saves(folder):
    return [int(path.name.removeprefix("step-").split(".")[0]) for path in folders_of_saves(folder)]


def digest(folder):
    """Of all bytes of the tensors of the newest save."""
    sums = hashlib.sha256()
    for path in sorted(folders_of_saves(folder)[-1].glob("rank-*.safetensors")):
        sums.update(path.name.encode() + path.read_bytes())
    return sums.hexdigest()


class Watch:
    """Waits for what a job does, and fails if that is nothing for too long."""

    def __init__(self, job, metrics, limit):
        self.job, self.metrics, self.limit = job, metrics, limit
        self.seen = self.old = self.signature()
        self.restarts, self.output_bytes = 0, 0
        self.changed = time.monotonic()

    def signature(self):
        try:
            status = self.metrics.stat()
            return status.st_mtime_ns, status.st_size
        except FileNotFoundError:
            return None

    def look(self):
        seen, output_bytes = self.signature(), self.job.output.stat().st_size
        restarts = self.restarts
        if output_bytes != self.output_bytes:
            self.output_bytes = output_bytes
            restarts = self.job.text().count("sherd run: restart ")
        if restarts != self.restarts:
            self.old = seen  # the lines of the start before are no signs of this one
        if seen != self.seen or restarts != self.restarts:
            self.changed = time.monotonic()
        self.seen, self.restarts = seen, restarts

    def until(self, condition, limit=None):
        """Whether it came before the job's end, and before `limit` s were over."""
        start = time.monotonic()
        while self.job.wait(0.004) is None:
            self.look()
            if condition():
                return True
            now = time.monotonic()
            if limit is not None and now - start > limit:
                return False
            if now - self.changed > self.limit:
                names = ", ".join(f"{process.name} ({state_of(process.pid)})" for process in self.job.processes())
                raise Failure(f"hangs: no step and no end for {self.limit} s; there are {names}")
        self.look()
        return False

    def until_end(self):
        self.until(lambda: False)

    def shows(self, step):
        return self.seen != self.old and max(losses(self.metrics), default=0) >= step


def state_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return "gone"


class Disk:
    """A place for files: a small file system in memory, which may be full, or a folder."""

    def __init__(self, folder, is_mounted):
        self.folder = folder
        folder.mkdir()
        self.is_own = is_mounted and subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "sherd-soak", str(folder)]).returncode == 0

    def leave_room(self, count):
        status = os.statvfs(self.folder)
        taken = status.f_bavail * status.f_frsize - count
        with open(self.folder / "ballast", "wb") as file:
            os.posix_fallocate(file.fileno(), 0, max(taken, 1))

    def make_room(self):
        (self.folder / "ballast").unlink(missing_ok=True)


def may_mount():
    """Mounts of this process and its children only, which end with them."""
    libc = ctypes.CDLL(None)
    new_mounts = 0x00020000
    return os.geteuid() == 0 and libc.unshare(new_mounts) == 0 and \
        subprocess.run(["mount", "--make-rprivate", "/"], stderr=subprocess.DEVNULL).returncode == 0
