"""Checks a bundle (tools/gpu/pack) on a GPU host, without network. Each stage ends within its time: what has not begun by
then is left out and counts as failed.

Results go to $OUT (default: build/gpu_check beside the bundle), after every step what there is. $PYTHON: the Python that
has torch. $DEADLINE: another time for the stage, in seconds. --hang-after: how long a test may say nothing. --dry-run runs
all steps on the emulated GPU, at tiny sizes, to show that the program, the bundle and the steps work; its figures mean
nothing. Needs nothing but Python 3.8.
"""

import argparse
import os
import pathlib
import sys

import actions
import report
import stages
from host import Host


def find_bundle():
    here = pathlib.Path(__file__).absolute().parent.parent  # not resolved: a bundle may be made of links
    for bundle in (here, here.parent.parent / ".gpu"):
        if (bundle / "bin").is_dir():
            return bundle
    sys.exit(f"no bundle at {here.parent.parent / '.gpu'}: run tools/gpu/pack first")


def parse():
    text = f"{__doc__}\n{stages.plan_text()}"
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter,
                                     prog="gpu_check.sh")
    parser.add_argument("stage", choices=list(stages.STAGES))
    parser.add_argument("--dry-run", action="store_true", help="on the emulated GPU, at tiny sizes")
    parser.add_argument("--hang-after", type=float, default=stages.TEST_SECONDS, metavar="SECONDS",
                        help="how long a test may say nothing (default: %(default)s)")
    return parser.parse_args()


def main():
    options = parse()
    stage = stages.STAGES[options.stage]
    bundle = find_bundle()
    out = pathlib.Path(os.environ.get("OUT") or bundle.parent / "build" / "gpu_check").absolute()
    host = Host(options.stage, bundle, out, dry=options.dry_run, hang_after=options.hang_after,
                seconds=float(os.environ.get("DEADLINE") or stage.seconds))
    for step in stage.steps:
        report.announce(step)
        result = actions.perform(host, step)
        host.note(step, result)
        report.tell(step, result)
    failed = report.finish(host)
    return 1 if failed else 0


sys.exit(main())
