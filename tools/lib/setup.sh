# shellcheck shell=bash disable=SC2034
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# Sourced by tools/quickstart and tools/check: installs what is missing and prepares the build.
# The package names are those of Debian 12 and of Ubuntu 24.04, which agree. The set-up has been run
# on Debian 12; on Ubuntu 24.04 it has not been run. (Ubuntu's catch2 is version 3; see
# test/support/catch_v3.)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
JOBS=$(nproc)

# What it takes to build everything, tests included.
BUILD_PACKAGES=(g++ cmake ninja-build ccache libfmt-dev libsodium-dev libexpat1-dev libhwloc-dev
  libcli11-dev nlohmann-json3-dev catch2 libibverbs-dev libfabric-dev)
# What tools/check needs besides.
CHECK_PACKAGES=(clang-format-14 clang-tidy-14 lld git pkg-config python3 iproute2 nftables)

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# as_root COMMAND...: as it is for root, else through sudo.
as_root() {
  if [ "$(id -u)" -eq 0 ]; then
    "$@"
  elif command -v sudo >/dev/null; then
    sudo "$@"
  else
    fail "this needs root or sudo: $*"
  fi
}

is_installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

# install_packages NAME...: those that are missing, with apt.
install_packages() {
  local package missing=()
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is no Debian or Ubuntu; taking for granted that these are there: $*"
    return
  fi
  for package in "$@"; do
    is_installed "$package" || missing+=("$package")
  done
  if [ ${#missing[@]} -eq 0 ]; then
    say "nothing to install"
    return
  fi
  say "installing with apt: ${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -qq -y --no-install-recommends "${missing[@]}" >/dev/null
}

# Compilers through ccache where it is there, and nvcc found where NVIDIA's packages put it.
prepare_build() {
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    # Another checkout of the same files may use what this one compiled.
    export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
    # It asks for these two before it keeps what was compiled with precompiled headers.
    export CCACHE_SLOPPINESS=pch_defines,time_macros
  fi
  if ! command -v nvcc >/dev/null && [ -x /usr/local/cuda/bin/nvcc ]; then
    export PATH=$PATH:/usr/local/cuda/bin
  fi
  if command -v nvcc >/dev/null; then
    say "nvcc is here: building both halves"
  else
    say "there is no nvcc: building the CPU half"
  fi
}

# build_preset PRESET [TARGET...]: configures and builds.
build_preset() {
  local preset=$1
  shift
  (cd "$ROOT" && cmake --preset "$preset" -Wno-dev --log-level=NOTICE &&
    cmake --build --preset "$preset" -j "$JOBS" ${1+--target "$@"} -- --quiet)
}
