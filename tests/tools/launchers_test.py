"""Ranks that a launcher starts train what they would under `sherd run`, two jobs at once do not meet, and a mistake that
every rank sees ends the run.

Usage: launchers_test.py PROGRAM open_mpi | hydra | proxy | torchrun

hydra is the mpirun of MPICH and Intel MPI; proxy needs neither: it starts ranks as Hydra does. Status 77, saying what is
missing, where the launcher is not installed.
"""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = pathlib.Path(sys.argv.pop(1)).resolve()
LAUNCHER = sys.argv.pop(1)
SHERD_RUN = [PROGRAM, "run", "-n", "2", "--"]
LIMIT = 120  # seconds
RECIPE = """
data = "{folder}/text.txt"
vocabulary = "chars"
steps = 5
batch = 4
threads = 1
eval_batches = 1
[model]
style = "gpt2"
layers = 2
heads = 2
width = 16
sequence = 12
"""
# What Hydra's proxy does on one host, by the variables that it sets; run by a shell of its name.
PROXY = """
for r in 0 1; do
  PMI_RANK=$r PMI_SIZE=2 MPI_LOCALRANKID=$r MPI_LOCALNRANKS=2 "$@" & pids="$pids $!"
done
for p in $pids; do wait $p || status=$?; done
exit $status
"""
# Stays between the launcher and the rank, as the scripts of users do.
SHELL = ["/bin/sh", "-c", '"$@"; exit $?', "sh"]
# Holds rank 1 until somebody writes to the pipe.
HELD = ["/bin/sh", "-c", '[ ${PMI_RANK-}${OMPI_COMM_WORLD_RANK-} = 0 ] || read word < "$0"; exec "$@"']


def installed(names, says):
    """The first of the programs whose --version says one of `says`."""
    for name in filter(shutil.which, names):
        version = subprocess.run([name, "--version"], capture_output=True, text=True, check=False).stdout
        if any(word in version for word in says):
            return name
    print(f"skipped: none of {', '.join(names)} is the launcher of {' or '.join(says)}"
          + ("; tools/setup --mpi installs MPICH" if LAUNCHER == "hydra" else ""))
    sys.exit(77)


def launcher_words():
    """How it starts two ranks."""
    if LAUNCHER == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
    if LAUNCHER == "open_mpi":
        as_root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        return [installed(["mpirun.openmpi", "mpirun"], ["Open MPI"]), "-n", "2", "--oversubscribe", *as_root]
    if LAUNCHER == "hydra":
        return [installed(["mpiexec.hydra", "mpirun.mpich", "mpirun"], ["HYDRA", "Intel(R) MPI"]), "-n", "2"]
    return []  # setUp makes one


WORDS = launcher_words()


class Launchers(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "text.txt").write_text("pack my box with five dozen liquor jugs\n" * 100)
        (self.folder / "tiny.toml").write_text(RECIPE.format(folder=self.folder))
        (self.folder / "runtime").mkdir(mode=0o700)
        self.environment = {**os.environ, "XDG_RUNTIME_DIR": str(self.folder / "runtime")}
        self.launcher = WORDS
        if LAUNCHER == "proxy":
            proxy = self.folder / "hydra_pmi_proxy"
            proxy.symlink_to("/bin/sh")
            self.launcher = [proxy, "-c", PROXY, "sh"]

    def start(self, launcher, *flags):
        return subprocess.Popen([*launcher, PROGRAM, "train", self.folder / "tiny.toml", *flags], env=self.environment,
                                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def end(self, process):
        self.addCleanup(process.kill)
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err

    def losses(self, process, metrics):
        """Of a run on two ranks that has gone well."""
        status, out, err = self.end(process)
        self.assertEqual(status, 0, err)
        self.assertIn("collectives of the last step", out)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        self.assertEqual([line["ranks"] for line in lines if "config" in line], [2], "one run, of two ranks")
        return [line["loss"] for line in lines if "loss" in line]

    def train(self, launcher, name):
        metrics = self.folder / name
        return self.losses(self.start(launcher, "--metrics", metrics), metrics)

    def test_ranks_train(self):
        expected = self.train(SHERD_RUN, "expected")
        self.assertEqual(len(expected), 5)
        self.assertEqual(self.train(self.launcher, "alone"), expected)

    @unittest.skipIf(LAUNCHER == "torchrun", "its variables tell its jobs apart, and it takes seconds to start")
    def test_ranks_below_a_shell_train(self):
        self.assertEqual(len(self.train([*self.launcher, *SHELL], "metrics")), 5)

    @unittest.skipIf(LAUNCHER == "torchrun", "as above")
    def test_two_jobs_at_once_do_not_meet(self):
        pipe, metrics = self.folder / "pipe", self.folder / "held"
        os.mkfifo(pipe)
        held = self.start([*self.launcher, *HELD, pipe], "--metrics", metrics)
        self.addCleanup(held.kill)
        until = time.monotonic() + LIMIT
        while not list(self.folder.glob("runtime/sherd/*.store")):  # by which rank 1 will find rank 0
            self.assertLess(time.monotonic(), until)
            self.assertIsNone(held.poll())
        expected = self.train(self.launcher, "between")
        pipe.write_text("go\n")
        self.assertEqual(self.losses(held, metrics), expected)

    def test_a_mistake_ends_the_run(self):
        status, _, err = self.end(self.start(self.launcher, "--batch", "5"))
        self.assertNotEqual(status, 0)
        self.assertIn("batch = 5", err)
        self.assertIn("2 ranks", err)


unittest.main()
