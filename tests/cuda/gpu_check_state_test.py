"""What a GPU check knows (tools/gpu/check): facts that programs print, conditions on them, the folder and the archive that keep
them; how programs are stopped.

Usage: gpu_check_state_test.py SOURCE
"""
import io
import os
import pathlib
import select
import sys
import tarfile
import tempfile
import unittest
from unittest import mock

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import facts  # noqa: E402
import process  # noqa: E402
import state  # noqa: E402


class Facts(unittest.TestCase):
    def test_what_programs_print(self):
        text = """warming up
{"peer": "limit", "device": "NVIDIA H200"}
{"properties": {"name": "NVIDIA H200", "multiprocessors": 132}}
{"error": "out of memory"}
{"seconds": [0.25]}
{"name": "gpu.add", "value": 60.0, "limit": 50.0, "detail": {"teraflops": 7}}
{"cut off": """
        found, card, error = facts.read("limits", ["properties", "up", "down"], text)
        self.assertEqual((card, error), ("NVIDIA H200", "out of memory"))
        for name, value in [("limits.properties.multiprocessors", 132), ("limits.up.seconds", None), ("limits.down.seconds", 0.25),
                            ("gpu.add", 60.0), ("gpu.add.limit", 50.0), ("gpu.add.teraflops", 7), ("gpu.add.peer", None)]:
            self.assertEqual(facts.lookup(found, name), value, name)

    def test_conditions(self):
        known = {"a b.c": {"value": 3}, "how": {"value": "in one call"}, "no": {"value": False}}
        for condition, wanted in [("a b.c == 3", True), ("a b.c <= 2", False), ("a b.c > 2.5", True), ("how has one call", True),
                                  ("how < 3", False), ("no == false", True), ("no == true", False), ("gone == 1", None)]:
            self.assertIs(facts.holds(condition, known), wanted, condition)
        self.assertIs(facts.all_hold(["a b.c == 3", "gone == 1"], known), None)
        self.assertIs(facts.all_hold(["gone == 1", "a b.c == 4"], known), False)


class InAFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)


class Archives(InAFolder):
    def setUp(self):
        super().setUp()
        self.out = self.root / "out"
        self.out.mkdir()
        self.state = state.State.begin(self.root / "state")

    def test_it_keeps_the_ends_of_logs_and_what_was_compiled(self):
        (self.state.folder / "logs/long.log").write_text("first" + "x" * state.LONGEST_LOG)
        (self.state.folder / "inductor/ab").mkdir(parents=True)
        (self.state.folder / "inductor/ab/kernel.cubin").write_bytes(bytes(range(256)) * 100)
        self.state.keep_compiled()
        self.state.save(self.out)
        state.unpack(self.out / state.ARCHIVE, self.root / "new")
        self.assertEqual(len((self.root / "new/logs/long.log").read_text()), state.LONGEST_LOG)
        self.assertEqual((self.root / "new/inductor/ab/kernel.cubin").read_bytes(), bytes(range(256)) * 100)
        self.assertEqual(sorted(path.name for path in self.out.iterdir()), [state.ARCHIVE])

    def test_it_stays_small(self):
        (self.state.folder / "inductor").mkdir()
        (self.state.folder / "inductor/noise").write_bytes(os.urandom(100_000))
        self.state.keep_compiled()
        with mock.patch.object(state, "LARGEST_ARCHIVE", 50_000):
            self.state.save(self.out)
        self.assertLess((self.out / state.ARCHIVE).stat().st_size, 50_000)

    def refused(self, archive):
        with self.assertRaises(OSError) as found:
            state.unpack(archive, self.root / "new")
        self.assertIn(str(archive), str(found.exception))
        self.assertFalse((self.root / "new").exists())

    def test_what_is_no_archive_is_refused_by_name(self):
        bad = self.root / "bad.tar.xz"
        bad.write_bytes(b"nothing")
        self.refused(bad)
        self.state.save(self.out)
        bad.write_bytes((self.out / state.ARCHIVE).read_bytes()[:-40])
        self.refused(bad)
        with tarfile.open(bad, "w:xz") as made:
            entry = tarfile.TarInfo("../outside")
            made.addfile(entry, io.BytesIO())
        self.refused(bad)
        self.assertFalse((self.root / "outside").exists())

    def test_a_folder_of_others_is_not_emptied(self):
        with self.assertRaises(OSError) as found:
            state.State.begin(self.root)
        self.assertIn("--state", str(found.exception))


class Programs(InAFolder):
    def test_a_program_that_stays_is_stopped_with_its_children(self):
        stays, log = "trap '' TERM; sleep 1000 & echo $!; wait; wait", self.root / "log"
        with mock.patch.object(process, "GOODBYE_SECONDS", 0.2):
            ended = process.run(["sh", "-c", stays], 30, log, watch=lambda: log.read_text().endswith("\n"))
        self.assertTrue(ended.timed_out)
        try:
            child = os.pidfd_open(int(log.read_text()))
        except ProcessLookupError:
            return
        self.addCleanup(os.close, child)
        self.assertEqual(select.select([child], [], [], 10)[0], [child])  # it was told to end, and does


if __name__ == "__main__":
    unittest.main()
