"""Where one captured step goes: two layers of llama1b, which have all that sixteen have, kernel by kernel as ncu sees them, by
what the kernels are for. Where there is no ncu, or it may not count, op by op: one eager step that waits for each."""

import csv
import json
import re
import shutil
import sys
import time

import facts
import process
from host import call, word

LAYERS = 2
NCU = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--graph-profiling", "node", "--csv", "--page", "raw",
       "--metrics", "gpu__time_duration.sum"]
TO_US = {"ns": 1e-3, "nsecond": 1e-3, "us": 1.0, "usecond": 1.0, "ms": 1e3, "msecond": 1e3, "s": 1e6, "second": 1e6}
METRIC = "gpu__time_duration.sum"

# The first whose pattern is in a kernel's name.
PARTS = [
    ("attention", r"flash|sdpa|cudnn|tiled_(forward|key|query)|row_dots"),
    ("product", r"nvjet|gemm|cutlass|xmma|splitK|cublas"),
    ("swiglu", r"swiglu|Swiglu|SwiGlu"),
    ("norm", r"norm_kernel|norm_backward|column_sums|combine_parts"),
    ("rope", r"rope"),
    ("loss", r"loss"),
    ("optimizer", r"adamw|step_kernel|sgd|power_"),
    ("cast", r"convert_"),
    ("embedding", r"fill_rows|scan_kernel|places|count_kernel|find_starts|move_kernel|gather_kernel|scatter"),
    ("add", r"pointwise"),
    ("copy", r"copy|memcpy|memset|fill_units|units"),
]


def number(text):
    return float(text.replace(",", ""))


def read(path):
    """(kernel, microseconds) of each launch in the order of the file, whose table is long (a row for each metric) or wide (a
    column for each, the second row its units)."""
    lines = [line for line in path.read_text(errors="replace").splitlines() if line.startswith('"')]
    rows = list(csv.reader(lines))
    if not rows:
        return []
    head = {name: place for place, name in enumerate(rows[0])}
    kernel = head["Kernel Name"]
    if "Metric Value" in head:
        return [(row[kernel], number(row[head["Metric Value"]]) * TO_US[row[head["Metric Unit"]]])
                for row in rows[1:] if row[head["Metric Name"]] == METRIC]
    value = head[METRIC]
    return [(row[kernel], number(row[value]) * TO_US[rows[1][value]]) for row in rows[2:]]


def part_of(kernel):
    return next((part for part, pattern in PARTS if re.search(pattern, kernel)), "other")


def short(kernel):
    """A kernel's name without return type, namespaces and parameters; template arguments stay as far as they fit."""
    name = re.sub(r"\(anonymous namespace\)::|sherd::cuda::|sherd::|^void |<unnamed>::", "", kernel)
    return re.sub(r"\((?:const |unsigned |[\w:<>,\s\*&])*\)$", "", name)[:70]


def totals(launches, key):
    """key(kernel) -> [launches, microseconds], the longest first."""
    sums = {}
    for kernel, us in launches:
        entry = sums.setdefault(key(kernel), [0, 0.0])
        entry[0] += 1
        entry[1] += us
    return sorted(sums.items(), key=lambda item: -item[1][1])


def op_lines(ops):
    """Lines for entries [name, inputs, calls, seconds], the longest first."""
    total = sum(seconds for *_, seconds in ops)
    text = [f"ops, each waited for: {sum(calls for _, _, calls, _ in ops)} calls, {total * 1e3:.2f} ms"]
    return text + [f"    {seconds * 1e3:>9.3f} ms {calls:>4} x {seconds / calls * 1e6:>8.1f} us  {name} {inputs}"
                   for name, inputs, calls, seconds in ops[:25]]


def lines(launches):
    """The longest kernels."""
    total = sum(us for _, us in launches)
    text = [f"{len(launches)} launches, {total / 1e3:.2f} ms of kernels"]
    return text + [f"    {us / 1e3:>9.3f} ms {count:>4} x {us / count:>8.1f} us  {kernel}"
                   for kernel, (count, us) in totals(launches, short)[:25]]


def fact(name, value, **more):
    print(json.dumps({"name": f"timeline.{name}", "value": value, **more}), flush=True)


class Step:
    def __init__(self, of):
        self.of, self.until = of, time.monotonic() + of.seconds - 3

    def run(self, request, log, share=1.0, before=()):
        """What the step answers to a request, or None; why not is in its log."""
        log.write_text("")
        command = ["sherd", "bench", "--child", "step", "--model", word("model", self.of.dry), "--layers", LAYERS, "--dtype", "bf16",
                   "--device", "cuda", "--profile", "true" if before else "false"]
        process.run([*before, *command], share * (self.until - time.monotonic()), log, stdin=request + "\n", cwd=self.of.bundle)
        answers = [found for found in facts.objects(log.read_text(errors="replace")) if "peer" not in found]
        return answers[0] if answers and "seconds" in answers[0] else None

    def by_kernels(self):
        table = self.of.folder / "timeline.csv"
        table.unlink(missing_ok=True)
        answer = self.run("1", self.of.folder / "timeline-ncu.log", share=0.7, before=[*NCU, "--log-file", table])
        launches = read(table) if table.exists() else []
        if not answer or not launches:
            return False
        fact("by", "ncu", how=answer["how"])
        fact("kernels", len(launches))
        fact("total", sum(us for _, us in launches) / 1e3, unit="ms")
        for part, (count, us) in totals(launches, part_of):
            fact(part, us / 1e3, unit="ms", launches=count)
        print("---- kernels", *lines(launches), sep="\n")
        return True

    def by_ops(self):
        answer = self.run("ops", self.of.folder / "timeline-ops.log")
        if not answer or "ops" not in answer:
            return False
        fact("by", "ops")
        fact("kernels", sum(calls for _, _, calls, _ in answer["ops"]))
        fact("ops_total", sum(seconds for *_, seconds in answer["ops"]) * 1e3, unit="ms")
        print("---- ops", *op_lines(answer["ops"]), sep="\n")
        return True


def main():
    process.stop_on_signals()
    of = call()
    step = Step(of)
    if not of.dry and shutil.which("ncu") and step.by_kernels():
        return 0
    if step.by_ops():
        return 0
    print("---- timeline")
    for name in ("timeline.csv", "timeline-ncu.log", "timeline-ops.log"):
        if (of.folder / name).exists():
            print(f"{name}:", *(of.folder / name).read_text(errors="replace").splitlines()[-15:], sep="\n")
    return 1


if __name__ == "__main__":
    sys.exit(main())
