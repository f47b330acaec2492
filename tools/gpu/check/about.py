"""Facts of the host: its system, libraries and tools, and how the card may be shared."""

import json
import os
import pathlib
import platform
import shutil
import subprocess

TOOLS = ["nvcc", "g++", "ncu", "compute-sanitizer", "cuobjdump", "nvidia-smi", "nvidia-cuda-mps-control"]
CARD = "name,memory.total,driver_version,compute_mode,mig.mode.current,persistence_mode,clocks.max.sm,clocks.max.mem,power.limit"


def output(*command):
    """What a program prints, and what it says went wrong, or nothing."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", str(error)
    return done.stdout.strip(), done.stderr.strip() if done.returncode else ""


def system():
    text = pathlib.Path("/etc/os-release").read_text() if os.path.exists("/etc/os-release") else ""
    return next((line.split("=", 1)[1].strip('"') for line in text.splitlines() if line.startswith("PRETTY_NAME=")), "unknown")


def main():
    card = output("nvidia-smi", f"--query-gpu={CARD}", "--format=csv,noheader")[0].splitlines()
    info, wrong = output("sherd", "info")
    manifest = pathlib.Path(os.environ["CHECK_BUNDLE"], "manifest.json")
    print(json.dumps({
        "bundle": json.loads(manifest.read_text()), "system": system(), "libc": " ".join(platform.libc_ver()),
        "kernel": platform.release(), "cores": os.cpu_count(), "nvcc_version": output("nvcc", "--version")[0][-60:], "sherd": wrong[-200:] or "runs",
        "tools": {name: "found" if shutil.which(name) else "absent" for name in TOOLS},
        **dict(zip((f"card_{name}" for name in CARD.split(",")), card[0].split(", ") if card else []))}))
    print(info)


main()
