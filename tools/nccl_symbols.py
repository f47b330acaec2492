#!/usr/bin/env python3
"""Writes tests/cuda/nccl/symbols.txt: which functions each release of NCCL exports, and how large its ncclConfig_t is.

  tools/nccl_symbols.py WHEEL...     wheels of nvidia-nccl-cu12 or -cu13, as `pip download --no-deps` leaves them

A wheel has 200 to 305 MB, so this is run by hand when a release matters that the table lacks. The test
NcclSymbols compares the table with what runtime/cuda/nccl binds.
"""
import argparse
import pathlib
import re
import subprocess
import tempfile
import zipfile

TABLE = pathlib.Path(__file__).resolve().parent.parent / "tests/cuda/nccl/symbols.txt"
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
HEADER = "nvidia/nccl/include/nccl.h"
BYTES = {"size_t": 8, "unsigned int": 4, "int": 4, "const char *": 8}


def exported(wheel):
    """Names of the functions that the wheel's library defines, without the profiling twins (pnccl...)."""
    with tempfile.TemporaryDirectory() as folder:
        file = wheel.extract(LIBRARY, folder)
        lines = subprocess.run(["nm", "-D", "--defined-only", file], check=True, capture_output=True, text=True).stdout
    return {match[1] for match in re.finditer(r" [TW] (nccl[A-Z]\w*)(?:@|$)", lines, re.MULTILINE)}


def config_bytes(header):
    """sizeof(ncclConfig_t) on a 64-bit host, from its members."""
    body = re.search(r"typedef struct ncclConfig_v\d+ \{(.*?)\} ncclConfig_t;", header, re.DOTALL)[1]
    body = re.sub(r"/\*.*?\*/", "", body, flags=re.DOTALL)
    offset = 0
    for kind in (match[1].strip() for match in re.finditer(r"([\w ]+[ *])\s*\b\w+;", body)):
        size = BYTES[kind]
        offset = -(-offset // size) * size + size
    return -(-offset // 8) * 8


def release(path):
    with zipfile.ZipFile(path) as wheel:
        header = wheel.read(HEADER).decode()
        numbers = [int(re.search(rf"#define NCCL_{part} (\d+)", header)[1]) for part in ("MAJOR", "MINOR", "PATCH")]
        return numbers, config_bytes(header), exported(wheel)


def table(releases):
    releases = sorted(releases, key=lambda entry: entry[0])
    names = sorted(set().union(*(symbols for _, _, symbols in releases)))
    rows = [["version"] + [".".join(map(str, numbers)) for numbers, _, _ in releases],
            ["config_bytes"] + [str(size) for _, size, _ in releases]]
    rows += [[name] + ["x" if name in symbols else "-" for _, _, symbols in releases] for name in names]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "".join(" ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() + "\n" for row in rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("wheel", nargs="+", type=pathlib.Path)
    TABLE.write_text(table([release(path) for path in parser.parse_args().wheel]))


if __name__ == "__main__":
    main()
