"""The stages of gpu_check.py as data: which card each wants, how long it and each of its steps may take, what is run.

A step is (name, seconds, action, arguments); actions.py has the actions. The four stages of PLAN, in its order, are what
a card that is at hand for half an hour is for; the others want another half hour.
"""

import collections

Step = collections.namedtuple("Step", "name seconds action args")
Stage = collections.namedtuple("Stage", "summary card seconds steps")


def step(name, seconds, action, **args):
    return Step(name, seconds, action, args)


# Suites of tests in this order, each a process of its own: what the later ones stand on comes first. Those that are not
# named here (the test program says what it has) come last.
SUITES = [
    "CudaLibrary", "OpenedLibrary", "CudaNumbers", "CudaWarp", "CudaDevice", "CudaWalk", "ReducePlan", "GemmPlan",
    "LossChunks", "AttentionChoice", "CudaContext", "CudaFaults", "DeviceQueues", "CudaTrace", "CudaCopy", "CudaElementwise", "CudaRandom",
    "CudaOpTable", "CudaIndex", "CudaGather", "CudaReduce", "CudaVar", "CudaTopK", "CudaSoftmax", "CudaNorm",
    "CudaRope", "CudaLoss", "CudaOptimizer", "CudaGemm", "CudaMatmul", "OwnAttention", "Kernels/CudaAttention",
    "DeviceReplayTest", "CudaCollectives", "StagedGroups", "StagedUnits", "StagedHazards", "WaitNodes", "Row/CudaOpSweep",
]
# A dry run's tests: a few suites of the program whose kernels the emulated GPU can run.
DRY_SUITES = ["CudaNumbers", "CudaContext", "CudaFaults", "CudaCopy"]

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

OPS = ["head", "attention", "cross", "rms", "adamw", "swiglu", "rope", "add", "cast", "embedding", "softmax", "transpose",
       "sum", "layer", "power", "var", "topk", "gather", "scatter"]

STAGES = {
    "smoke": Stage("what the card is and can do; every suite of tests in a process of its own", "H100 or H200", 360, [
        step("environment", 20, "environment"),
        step("properties", 15, "limits", request="properties"),
        step("transfer up", 15, "limits", request="transfer up 268435456 20", small="transfer up 4096 2"),
        step("transfer down", 15, "limits", request="transfer down 268435456 20", small="transfer down 4096 2"),
        step("libraries", 15, "probe", probe="backend"),
        step("faults", 15, "probe", probe="faults"),
        step("graph", 30, "probe", probe="graph"),
        step("launches", 15, "probe", probe="launches"),
        step("transfers", 15, "probe", probe="transfers"),
        step("sharing", 5, "sharing"),
        step("tests", 140, "suites"),
        step("clocks", 30, "clocks", under_load=20),
        step("figures", 30, "figures", names=["gpu.copy", "gpu.gemm.square"]),
    ]),
    "again": Stage("the suites that failed in smoke; training as on the CPU; a captured step as an eager one",
                   "as smoke", 300, [
        step("environment", 20, "environment"),
        step("tests", 140, "suites", failed_only=True),
        step("train", 70, "train", same="loss", runs=[["--device", "cpu"], ["--device", "cuda"]]),
        step("captured", 70, "train", same="bits", runs=[["--device", "cuda"], ["--device", "cuda", "--compile", "true"]]),
    ]),
    "bench": Stage("figures beside PyTorch and the card's limits", "H200", 540, [
        step("environment", 20, "environment"),
        step("figures", 520, "figures", names=["gpu.copy", "gpu.gemm", "gpu.step.llama1b"] +
             [f"gpu.{op}" for op in OPS] + ["gpu.step.gpt124m"]),
    ]),
    "profile": Stage("where a step's time goes, kernel by kernel; memory and races of the riskiest kernels", "H200", 480, [
        step("environment", 20, "environment"),
        step("unprofiled", 60, "timeline", profiled=False, requests=["eager 5", "5", "ops"], child="step"),
        step("eager step", 75, "timeline", requests=["eager 1"], child="step"),
        step("captured step", 75, "timeline", requests=["1"], child="step"),
        step("head", 50, "timeline", requests=["head 1"], child="gpu_op"),
        step("memcheck", 100, "sanitizer", tool="memcheck", suites="Kernels/CudaAttention.*:CudaIndex.*:CudaNorm.*:CudaFaults.*"),
        step("racecheck", 100, "sanitizer", tool="racecheck", suites="Kernels/CudaAttention.*:CudaIndex.*:CudaNorm.*"),
    ]),
    "loss": Stage("losses of 100 steps (llama1b: 50) beside PyTorch's, from the same weights", "H200", 540, [
        step("environment", 20, "environment"),
        step("losses of gpt124m", 160, "figures", names=["gpu.loss.gpt124m"], needs_torch=True),
        step("losses of llama1b", 360, "figures", names=["gpu.loss.llama1b"], needs_torch=True),
    ]),
    "depth": Stage("all tests under compute-sanitizer; single kernels under the profiler; what the compiler made",
                   "H100 or H200", 540, [
        step("environment", 20, "environment"),
        step("memcheck", 170, "sanitizer", tool="memcheck", suites="*"),
        step("racecheck", 120, "sanitizer", tool="racecheck", suites="*"),
        step("initcheck", 80, "sanitizer", tool="initcheck", suites="*"),
        step("profiles", 105, "profiles", ops=["rms_norm.backward", "swiglu.backward", "cross_entropy.forward", "adamw",
                                               "attention.forward"]),
        step("instructions", 45, "instructions"),
    ]),
}
PLAN = ["smoke", "again", "bench", "profile"]
PLAN_SECONDS, CALL_SECONDS = 28 * 60, 9 * 60


def plan_text():
    """The table of stages, as README.md has it."""
    lines = ["| call | stage | card | at most | |", "|---|---|---|---|---|"]
    for name, stage in STAGES.items():
        call = PLAN.index(name) + 1 if name in PLAN else "another day"
        lines.append(f"| {call} | `{name}` | {stage.card} | {stage.seconds // 60} min | {stage.summary} |")
    return "\n".join(lines)
