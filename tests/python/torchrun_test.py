"""Ranks that torchrun starts train what they would under `sherd run`, and a mistake that every rank sees ends the run.

Usage: torchrun_test.py PROGRAM
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

PROGRAM = sys.argv.pop(1)
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python", "--nproc-per-node", "2"]
SHERD_RUN = [PROGRAM, "run", "-n", "2", "--"]
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


class Torchrun(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "text.txt").write_text("pack my box with five dozen liquor jugs\n" * 100)
        (self.folder / "tiny.toml").write_text(RECIPE.format(folder=self.folder))

    def train(self, launcher, *flags):
        return subprocess.run([*launcher, PROGRAM, "train", self.folder / "tiny.toml", *flags],
                              capture_output=True, text=True, timeout=240, check=False)

    def losses(self, launcher):
        metrics = self.folder / "metrics.jsonl"
        end = self.train(launcher, "--metrics", metrics)
        self.assertEqual(end.returncode, 0, end.stderr)
        self.assertIn("collectives of the last step", end.stdout)
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        metrics.unlink()
        return [line["loss"] for line in lines if "loss" in line]

    def test_ranks_train(self):
        expected = self.losses(SHERD_RUN)
        self.assertEqual(len(expected), 5)
        self.assertEqual(self.losses(TORCHRUN), expected)

    def test_a_mistake_ends_the_run(self):
        end = self.train(TORCHRUN, "--batch", "5")
        self.assertNotEqual(end.returncode, 0)
        self.assertIn("batch = 5", end.stderr)
        self.assertIn("2 ranks", end.stderr)


unittest.main()
