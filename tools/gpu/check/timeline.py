"""Kernels and their times as ncu writes them down, by what they are for, beside what was predicted."""

import csv
import re

import results

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


def as_json(launches):
    return {"launches": [[kernel, us] for kernel, us in launches], "parts": dict(totals(launches, part_of)),
            "kernels": dict(totals(launches, short))}


def predicted_ms(part, layers):
    """Of a step with so many layers and its head; of the head's products and loss alone for 0."""
    row = results.predictions()["parts"].get(part)
    if row is None:
        return None
    return layers * row["per_layer"] + (row["step"] if layers else row["head"])


def op_lines(ops):
    """Of [name, inputs, calls, seconds]: where a step's time goes by ops, also where no profiler is allowed."""
    total = sum(seconds for *_, seconds in ops)
    text = [f"ops, each waited for: {sum(calls for _, _, calls, _ in ops)} calls, {total * 1e3:.2f} ms"]
    return text + [f"    {seconds * 1e3:>9.3f} ms {calls:>4} x {seconds / calls * 1e6:>8.1f} us  {name} {inputs}"
                   for name, inputs, calls, seconds in ops[:25]]


def lines(launches, layers, title):
    total = sum(us for _, us in launches)
    text = [f"{title}: {len(launches)} launches, {total / 1e3:.2f} ms of kernels"]
    for part, (count, us) in totals(launches, part_of):
        foreseen = predicted_ms(part, layers)
        foreseen = f"predicted {foreseen:.2f}" if foreseen else ""
        text.append(f"  {part:<12} {count:>5} launches {us / 1e3:>9.3f} ms {100 * us / total:>5.1f} %  {foreseen}".rstrip())
    for kernel, (count, us) in totals(launches, short)[:12]:
        text.append(f"    {us / 1e3:>9.3f} ms {count:>4} x {us / count:>8.1f} us  {kernel}")
    return text
