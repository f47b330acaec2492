#!/usr/bin/env bash
# What a newcomer does: tools/quickstart, cmake --install, a program of their own. Once as the host is, with nvcc if it
# has one, and once with -DSHERD_CUDA=OFF; and on a host with Open MPI's programs but not its headers, which is what
# openmpi-bin alone gives. Meant for an empty build/release, where nothing but the quickstart has built what is
# installed. It uses that tree, so that the tests that follow need not build it again, and leaves it as it was configured.
# Usage: tests/install/quickstart.sh
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

mkdir "$work/bin"
cat >"$work/bin/mpicxx" <<'SH'
#!/bin/sh
case "$*" in
  -showme:compile) echo "-I/nonexistent/openmpi/include" ;;
  -showme:*) echo /nonexistent/openmpi/include ;;
  *) exec c++ -I/nonexistent/openmpi/include "$@" ;;
esac
SH
chmod +x "$work/bin/mpicxx"
export PATH="$work/bin:$PATH"

install_and_build_outside() { cmake -DBUILD=build/release -DWORK="$work/installed" -P tests/install/check.cmake; }

tools/setup
# The same objects serve both, so this costs a configure, and the CUDA library is still not there for the quickstart.
echo "install: without CUDA"
cmake --preset release -DSHERD_CUDA=OFF
cmake --build --preset release -j "$(nproc)" --target programs
install_and_build_outside

echo "install: after tools/quickstart, with what the host has"
cmake --preset release -DSHERD_CUDA=AUTO
tools/quickstart
install_and_build_outside
