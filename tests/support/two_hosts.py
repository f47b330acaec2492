"""Two hosts on one machine: network namespaces joined by a pair of virtual devices, each with a host name of its own.

    with two_hosts.TwoHosts() as hosts:
        process = hosts.start(1, ["hostname"], stdout=subprocess.PIPE)

Takes root and iproute2 (`ip`); exits with status 77, saying what is missing, where they are not, or with 1 if the variable
SHERD_TEST_REQUIRE names `hosts`.
"""
import os
import shutil
import subprocess
import sys

ADDRESSES = ["10.77.0.1", "10.77.0.2"]
NAMES = ["host-a", "host-b"]
# $1 is the host's name.
ENTER = 'hostname "$1" && shift && exec "$@"'


def run(*words):
    subprocess.run(words, check=True, capture_output=True, text=True)


def why_not():
    """What is missing; empty if nothing is."""
    if not shutil.which("ip"):
        return "there is no `ip`; tools/setup --hosts installs iproute2"
    try:
        run("ip", "netns", "add", f"sherd-{os.getpid()}-try")
        run("ip", "netns", "del", f"sherd-{os.getpid()}-try")
    except subprocess.CalledProcessError as error:
        return f"this user cannot make network namespaces: {error.stderr.strip()}"
    return ""


def require():
    missing = why_not()
    if missing:
        required = "hosts" in os.environ.get("SHERD_TEST_REQUIRE", "").split(",")
        print(f"{'SHERD_TEST_REQUIRE names hosts, but' if required else 'skipped:'} {missing}")
        sys.exit(1 if required else 77)


class TwoHosts:
    """The hosts for a scope; processes that still run are killed at its end."""

    def __init__(self):
        self.spaces = [f"sherd-{os.getpid()}-{name}" for name in NAMES]
        self.processes = []

    def __enter__(self):
        try:
            for space in self.spaces:
                run("ip", "netns", "add", space)
            ends = [f"sherd{os.getpid() % 100000}{name[-1]}" for name in NAMES]
            run("ip", "link", "add", ends[0], "netns", self.spaces[0], "type", "veth", "peer", "name", ends[1], "netns",
                self.spaces[1])
            for space, end, address in zip(self.spaces, ends, ADDRESSES):
                run("ip", "-n", space, "addr", "add", f"{address}/24", "dev", end)
                run("ip", "-n", space, "link", "set", end, "up")
                run("ip", "-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, host, words, **options):
        """Popen of the words on a host, numbered from 0. Mounts that they make are their own."""
        process = subprocess.Popen(["ip", "netns", "exec", self.spaces[host], "unshare", "--uts", "--mount", "/bin/sh", "-c",
                                    ENTER, "sh", NAMES[host], *words], stdin=subprocess.DEVNULL, **options)
        self.processes.append(process)
        return process

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
