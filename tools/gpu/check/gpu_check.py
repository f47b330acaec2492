"""Checks a bundle (tools/gpu/pack) on a GPU host, without network, in two calls.

  first   everything (steps.py), in 8 minutes
  again   what failed in the calls before, then what they did not reach, in 3 minutes; on another machine, too
  run     a command with the environment that steps have: gpu_check.sh run sherd bench gpu.rope

What is known stands in a folder (--state, default build/gpu_check beside the bundle) and, after every step anew, in
results.tar.xz in $OUT (default: that folder's parent), with report.txt beside it. A call that finds no such folder reads
results.tar.xz in the bundle, or what --from names. $PYTHON: the Python that has torch. Needs nothing but Python 3.9.
"""

import argparse
import os
import pathlib
import sys

import process
import state
import steps
from host import Host, now
from runner import Runner, plan


def find_bundle():
    here = pathlib.Path(__file__).absolute().parent.parent  # not resolved: a bundle may be made of links
    for bundle in (here, here.parent.parent / ".gpu"):
        if (bundle / "bin").is_dir():
            return bundle
    sys.exit(f"gpu_check.sh: no bundle at {here.parent.parent / '.gpu'}: run tools/gpu/pack first")


def parse(words):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     prog="gpu_check.sh")
    parser.add_argument("call", choices=[*steps.CALLS, "run"])
    parser.add_argument("command", nargs="*", help="of run")
    parser.add_argument("--state", type=pathlib.Path, metavar="DIR", help="where what is known is kept")
    parser.add_argument("--from", dest="archive", type=pathlib.Path, metavar="FILE", help="results.tar.xz of an earlier call")
    parser.add_argument("--only", action="append", default=[], metavar="STEP", help="a step or a group of steps; may be repeated")
    parser.add_argument("--seconds", type=float, help="of the call, instead of its own")
    parser.add_argument("--hang-after", type=float, default=steps.TEST_SECONDS, metavar="SECONDS",
                        help="how long a test may say nothing (default: %(default)s)")
    parser.add_argument("--dry-run", type=pathlib.Path, metavar="BUILD",
                        help="on the emulated GPU of a build folder, at tiny sizes: its figures mean nothing")
    split = words.index("run") + 1 if words[:1] == ["run"] else len(words)  # what follows is the command's own
    options = parser.parse_args(words[:split])
    options.command = words[split:]
    if options.call == "run" and not options.command:
        parser.error("run needs a command, such as: run sherd info")
    if options.dry_run and not (options.dry_run / "lib/emulated").is_dir():
        parser.error(f"--dry-run {options.dry_run}: there is no emulated GPU; name a build folder with the targets test_cuda and "
                     "bench_gpu_limits_emulated")
    known = {step.name for step in steps.STEPS} | set(steps.GROUPS)
    for name in options.only:
        if name not in known:
            parser.error(f"--only {name}: there is no such step; there are {', '.join(sorted(known))}")
    if options.call == "first" and options.archive:
        parser.error(f"--from {options.archive}: first begins anew; again goes on from an archive")
    return options


def begin(options, bundle, folder):
    """What is known when the call begins."""
    if options.call == "first":
        return state.State.begin(folder)
    archive = options.archive or (None if (folder / state.STATE).exists() else bundle / state.ARCHIVE)
    if archive:
        if not archive.exists():
            raise OSError(f"again: there are no results in {folder}, and no {archive}; run first, or name an archive by --from")
        state.unpack(archive, folder)
    known = state.State.load(folder)
    was_dry = known.calls[0]["dry_run"]
    if was_dry != bool(options.dry_run):
        raise OSError(f"again: the results in {archive or folder} are those of {'a dry run' if was_dry else 'a card'}")
    return known


def main():
    options = parse(sys.argv[1:])
    bundle = find_bundle()
    folder = (options.state or bundle.parent / "build" / "gpu_check").absolute()
    out = pathlib.Path(os.environ.get("OUT") or folder.parent).absolute()
    host = Host(bundle, folder, options.dry_run and options.dry_run.absolute(), options.hang_after)
    try:
        if options.call == "run":
            os.execvpe(options.command[0], options.command, host.environment)
        known = begin(options, bundle, folder)
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        print(f"gpu_check.sh: {error}", file=sys.stderr)
        return 2
    process.stop_on_signals()
    known.calls.append({"call": options.call, "date": now(), "dry_run": bool(options.dry_run), "torch": host.torch})
    chosen = plan(options.call, known, options.only)
    runner = Runner(host, known, out, options.seconds or steps.CALLS[options.call])
    runner.save()
    runner.run(chosen)
    print((out / "report.txt").read_text(), end="", flush=True)
    return 1 if any(known.status(step.name) in ("failed", "not reached") for step in chosen) else 0


if __name__ == "__main__":
    sys.exit(main())
