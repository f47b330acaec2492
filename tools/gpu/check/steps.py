"""What a GPU check does, as data: the calls, the groups of steps that share a budget, the steps in their order.

A step is a command under a limit. It prints facts (facts.py), `judge` says which of them must hold. Words in braces are
filled in by host.py; a dry run has others, for tiny sizes on the emulated GPU. To add a step is to add a row.
"""

import collections

CALLS = {"first": 480, "again": 180}  # seconds
# Seconds that the steps of a group may take together.
GROUPS = {"probes": 25, "suites": 100, "failures": 30, "training": 45, "nccl": 60, "llama1b": 125, "timeline": 30, "details": 40,
          "races": 25}

# name        of the step
# command     what is run; `requests`, by label, are the lines of its input, each answered by one object
# seconds     the most it may take
# needs       steps that must not have failed, or programs ("torch": the package) that the host must have
# judge       conditions on facts, without which the step has failed
# environment variables, beside those that all steps have (host.py)
# statuses    with which the command may end
# after       waits for this step's end and runs again whenever it does
# background  begins at once, and runs beside the others until a step that is `after` it begins
# always      runs in every call, whatever is known
Step = collections.namedtuple(
    "Step", "name group command seconds needs judge requests environment statuses after background always",
    defaults=((), (), {}, {}, (0,), None, False, False))

# Compiles for all sequences, or for half of them if all do not fit beside what else runs on the card.
COMPILE = "sh -c 'echo default 0 | nice -n 5 {python} {peers}/gpu_step.py {model} {batch}" \
          " || echo default 0 | nice -n 5 {python} {peers}/gpu_step.py {model} {half_batch}'"
PROBE = "sherd bench --child gpu_probe --small {small}"

STEPS = [
    Step("compile", "llama1b", COMPILE, 300, needs=("torch",), judge=("compile.seconds > 0",), background=True),
    Step("card", "probes", "{limits}", 15, requests={"properties": "properties"}, judge=("card.properties.multiprocessors >= 1",),
         always=True),
    Step("host", "probes", "{python3} {check}/about.py", 8, always=True),
    Step("limits", "probes", "{limits}", 8, needs=("card",), judge=("limits.square.seconds > 0",), requests={
        "up": "transfer up {megabytes}000000 20", "down": "transfer down {megabytes}000000 20",
        "copy": "copy {megabytes}0000000 20", "square": "matmul NN {width} {width} {width} 30"}),
    Step("libraries", "probes", f"{PROBE} backend", 8),
    Step("faults", "probes", f"{PROBE} faults", 8, needs=("card",), judge=("faults.seconds < 5",)),
    Step("graph", "probes", f"{PROBE} graph", 8, needs=("card",), judge=("graph.difference == 0",)),
    Step("launches", "probes", f"{PROBE} launches", 8, needs=("card",)),
    Step("transfers", "probes", f"{PROBE} transfers", 8, needs=("card",)),
    Step("suites", "suites", "{python3} {check}/suites.py", 100, needs=("card",)),
    Step("failures", "failures", "{python3} {check}/suites.py --closer", 30, needs=("card",), after="suites"),
    Step("training", "training", "{python3} {check}/training.py", 45, needs=("card",),
         judge=("training.cpu_cuda <= 1e-5", "training.captured_eager == 0")),
    Step("nccl", "nccl", "{python3} {check}/nccl.py", 30, needs=("card",), judge=("nccl.units_of_plain > 0",)),
    Step("nccl ranks", "nccl", "{python3} {check}/nccl.py --ranks", 30, needs=("card",)),  # may fail: its fact says how
    Step("llama1b", "llama1b", "{python3} {check}/llama1b.py", 125, needs=("card",), after="compile",
         judge=("llama1b.step > 0", "llama1b.step.how has in one call")),
    Step("timeline", "timeline", "{python3} {check}/timeline.py", 30, needs=("card",), judge=("timeline.kernels > 0",)),
    Step("products", "details", "sherd bench {products} --json --python none {smoke}", 30, needs=("card",),
         judge=("gpu.gemm.square > 0", "gpu.gemm.square.limit > 0"), statuses=(0, 1)),  # 1: a target that was missed
    Step("lazy graph", "details", f"{PROBE} graph", 8, needs=("card",), judge=("lazy graph.difference == 0",),
         environment={"CUDA_MODULE_LOADING": "LAZY"}),
    Step("embedding", "details", f"{PROBE} embedding", 5, needs=("card",)),
    Step("queues", "details", "{tests} --gtest_filter={queue_tests}", 12, needs=("card",),
         environment={"CUDA_DEVICE_MAX_CONNECTIONS": "8"}),
    Step("races", "races", "{python3} {check}/races.py", 25, needs=("card", "compute-sanitizer")),
]

# What stands in braces: on a card, in a dry run.
WORDS = {
    "limits": ("bench_gpu_limits", "bench_gpu_limits_emulated"), "tests": ("test_cuda_device", "test_cuda"),
    "small": ("false", "true"), "smoke": ("", "--smoke"), "model": ("llama1b", "tiny_llama"),
    "unit_model": ("gpt124m", "tiny"), "batch": ("4", "2"), "half_batch": ("2", "1"), "megabytes": ("200", "1"), "width": ("8192", "16"),
    "products": ("gpu.gemm.square gpu.gemm.up_grad_w gpu.gemm.head_grad_w gpu.attention", "gpu.gemm.square"),
    "queue_tests": ("StagedGroups.*:StagedUnits.*", "StagedGroups.IssuingWaitsForNobody"),
}

# Suites of tests in this order, each a process of its own: what the later ones stand on comes first. Those that are not
# named here (the test program says what it has) come last.
SUITES = [
    "CudaLibrary", "OpenedLibrary", "CudaNumbers", "CudaWarp", "CudaDevice", "CudaWalk", "ReducePlan", "GemmPlan",
    "LossChunks", "AttentionChoice", "CudaContext", "CudaFaults", "DeviceQueues", "CudaTrace", "CudaCopy", "CudaElementwise", "CudaRandom",
    "CudaOpTable", "CudaIndex", "CudaGather", "CudaReduce", "CudaVar", "CudaTopK", "CudaSoftmax", "CudaNorm",
    "CudaRope", "CudaLoss", "CudaOptimizer", "CudaGemm", "CudaMatmul", "OwnAttention", "Kernels/CudaAttention",
    "DeviceReplayTest", "CudaCollectives", "StagedGroups", "StagedUnits", "StagedHazards", "LibraryGroups", "WaitNodes", "Row/CudaOpSweep",
]
# A dry run's tests: a few suites of the program whose kernels the emulated GPU can run.
DRY_SUITES = ["CudaFaults", "CudaCopy", "LibraryGroups"]

SUITE_SECONDS = 60    # of one process
TEST_SECONDS = 30     # after which a test that says nothing hangs
PARALLEL_SUITES = 4   # processes on one card
CULPRITS = 3          # of a suite, after which the rest of it is left

# What CUDA says once an access or a kernel has failed, and then to every call of the process. What a test finds after
# the first of these says nothing about itself.
LOST_DEVICE = [
    "cudaErrorIllegalAddress", "cudaErrorIllegalInstruction", "cudaErrorMisalignedAddress", "cudaErrorInvalidPc",
    "cudaErrorInvalidAddressSpace", "cudaErrorHardwareStackError", "cudaErrorLaunchFailure", "cudaErrorLaunchTimeout",
    "cudaErrorAssert", "cudaErrorTensorMemoryLeak", "cudaErrorContained", "cudaErrorExternalDevice",
    "cudaErrorECCUncorrectable", "cudaErrorNvlinkUncorrectable",
]
