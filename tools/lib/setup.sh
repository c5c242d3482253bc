# shellcheck shell=bash disable=SC2034
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# Installs missing packages and prepares the build; sourced by tools/quickstart and tools/check. The
# package names are equal in Debian 12 and Ubuntu 24.04. The set-up has been run on Debian 12, but
# not on Ubuntu 24.04. (Ubuntu's catch2 is version 3; see test/support/catch_v3.)

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
JOBS=$(nproc)

# Packages for building everything, tests included, and for oriel-tune, which is a Python script.
BUILD_PACKAGES=(g++ cmake ninja-build ccache libfmt-dev libsodium-dev libexpat1-dev libhwloc-dev
  libcli11-dev nlohmann-json3-dev catch2 libibverbs-dev libfabric-dev python3)
# Further packages for tools/check.
CHECK_PACKAGES=(clang-format-14 clang-tidy-14 lld git pkg-config iproute2 nftables
  doxygen mkdocs mkdocs-material)

say() { printf '== %s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# edit_distance A B: counts the insertions, deletions and replacements that turn A into B; the
# result is in $distance.
edit_distance() {
  local a=$1 b=$2 i j above left diagonal row=()
  for ((j = 0; j <= ${#b}; ++j)); do row[j]=$j; done
  for ((i = 1; i <= ${#a}; ++i)); do
    diagonal=${row[0]} row[0]=$i
    for ((j = 1; j <= ${#b}; ++j)); do
      above=${row[j]} left=${row[j - 1]}
      distance=$diagonal
      [ "${a:i-1:1}" = "${b:j-1:1}" ] || distance=$((distance + 1))
      ((above + 1 >= distance)) || distance=$((above + 1))
      ((left + 1 >= distance)) || distance=$((left + 1))
      diagonal=$above row[j]=$distance
    done
  done
  distance=${row[${#b}]}
}

# read_flags HELP "FLAG..." ARGUMENT...: stores the given flags in the array `given`. Handles --help
# and --version and ends the script. After an unknown argument the script ends with status 2.
given=()
read_flags() {
  local help=$1 known="$2 --help --version" name=${0##*/} argument flag best least version
  shift 2
  given=()
  for argument in "$@"; do
    best="" least=$((${#argument} / 3 + 1))
    for flag in $known; do
      edit_distance "$argument" "$flag"
      if [ "$distance" -lt "$least" ]; then best=$flag least=$distance; fi
    done
    [ "$argument" != -h ] || best=--help least=0
    if [ "$least" -eq 0 ]; then given+=("$best"); continue; fi
    case $argument in
      -*) printf 'tools/%s: unknown flag %s%s\n' "$name" "$argument" \
            "${best:+; did you mean $best?}" ;;
      *) printf 'tools/%s: takes no argument "%s"\n' "$name" "$argument" ;;
    esac >&2
    printf 'tools/%s --help lists the flags\n' "$name" >&2
    exit 2
  done
  case " ${given[*]} " in
    *" --help "*) printf '%s\n' "$help"; exit ;;
    *" --version "*)
      version=$(sed -n 's/^project(oriel VERSION \([0-9.]*\).*/\1/p' "$ROOT/CMakeLists.txt")
      printf '%s (Oriel) %s\n' "$name" "$version"
      exit ;;
  esac
}

# as_root COMMAND...: runs the command as root, through sudo if necessary.
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

# install_packages NAME...: installs the missing ones with apt.
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

# Makes the build use ccache, if installed, and find nvcc where NVIDIA's packages put it.
prepare_build() {
  if command -v ccache >/dev/null; then
    export CMAKE_C_COMPILER_LAUNCHER=ccache CMAKE_CXX_COMPILER_LAUNCHER=ccache
    export CMAKE_CUDA_COMPILER_LAUNCHER=ccache
    # Lets other checkouts of the same files use the objects of this one.
    export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
    # Skips the separate preprocessing of files not in the cache. So a fresh checkout compiles in a
    # quarter less time: the first file of oriel-topo took 14.1 s instead of 18.5 s.
    export CCACHE_DEPEND=1
    # ccache requires these two to cache compilations with precompiled headers.
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
