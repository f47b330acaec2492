"""What steps do. Each function gets the host, its step and the step's arguments, and returns a result (host.py)."""

import json
import os
import re
import shutil
import statistics
import tempfile
import threading
import time

import results
import suites
import timeline as timelines
from host import judged, result


def perform(host, step):
    if host.left() <= 0:
        return result(124, why="the stage's time is over")
    start = time.monotonic()
    try:
        done = ACTIONS[step.action](host, step, **step.args)
    except Exception as error:  # a fault of ours or of the host ends its step, not the stage
        done = result(1, why=f"{type(error).__name__}: {error}")
    return done._replace(seconds=time.monotonic() - start)


def absent(program):
    return result("absent", why=f"{program} is not on this host")


def answers(text):
    """The JSON objects among the lines a program printed."""
    found = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                pass
    return found


def said(found):
    """What a program that speaks the benchmarks' protocol found wrong, or None."""
    return next((answer["error"] for answer in found if "error" in answer), None)


def environment(host, step):
    script = """
cat "$BUNDLE/manifest.json"; cat /etc/os-release; ldd --version | head -n 1; uname -a; nproc
nvidia-smi -q 2>/dev/null | head -n 120
"$PYTHON" -c 'import torch;print("torch", torch.__version__, torch.version.cuda, torch.cuda.is_available())' 2>&1 | tail -n 1
for tool in nvcc ncu nsys compute-sanitizer cuobjdump; do echo "$tool: $(command -v $tool || echo absent)"; done
nvcc --version 2>/dev/null | tail -n 1
sherd info"""
    done, text = host.run_step(step, ["bash", "-c", script],
                               environment={"BUNDLE": str(host.bundle), "PYTHON": host.python}.items())
    (host.out / f"env-{host.stage}.txt").write_text(text)
    named = re.search(r"cuda:0 +(.*)", text)
    if named and not host.device:
        host.device = named[1].strip()
    return done._replace(note=host.device or "")


def limits(host, step, request, small=None):
    """A question to the program that says what the card allows."""
    request = host.sized(request, small or request)
    done, text = host.run_step(step, [host.limits_program()], stdin=request + "\n")
    found = answers(text)
    if done.failed or len(found) != 2 or said(found):
        return done if done.failed else result(1, why=said(found) or "no answer", lines=text.splitlines()[-30:])
    host.device = host.device or found[0]["device"]
    if "properties" in found[1]:
        host.write_json("deviceprops.json", found[1]["properties"])
        wanted = ("multiprocessors", "l2_bytes", "memory_bus_bits", "ecc", "host_native_atomics", "driver_version")
        return done._replace(note=", ".join(f"{key} {found[1]['properties'][key]}" for key in wanted))
    return done._replace(note=f"{float(request.split()[2]) / found[1]['seconds'][0] / 1e9:.1f} GB/s")


def probe(host, step, probe):
    command = ["sherd", "bench", "--child", "gpu_probe", probe, "--small", host.sized("false", "true")]
    done, text = host.run_step(step, command)
    found = answers(text)
    if done.failed or not found:
        return done if done.failed else result(1, why="no answer", lines=text.splitlines()[-30:])
    host.device = found[0].pop("device", host.device)
    host.write_json("probes.json", {**(host.read_json("probes.json") or {}), probe: found[0]})
    return done._replace(note=json.dumps(found[0]))


def sharing(host, step):
    """Can several processes have the card, and is there a daemon that lets their kernels run side by side?"""
    mps = "found" if host.has("nvidia-cuda-mps-control") else "absent"
    if not host.has("nvidia-smi"):
        return result("absent", why=f"nvidia-smi is not on this host; nvidia-cuda-mps-control is {mps}")
    done, text = host.run_step(step, ["nvidia-smi", "--query-gpu=compute_mode,mig.mode.current,persistence_mode",
                                      "--format=csv,noheader"])
    return done._replace(note=f"nvidia-cuda-mps-control {mps}; compute mode, MIG, persistence: {text.strip()}")


def clocks(host, step, under_load):
    """What the card's clocks settle at under products: the rate that a training step gets."""
    if not host.has("nvidia-smi"):
        return absent("nvidia-smi")
    samples = host.out / "clocks.csv"
    samples.write_text("")
    query = ["nvidia-smi", "--query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active",
             "--format=csv,noheader,nounits", "-lms", "500"]
    sampler = threading.Thread(target=host.run, args=(query, under_load, samples))
    sampler.start()
    output = host.out / f"{host.stage}-clocks.log"
    output.write_text("")
    product = host.sized("matmul NN 8192 8192 8192 150", "matmul NN 32 16 16 2")
    host.run([host.limits_program()], under_load, output, stdin=(product + "\n") * 1000)
    sampler.join()
    text = output.read_text(errors="replace")
    rates = [2e-12 * 8192 ** 3 / answer["seconds"][0] for answer in answers(text) if "seconds" in answer]
    rows = [line.split(", ") for line in samples.read_text().splitlines() if line.count(", ") == 4]
    if not rates or not rows:
        return result(1, why=said(answers(text)) or "no samples", lines=text.splitlines()[-10:] + samples.read_text().splitlines()[-10:])
    late = rows[len(rows) // 2:]
    median = lambda column: statistics.median(float(row[column]) for row in late)
    return result(note=f"products of 8192^3: {rates[0]:.0f} TFLOP/s at first, {rates[-1]:.0f} after {under_load} s; then SM clock "
                       f"{median(0):.0f} MHz, memory {median(1):.0f} MHz, {median(2):.0f} W, {median(3):.0f} C, "
                       f"reasons {late[-1][4]}")


def train(host, step, runs, same):
    """A small training run in several ways: the losses agree within 2 %, or in every bit."""
    folder = tempfile.mkdtemp(dir=host.out)
    output = host.out / f"{host.stage}-{step.name}.log"
    output.write_text("")
    try:
        text = "".join(path.read_text() for path in sorted((host.bundle / "tools/bench/peers").glob("*.py")))
        data = os.path.join(folder, "text.txt")
        with open(data, "w") as file:
            file.write((text * 20)[:200_000])
        sizes = host.sized(
            ["--steps", "20", "--batch", "8", "--model.layers", "4", "--model.width", "256", "--model.sequence", "128"],
            ["--steps", "3", "--batch", "1", "--model.layers", "1", "--model.width", "32", "--model.sequence", "16"])
        # Of the same bits: algorithms that are chosen by no clock, sums in a fixed order.
        fixed = {"SHERD_MATMUL": "untuned", "SHERD_ATTENTION": "deterministic"} if same == "bits" else {}
        metrics = []
        for flags in runs:
            metrics.append(os.path.join(folder, f"{len(metrics)}.jsonl"))
            command = ["sherd", "train", host.bundle / "configs/shakespeare-char.toml", "--data", data, *sizes,
                       "--eval-batches", "1", *flags, "--metrics", metrics[-1]]
            ended = host.run(command, step.seconds, output, environment=fixed.items())
            if ended.status or ended.timed_out:
                return judged(ended, output.read_text(errors="replace"), step.seconds)
        told, agree = results.compare_losses(*metrics, relative=0.02 if same == "loss" else 0.0)
        return result(note=told) if agree else result(1, why=f"{told}; wanted the same {same}",
                                                      lines=output.read_text(errors="replace").splitlines()[-30:])
    finally:
        host.append_log(step, ["sherd train"], output.read_text(errors="replace"))
        shutil.rmtree(folder, ignore_errors=True)


def figures(host, step, names, needs_torch=False):
    """A missed target is a result; a figure that could not be measured, or whose peer could not, is a failure."""
    python = host.python if host.has_torch() else None
    if needs_torch and not python:
        return absent("a Python with torch")
    if host.dry and not needs_torch:
        python = None
    command = ["sherd", "bench", *names, "--json", "--python", python or "none", *host.sized([], ["--smoke"])]
    done, text = host.run_step(step, command, cwd=host.bundle)
    rows = [answer for answer in answers(text) if "name" in answer and "value" in answer]
    with open(host.out / "figures.jsonl", "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    host.device = next((row["device"] for row in rows if row.get("device")), host.device)
    wrong = [f'{row["name"]}: {row.get("note", "")}' for row in rows
             if row["value"] is None or "no peer: " in row.get("note", "") or "no limit: " in row.get("note", "")]
    if done.status in (0, 1) and rows and not wrong:
        return result(note=f"{len(rows)} figures")
    why = f"{len(rows)} figures, {len(wrong)} of them not whole"
    if done.status not in (0, 1):
        why += f"; then {done.why}"
    return result(done.status or 1, why=why, lines=wrong or done.lines)


def timeline(host, step, child, requests, profiled=True):
    """Each kernel's time in one step: two layers of the model have all that sixteen have."""
    flags = {"step": ["--model", host.sized("llama1b", "tiny_llama"), "--layers", "2", "--dtype", "bf16", "--device", "cuda"],
             "gpu_op": ["--small", host.sized("false", "true")]}[child]
    command = ["sherd", "bench", "--child", child, *flags, "--profile", "true" if profiled else "false"]
    table = host.out / f"timeline-{step.name.replace(' ', '-')}.csv"
    if profiled and not host.dry:
        if not host.has("ncu"):
            return absent("ncu")
        table.unlink(missing_ok=True)
        command = ["ncu", "--clock-control", "none", "--profile-from-start", "off", "--graph-profiling", "node", "--csv", "--page",
                   "raw", "--metrics", "gpu__time_duration.sum", "--log-file", table, *command]
    done, text = host.run_step(step, command, stdin="".join(request + "\n" for request in requests))
    found = answers(text)
    if done.failed or len(found) != 1 + len(requests) or said(found):
        return done if done.failed else result(1, why=said(found) or "no answer", lines=text.splitlines()[-30:])
    host.device = found[0].get("device", host.device)
    how = "; ".join(f'"{request}": {answer["seconds"][0] * 1e3:.2f} ms, {answer["how"]}' for request, answer in zip(requests, found[1:]))
    ops = next((answer["ops"] for answer in found if "ops" in answer), None)
    if ops:
        host.write_json("ops.json", ops)
        done = done._replace(lines=timelines.op_lines(ops))
    if not profiled or host.dry:
        return done._replace(note=how)
    launches = timelines.read(table)
    if not launches:
        return result(1, why="the profiler wrote no kernels", lines=table.read_text(errors="replace").splitlines()[-30:])
    host.write_json(table.with_suffix(".json").name, timelines.as_json(launches))
    lines = timelines.lines(launches, layers=2 if child == "step" else 0, title=step.name)
    return done._replace(note=how, lines=lines)


def sanitizer(host, step, tool, suites):
    if not host.has("compute-sanitizer") or host.dry:  # it knows nothing of the emulated GPU
        return absent("compute-sanitizer")
    # Each block of memory alone: else what lies beyond one is another's, and no error.
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9", host.test_program(), "--gtest_color=no",
               f"--gtest_filter={suites}"]
    done, text = host.run_step(step, command, environment={"SHERD_DEVICE_MEMORY": "separate"}.items())
    found = [line for line in text.splitlines() if line.startswith("=========")]
    running = suites_running(text)
    if done.failed:
        return done._replace(why=done.why + (f", in {running}" if running else ""), lines=found[1:40] or done.lines)
    return done._replace(note=found[-1] if found else "")


def suites_running(text):
    return next((test.name for test in reversed(suites.parse(text)) if test.status == "running"), None)


def profiles(host, step, ops):
    if not host.dry and not host.has("ncu"):
        return absent("ncu")
    command = ["sherd", "bench", "--child", "gpu_op", "--small", host.sized("false", "true")]
    table = host.out / "ncu.csv"
    if not host.dry:
        command = ["ncu", "--clock-control", "none", "--csv", "--section", "SpeedOfLight", "--launch-count", "60", "--log-file",
                   table, *command]
    done, text = host.run_step(step, command, stdin="".join(f"{op} 2\n" for op in ops))
    wrong = said(answers(text))
    return result(1, why=wrong, lines=text.splitlines()[-30:]) if wrong and not done.failed else done


def instructions(host, step):
    """Tensor cores, wide loads: are they in the code at all?"""
    if not host.has("cuobjdump"):
        return absent("cuobjdump")
    done, text = host.run_step(step, ["cuobjdump", "-sass", host.bundle / "lib/libsherd_cuda.so"])
    counts = {}
    for name in re.findall(r"HMMA[.0-9A-Z]*|LDG\.E\.128|LDSM[.0-9A-Z]*", text):
        counts[name] = counts.get(name, 0) + 1
    host.write_json("instructions.json", counts)
    return done._replace(note=", ".join(f"{name} {count}" for name, count in sorted(counts.items())))


ACTIONS = {"environment": environment, "limits": limits, "probe": probe, "sharing": sharing, "clocks": clocks,
           "suites": suites.run, "train": train, "figures": figures, "timeline": timeline, "sanitizer": sanitizer,
           "profiles": profiles, "instructions": instructions}
