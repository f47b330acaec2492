#!/usr/bin/env bash
# Twin runs, of which 100 are a test: an eager and a captured training in a drawn layout, changes between calls that are
# drawn from a table and taken back, equal bits and calls (tests/parallel/twin_runs_test.cpp).
# Usage: tools/soak/twins.sh [NUMBER, 2000 by default]
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
cmake --build --preset release -j "$(nproc)" --target test_parallel
SHERD_TWINS=${1:-2000} build/release/bin/test_parallel --gtest_filter='TwinRuns.*'
