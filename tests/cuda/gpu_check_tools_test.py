"""What tools/gpu/check does with NVIDIA's tools, which are on no machine without a card: scripts stand in for them, in the form
in which they print.

Usage: gpu_check_tools_test.py SOURCE
"""
import json
import os
import pathlib
import select
import sys
import tempfile
import unittest

SOURCE = pathlib.Path(sys.argv.pop(1))
sys.dont_write_bytecode = True
sys.path.insert(0, str(SOURCE / "tools/gpu/check"))
import actions  # noqa: E402
import stages  # noqa: E402
from host import Host  # noqa: E402

SIDE = """#!/bin/sh
echo '{"peer": "x", "device": "NVIDIA H100, 79 GiB"}'
while read request; do echo '{"seconds": [0.0015], "how": "eager"}'; done
"""
SMI = """#!/bin/sh
case "$*" in
  *clocks.sm*) for i in 1 2 3 4; do echo "1755, 2619, 690.12, 61, 0x0000000000000004"; done ;;
  *) echo "Default, Disabled, Enabled" ;;
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
case "$*" in *--gtest_list_tests*) printf 'CudaNorm.\\n  Forward\\n  Backward\\n'; exit 0 ;; esac
echo '[ RUN      ] CudaNorm.Forward'; echo '[       OK ] CudaNorm.Forward (1 ms)'
echo '[ RUN      ] CudaNorm.Backward'; echo 'norm_test.cpp:9: Failure'; echo '[  FAILED  ] CudaNorm.Backward (1 ms)'
exit 1
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
        self.bin = pathlib.Path(folder.name, "bin")
        self.bin.mkdir()
        self.host = Host("stage", self.bin.parent, self.bin.parent / "out", dry=False, hang_after=30, seconds=60)
        self.host.environment["PATH"] = f"{self.bin}:/usr/bin:/bin"

    def program(self, name, text):
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def perform(self, action, seconds=20, **args):
        return actions.perform(self.host, stages.step("a step", seconds, action, **args))

    def test_clocks_under_load(self):
        self.assertEqual(self.perform("clocks", under_load=0.2).status, "absent")
        self.program("nvidia-smi", SMI)
        self.program("bench_gpu_limits", SIDE)
        done = self.perform("clocks", under_load=0.5)
        self.assertEqual(done.status, 0, done)
        self.assertIn("733 TFLOP/s", done.note)
        self.assertIn("SM clock 1755 MHz, memory 2619 MHz, 690 W, 61 C, reasons 0x0000000000000004", done.note)

    def test_sharing(self):
        self.program("nvidia-smi", SMI)
        self.program("nvidia-cuda-mps-control", "#!/bin/sh\n")
        self.assertIn("mps-control found; compute mode, MIG, persistence: Default, Disabled, Enabled", self.perform("sharing").note)

    def test_a_profile_by_parts_beside_the_prediction(self):
        self.program("sherd", SIDE)
        self.assertEqual(self.perform("timeline", child="step", requests=["eager 1"]).status, "absent")
        self.program("ncu", NCU)
        done = self.perform("timeline", child="step", requests=["eager 1"])
        self.assertEqual(done.status, 0, done)
        self.assertEqual(done.lines[0], "a step: 2 launches, 2.50 ms of kernels")
        self.assertIn("product          1 launches     2.000 ms  80.0 %  predicted 65.42", done.lines[1])
        self.assertEqual(self.host.device, "NVIDIA H100, 79 GiB")
        self.assertEqual(json.loads((self.host.out / "timeline-a-step.json").read_text())["parts"]["norm"], [1, 500.0])

    def test_a_profiler_that_may_not_count_says_so(self):
        self.program("sherd", SIDE)
        self.program("ncu", NCU_REFUSED)
        done = self.perform("timeline", child="step", requests=["eager 1"])
        self.assertTrue(done.failed)
        self.assertIn("ERR_NVGPUCTRPERM", done.lines[0])

    def test_a_failed_test_is_looked_at_closer(self):
        self.program("test_cuda_device", TESTS)
        self.program("compute-sanitizer", SANITIZER)
        done = self.perform("suites")
        self.assertEqual(done.why, "1 tests of 1 suites passed; 1 failures, first CudaNorm.Backward: failed")
        text = "\n".join(done.lines)
        for part in ("norm_test.cpp:9: Failure", "CudaNorm.Backward alone, with CUDA_LAUNCH_BLOCKING=1:",
                     "CudaNorm.Backward under compute-sanitizer:", "Invalid __global__ write of size 4 bytes"):
            self.assertIn(part, text)

    def test_only_what_failed_runs_again(self):
        self.program("test_cuda_device", TESTS)
        self.host.write_json("suites.json", {"CudaNorm": {"status": "ok"}})
        self.assertEqual(self.perform("suites", failed_only=True).note, "no suite failed before")
        self.host.write_json("suites.json", {"CudaNorm": {"status": "failed"}, "Gone": {"status": "ok"}})
        self.assertTrue(self.perform("suites", failed_only=True).failed)
        self.assertEqual({name: suite["status"] for name, suite in self.host.read_json("suites.json").items()},
                         {"CudaNorm": "failed", "Gone": "ok"})

    def test_the_sanitizer_as_a_step(self):
        self.program("test_cuda_device", TESTS)
        self.program("compute-sanitizer", SANITIZER)
        done = self.perform("sanitizer", tool="memcheck", suites="CudaNorm.*")
        self.assertEqual((done.status, done.lines[0]), (9, "========= Invalid __global__ write of size 4 bytes"))

    def test_a_program_that_stays_is_stopped_with_its_children(self):
        self.program("bench_gpu_limits", f"#!/bin/sh\ntrap '' TERM\nsleep 1000 & echo $! > {self.host.out}/pid\nwait; wait\n")
        done = self.perform("limits", seconds=0.5, request="properties")
        self.assertEqual((done.status, done.why), (124, "longer than 0.5 s"))
        try:
            child = os.pidfd_open(int((self.host.out / "pid").read_text()))
        except ProcessLookupError:
            return
        self.addCleanup(os.close, child)
        self.assertEqual(select.select([child], [], [], 10)[0], [child])  # it was told to end, and does


if __name__ == "__main__":
    unittest.main()
