"""tools/bench/peers/gpu_step.py on the CPU: steps of a batch that is given, and a compilation without a step.

Compilation is switched off, as it takes a minute.
Usage: gpu_step_test.py SCRIPT
"""
import json
import math
import os
import subprocess
import sys

run = subprocess.run([sys.executable, sys.argv[1], "tiny_llama", "3"], input="default 0\neager 2\n", stdout=subprocess.PIPE, text=True,
                     env={**os.environ, "TORCHDYNAMO_DISABLE": "1"}, check=True)
greeting, compiled, steps = map(json.loads, run.stdout.splitlines())
print(run.stdout)
assert greeting["peer"].startswith("torch "), greeting
assert compiled["seconds"][0] > 0 and "device_peak_bytes" not in compiled, compiled
# Before the first step a loss is that of a model that knows nothing of its 17 tokens; afterwards it is less.
assert abs(compiled["loss"] - math.log(17)) < 0.1 and steps["loss"] < compiled["loss"], (compiled, steps)
