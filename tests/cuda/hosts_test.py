"""Ranks of two hosts (tests/support/two_hosts.py), two on each, train on emulated devices as ranks of one host do: they meet
at the store, agree over it, save, resume, and are told who is lost or what does not fit.

Usage: hosts_test.py PROGRAM LIBRARY   (the CUDA backend). Status 77 where no hosts can be made.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import two_hosts  # noqa: E402

PROGRAM, LIBRARY = (str(pathlib.Path(word).resolve()) for word in sys.argv[1:3])
del sys.argv[1:3]
RANKS = 4
LIMIT = 120  # seconds
RECIPE = """
data = "{folder}/text.txt"
vocabulary = "chars"
batch = 4
threads = 1
eval_batches = 1
save_minutes = 0
device = "cuda"
deadline = 30
frozen_after = 20
[model]
style = "llama"
layers = 2
heads = 2
width = 16
sequence = 12
"""


class TwoHosts(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory()
        self.addCleanup(scratch.cleanup)
        self.folder = pathlib.Path(scratch.name)
        (self.folder / "text.txt").write_text("pack my box with five dozen liquor jugs\n" * 100)
        (self.folder / "tiny.toml").write_text(RECIPE.format(folder=self.folder))
        self.hosts = self.enterContext(two_hosts.TwoHosts())
        self.environment = {**os.environ, "SHERD_CUDA_LIB": LIBRARY, "SHERD_CACHE": "", "SHERD_REPRODUCIBLE": "1"}

    def start(self, *flags, secret="open sesame", on_second_host="exec \"$@\""):
        """As torchrun --nnodes 2 --nproc-per-node 2 does."""
        ranks = []
        for rank in range(RANKS):
            host = rank // 2
            variables = {"RANK": rank, "WORLD_SIZE": RANKS, "LOCAL_RANK": rank % 2, "LOCAL_WORLD_SIZE": 2,
                         "MASTER_ADDR": two_hosts.ADDRESSES[0], "MASTER_PORT": 29500, "SHERD_SECRET": secret}
            if not secret:
                del variables["SHERD_SECRET"]
            script = on_second_host if host == 1 else 'exec "$@"'
            words = ["/bin/sh", "-c", script, "sh", PROGRAM, "train", str(self.folder / "tiny.toml"), *map(str, flags)]
            ranks.append(self.hosts.start(host, words, env={**self.environment, **{k: str(v) for k, v in variables.items()}},
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        return ranks

    def ends(self, ranks):
        """(status, standard error) of each rank."""
        return [(rank.returncode, err) for rank, err in [(r, r.communicate(timeout=LIMIT)[1]) for r in ranks]]

    def expect_well(self, ranks):
        ends = self.ends(ranks)
        for rank, (status, err) in enumerate(ends):
            self.assertEqual(status, 0, f"rank {rank}: {err}")
        return ends

    def losses(self, name):
        lines = [json.loads(line) for line in (self.folder / name).read_text().splitlines()]
        return [line["loss"] for line in lines if "loss" in line]

    def test_they_train_save_and_resume_as_on_one_host(self):
        whole = subprocess.run([PROGRAM, "run", "-n", str(RANKS), "--", PROGRAM, "train", self.folder / "tiny.toml", "--steps",
                                "5", "--metrics", self.folder / "whole"], env=self.environment, capture_output=True, text=True,
                               timeout=LIMIT, check=False)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        saves = self.folder / "saves"
        ends = self.expect_well(self.start("--steps", 3, "--metrics", self.folder / "head", "--save", saves))
        self.assertIn("4 ranks, memory of GPUs by NCCL", ends[0][1])
        self.assertIn("2 ranks of 1 thread", ends[0][1], "of the first host")
        self.expect_well(self.start("--steps", 5, "--resume", saves, "--metrics", self.folder / "tail"))
        self.assertEqual(self.losses("head"), self.losses("whole")[:3])
        self.assertEqual(self.losses("tail"), self.losses("whole")[3:])

    def test_a_lost_rank_is_named_and_its_run_goes_on(self):
        saves = self.folder / "saves"
        self.expect_well(self.start("--steps", 2, "--save", saves))
        ranks = self.start("--steps", 100000, "--resume", saves, "--save", saves, "--save-every", 2)
        self.assertTrue(any(re.search(r"step +3/", line) for line in ranks[0].stderr), "rank 0 has ended")
        ranks[3].kill()
        began = time.monotonic()
        for rank, (status, err) in enumerate(self.ends(ranks)[:3]):
            self.assertNotEqual(status, 0, f"rank {rank}")
            self.assertIn("rank 3", err, f"rank {rank}")
        self.assertLess(time.monotonic() - began, 20, "before the deadline")
        newest = max(int(save.name.split("-")[1]) for save in saves.glob("step-*") if (save / "manifest.json").exists())
        self.expect_well(self.start("--resume", saves, "--steps", newest + 2, "--metrics", self.folder / "rest"))
        self.assertEqual(len(self.losses("rest")), 2)

    def test_the_rank_with_the_store_is_missed_by_all(self):
        ranks = self.start("--steps", 100000)
        self.assertTrue(any(re.search(r"step +1/", line) for line in ranks[0].stderr), "rank 0 has ended")
        ranks[0].kill()
        for rank, (status, err) in enumerate(self.ends(ranks)[1:], 1):
            self.assertEqual(status, 1, f"rank {rank}: {err}")
            self.assertIn("CommError", err, f"rank {rank}")

    def test_staged_groups_are_of_one_host(self):
        for rank, (status, err) in enumerate(self.ends(self.start("--group", "staged"))):
            self.assertNotEqual(status, 0, f"rank {rank}")
            self.assertIn("GPUs of several hosts move their memory by NCCL alone", err)
            self.assertIn("leave --group staged out", err)

    def test_without_a_secret_every_rank_says_so(self):
        for rank, (status, err) in enumerate(self.ends(self.start(secret=""))):
            self.assertEqual(status, 1, err)
            self.assertIn(f"rank {rank} of 4 runs on host {two_hosts.NAMES[rank // 2]}", err)
            self.assertIn("SHERD_SECRET is not set", err)

    def test_a_folder_of_one_host_only_is_refused_on_every_rank(self):
        saves = self.folder / "saves"
        saves.mkdir()
        elsewhere = f'mount -t tmpfs none "{saves}" && exec "$@"'
        for rank, (status, err) in enumerate(self.ends(self.start("--steps", 2, "--save", saves, on_second_host=elsewhere))):
            self.assertNotEqual(status, 0, f"rank {rank}")
            self.assertIn("of host host-b is not the one that rank 0 saves to", err, f"rank {rank}")

    def test_ranks_on_cpus_are_refused_on_each(self):
        for rank, (status, err) in enumerate(self.ends(self.start("--device", "cpu"))):
            self.assertEqual(status, 1, f"rank {rank}: {err}")
            self.assertIn(f"rank {rank} of 4 runs on host host-", err)
            self.assertIn("--device cuda", err)


two_hosts.require()
unittest.main(verbosity=2)
