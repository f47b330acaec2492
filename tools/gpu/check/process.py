"""Programs under limits. Each leads a process group of its own, which is stopped whole."""

import collections
import os
import signal
import subprocess
import threading
import time

GOODBYE_SECONDS = 1.5  # between SIGTERM and SIGKILL
POLL_SECONDS = 0.1

Ended = collections.namedtuple("Ended", "status seconds timed_out")  # status < 0: a signal

stopping = threading.Event()  # whoever told this process to end wants all that it has started ended


def stop_on_signals():
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopping.set())


class Running:
    """A program that was started; what it prints goes to the end of the file `output`."""

    def __init__(self, command, output, stdin="", environment=None, cwd=None):
        self.began = time.monotonic()
        with open(output, "ab") as file:
            self.process = subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=file,
                                            stderr=subprocess.STDOUT, cwd=cwd, start_new_session=True, env=environment)
        try:
            self.process.stdin.write(stdin.encode())
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it ended before it read; its status says why

    def wait(self, seconds, watch=None):
        """Waits so long, or until this process is told to end, or `watch()` is true; then stops the program."""
        until = time.monotonic() + max(0.0, seconds)
        stopped = False
        while self.process.poll() is None:
            if time.monotonic() >= until or stopping.is_set() or (watch and watch()):
                stopped = True
                break
            try:
                self.process.wait(min(POLL_SECONDS, max(0.01, until - time.monotonic())))
            except subprocess.TimeoutExpired:
                pass
        self.stop()
        return Ended(self.process.returncode, time.monotonic() - self.began, stopped)

    def stop(self):
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self.process.poll() is not None:
                break
            self._tell(number)
            try:
                self.process.wait(GOODBYE_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        self._tell(signal.SIGKILL)  # what it left behind
        self.process.wait()

    def _tell(self, number):
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            pass


def run(command, seconds, output, watch=None, **options):
    return Running(command, output, **options).wait(seconds, watch)
