"""What the programs of steps (tools/gpu/check) do with a card's tools, which are on no machine without one: scripts stand in
for them, in the form in which they print.

Usage: gpu_check_tools_test.py SOURCE
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import facts  # noqa: E402

# Answers of our side of a step; the batch is the last word of its command.
SHERD = """#!/bin/sh
echo "ours $*" >> "$CHECK_FOLDER/turns"
echo '{"peer": "sherd", "device": "NVIDIA H100 80GB HBM3, 79 GiB"}'
while read request; do
  case "$request" in
    ops) echo '{"seconds": [0.1], "how": "eager", "ops": [["matmul", "bf16[4,8]", 2, 0.004], ["add", "", 1, 0.001]]}' ;;
    *) echo '{"seconds": [0.25], "how": "replayed by cuda:0 in one call", "loss": 10.5, "device_peak_bytes": 47000000000}' ;;
  esac
done
"""
TORCH = """#!/bin/sh
echo "torch $*" >> "$CHECK_FOLDER/turns"
echo '{"peer": "torch 2.11.0"}'
read request
case "$3 $TORCH_FITS" in
  "4 half"|*" no") echo "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 7.83 GiB" >&2; exit 1 ;;
  *" broken") echo "RuntimeError: Triton is not found" >&2; exit 1 ;;
  *) echo '{"seconds": [0.5], "loss": 10.6, "device_peak_bytes": 70000000000}' ;;
esac
"""
NCU = """#!/bin/sh
while [ "$1" != sherd ]; do [ "$1" = --log-file ] && table=$2; shift; done
cat > "$table" <<CSV
==PROF== Connected to process 7
"ID","Kernel Name","gpu__time_duration.sum"
"","","us"
"0","nvjet_tst_256x128","2,000.0"
"1","void sherd::cuda::norm_kernel<float>(const float *)","500.0"
CSV
exec "$@"
"""
NCU_REFUSED = """#!/bin/sh
while [ "$1" != sherd ]; do [ "$1" = --log-file ] && table=$2; shift; done
echo "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters" > "$table"
exec "$@"
"""
TESTS = """#!/bin/sh
case "$*" in *--gtest_list_tests*) printf 'CudaNorm.\\n  Forward\\n  Backward\\nCudaCopy.\\n  Any\\n'; exit 0 ;; esac
case "$*" in *CudaCopy*) echo '[ RUN      ] CudaCopy.Any'; echo '[       OK ] CudaCopy.Any (1 ms)'; exit 0 ;; esac
echo '[ RUN      ] CudaNorm.Forward'; echo '[       OK ] CudaNorm.Forward (1 ms)'
echo '[ RUN      ] CudaNorm.Backward'; echo 'norm_test.cpp:9: Failure'; echo '[  FAILED  ] CudaNorm.Backward (1 ms)'
exit 1
"""
RACECHECK = """#!/bin/sh
case "$*" in *CudaIndex*) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)"; exit 0 ;; esac
echo "========= Error: Race reported between Write access at norm_kernel+0x40"
echo "========= and Read access at norm_kernel+0x90"
echo "========= RACECHECK SUMMARY: 2 hazards displayed (2 errors, 0 warnings)"
"""
SANITIZER = """#!/bin/sh
echo "========= COMPUTE-SANITIZER"
echo "========= Invalid __global__ write of size 4 bytes"
echo "=========     at norm_backward_kernel+0x40"
exit 9
"""


class Tools(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.bin, self.folder = self.root / "bin", self.root / "state"
        self.bin.mkdir()
        self.folder.mkdir()
        self.program("sherd", SHERD)
        self.program("torch_python", TORCH)

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def step(self, program, *words, torch="", **environment):
        """A step's program: its end, its facts, the lines that are none."""
        done = subprocess.run(
            [sys.executable, SOURCE / "tools/gpu/check" / program, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PATH": f"{self.bin}:/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1", "CHECK_FOLDER": str(self.folder),
                 "CHECK_BUNDLE": str(self.root), "CHECK_SECONDS": "20", "CHECK_HANG_AFTER": "10", "CHECK_DRY": "0",
                 "CHECK_TORCH": torch, **environment})
        found, card, _ = facts.read("step", (), done.stdout)
        self.card = card
        return done.returncode, found, [line for line in done.stdout.splitlines() if not line.startswith("{")]

    def duel(self, **environment):
        status, found, lines = self.step("llama1b.py", torch=str(self.bin / "torch_python"), **environment)
        turns = [(words[0], words[-1]) for words in map(str.split, (self.folder / "turns").read_text().splitlines())]
        return status, found, lines, turns

    def test_sides_take_turns(self):
        status, found, _, turns = self.duel()
        self.assertEqual((status, turns), (0, [("ours", "4"), ("torch", "4")] * 2))
        step = found["llama1b.step"]
        self.assertEqual((step["value"], step["peer"], step["peer_value"], step["ratio"], step["tokens"]),
                         (65536.0, "torch 2.11.0", 32768.0, 2.0, 16384))
        self.assertEqual((found["llama1b.peak"]["value"], round(found["llama1b.peak"]["ratio"], 3)), (47.0, 1.489))
        self.assertEqual((found["llama1b.fits"]["value"], self.card), (True, "NVIDIA H100 80GB HBM3, 79 GiB"))

    def test_half_the_tokens_where_torch_does_not_fit(self):
        status, found, _, turns = self.duel(TORCH_FITS="half")
        self.assertEqual((status, turns), (0, [("ours", "4"), ("torch", "4")] + [("ours", "2"), ("torch", "2")] * 2))
        self.assertEqual((found["llama1b.step"]["tokens"], found["llama1b.step"]["ratio"]), (8192, 2.0))
        self.assertIs(found["llama1b.fits"]["value"], False)
        self.assertEqual(found["llama1b.step"]["note"], "8192 tokens, 65536 tokens/s alone at 16384 tokens")

    def test_a_torch_that_fails_leaves_ours(self):
        for how, why in [("broken", "RuntimeError: Triton is not found"), ("no", "CUDA out of memory")]:
            status, found, lines, _ = self.duel(TORCH_FITS=how)
            self.assertEqual((status, found["llama1b.step"]["value"]), (1, {"broken": 65536.0, "no": 32768.0}[how]))
            self.assertIn(why, lines[-1])
            self.assertNotIn("ratio", found["llama1b.step"])

    def test_without_torch_ours_is_measured(self):
        status, found, lines = self.step("llama1b.py")
        self.assertEqual((status, found["llama1b.step"]["rounds"], lines), (0, [0.25, 0.25], []))

    def test_our_side_fails(self):
        self.program("sherd", "#!/bin/sh\necho 'cuda:0: no memory' >&2; exit 1\n")
        status, _, lines = self.step("llama1b.py")
        self.assertEqual((status, lines[-1]), (1, "cuda:0: no memory"))

    def test_a_profile_by_what_kernels_are_for(self):
        self.program("ncu", NCU)
        status, found, lines = self.step("timeline.py")
        self.assertEqual((status, found["timeline.by"]["value"], found["timeline.kernels"]["value"]), (0, "ncu", 2))
        self.assertEqual((found["timeline.product"]["value"], found["timeline.norm"]["value"], found["timeline.total"]["value"]), (2.0, 0.5, 2.5))
        self.assertIn("nvjet_tst_256x128", "".join(lines))

    def test_a_profiler_that_may_not_count_leaves_the_ops(self):
        self.program("ncu", NCU_REFUSED)
        status, found, lines = self.step("timeline.py")
        self.assertEqual((status, found["timeline.by"]["value"], found["timeline.ops_total"]["value"]), (0, "ops", 5.0))
        self.program("sherd", "#!/bin/sh\nexit 1\n")
        status, found, lines = self.step("timeline.py")
        self.assertEqual((status, found), (1, {}))
        self.assertIn("ERR_NVGPUCTRPERM", "".join(lines))

    def test_only_what_did_not_pass_runs_again(self):
        self.program("test_cuda_device", TESTS)
        status, found, lines = self.step("suites.py")
        self.assertEqual((status, found["suite.CudaNorm"]["value"], found["suite.CudaCopy"]["value"]), (1, "failed", "ok"))
        self.assertEqual(lines[1], "2 tests of 2 suites passed; 1 failures, first CudaNorm.Backward: failed")
        self.assertIn("    norm_test.cpp:9: Failure", lines)
        self.program("test_cuda_device", TESTS.replace("FAILED  ", "      OK").replace("exit 1", "exit 0"))
        status, found, lines = self.step("suites.py")
        self.assertEqual((status, list(found), lines[1]), (0, ["suite.CudaNorm"], "2 tests of 1 suites passed"))

    def test_a_failed_test_is_looked_at_closer(self):
        self.program("test_cuda_device", TESTS)
        self.program("compute-sanitizer", SANITIZER)
        (self.folder / "suites.json").write_text(json.dumps({"CudaNorm": {"status": "failed", "failed": [
            {"test": "CudaNorm.Backward", "what": "failed"}, {"test": "CudaNorm.Other", "what": "hung: nothing was heard"}]}}))
        status, _, lines = self.step("suites.py", "--closer")
        self.assertEqual((status, lines[1]), (1, "1 tests alone, 0 of them passed"))
        for part in ("CudaNorm.Backward alone, with CUDA_LAUNCH_BLOCKING=1: failed", "CudaNorm.Backward under compute-sanitizer:",
                     "Invalid __global__ write of size 4 bytes"):
            self.assertIn(part, "\n".join(lines))

    def test_races(self):
        self.program("compute-sanitizer", RACECHECK)
        status, found, lines = self.step("races.py")
        self.assertEqual((status, found["races.hazards"]["value"], found["races.hazards"]["suites"]), (1, 2, ["CudaIndex", "CudaNorm"]))
        self.assertEqual(lines[1:3], ["CudaNorm: 2 hazards", "========= Error: Race reported between Write access at norm_kernel+0x40"])

    def test_what_the_host_has(self):
        self.program("nvidia-smi", "#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 580.1, Default, Disabled, Enabled, 1980 MHz, 3201 MHz, 700 W'\n")
        (self.root / "manifest.json").write_text('{"commit": "abc"}')
        status, found, _ = self.step("about.py")
        self.assertEqual((status, found["step.card_compute_mode"]["value"], found["step.bundle.commit"]["value"]), (0, "Default", "abc"))
        self.assertEqual(found["step.sherd"]["value"], "runs")
        self.program("sherd", "#!/bin/sh\necho 'version GLIBC_2.38 not found' >&2; exit 1\n")
        self.assertEqual(self.step("about.py")[1]["step.sherd"]["value"], "version GLIBC_2.38 not found")
        self.assertEqual((found["step.tools.nvidia-smi"]["value"], found["step.tools.ncu"]["value"]), ("found", "absent"))


if __name__ == "__main__":
    unittest.main()
