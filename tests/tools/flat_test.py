#!/usr/bin/env python3
"""tools/soak/flat.py must find what grows, and must not take for growth what comes and goes."""
import argparse
import copy
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "soak"))
import flat  # noqa: E402

STEPS = 20000
OPTIONS = argparse.Namespace(steps=STEPS)
KEPT = (3 * 1000, 3 * 3)  # bytes and files of the saves at the end


def samples_of_a_flat_run():
    rng = random.Random(7)
    samples = []
    for step in range(100, STEPS, 100):
        is_saving = rng.random() < 0.3
        held = {"own": 6000 + rng.randrange(40) + 1024 * is_saving, "of files": 11000, "shared": 2500,
                "descriptors": 12 + is_saving, "threads": 6}
        samples.append({
            "step": step,
            "processes": {"rank 0": held},
            "disk": {"bytes of saves": 3000 + 900 * is_saving, "files of saves": 10 + 2 * is_saving,
                     "bytes of other files": 0, "other files": 0},
            "written": {"metrics": 500 * step, "log": step // 10},
        })
    return samples


def growing(change):
    """The first words of the lines of what grows in a run that `change(sample, steps since the warm-up)` alters."""
    samples = copy.deepcopy(samples_of_a_flat_run())
    for sample in samples:
        change(sample, max(0, sample["step"] - STEPS // 4))
    return [" ".join(line.split()[:4]) for line in flat.judge(OPTIONS, samples, KEPT)[1]]


def add(kind, name, amount):
    def change(sample, steps):
        (sample["disk"] if kind == "disk" else sample["processes"]["rank 0"])[name] += amount(steps)
    return change


class Flat(unittest.TestCase):
    def test_what_comes_and_goes_is_no_growth(self):
        self.assertEqual(growing(lambda sample, steps: None), [])
        self.assertEqual(growing(add("memory", "own", lambda steps: 1024 * (steps > 7000))), [], "one jump of the heap")
        self.assertEqual(growing(add("disk", "bytes of saves", lambda steps: 12 * (steps > 5000))), [], "a digit more")

    def test_leaks_of_memory(self):
        for kind, words in (("own", "rank 0 memory own"), ("shared", "rank 0 memory shared")):
            self.assertEqual(growing(add("memory", kind, lambda steps: int(0.2 * steps))), [words])
            self.assertEqual(growing(add("memory", kind, lambda steps: 132 * (steps // 1000))), [words], "in jumps")

    def test_leaks_of_descriptors_and_threads(self):
        for kind in ("descriptors", "threads"):
            found = growing(add("memory", kind, lambda steps: steps // 5000))
            self.assertEqual([line.split()[:3] for line in found], [["rank", "0", kind]])

    def test_what_stays_on_the_disk(self):
        self.assertEqual(growing(add("disk", "files of saves", lambda steps: steps // 5000)), ["disk files of saves"])
        self.assertEqual(growing(add("disk", "bytes of saves", lambda steps: steps // 10)), ["disk bytes of saves"])
        self.assertEqual(len(growing(add("disk", "other files", lambda steps: steps // 2000))), 1)

    def test_a_file_that_grows_faster_than_its_lines(self):
        self.assertEqual(len(growing(lambda sample, steps: sample["written"].update(metrics=sample["step"] ** 2))), 1)

    def test_a_run_of_which_little_was_seen(self):
        with self.assertRaisesRegex(flat.Failure, "give it more steps"):
            flat.judge(OPTIONS, samples_of_a_flat_run()[:60], KEPT)


if __name__ == "__main__":
    unittest.main()
