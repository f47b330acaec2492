#!/usr/bin/env bash
# Trains under all 2,160 combinations of the settings of a reduction, of which those with every pair are a test, beside
# one rank on all rows (tests/parallel/route_training_test.cpp).
# Usage: tools/soak/routes.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
cmake --build --preset release -j "$(nproc)" --target test_parallel
SHERD_ROUTES=all build/release/bin/test_parallel --gtest_filter='RouteTraining.*'
