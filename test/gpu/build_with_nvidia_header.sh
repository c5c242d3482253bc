#!/bin/sh
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.32] Compiles nvidia_header_program.cpp against NVIDIA's own nccl.h 2.28.9, links it to
# Oriel's libnccl.so.2 and runs it. Needs a GPU, a C++ compiler, CUDA's headers and static
# runtime, and NVIDIA's nccl.h. NVIDIA's header is not part of this repository; PyTorch's packages
# include it.
#
# usage: build_with_nvidia_header.sh BUILD_FOLDER [FOLDER_OF_NCCL_H]
set -eu

fail() {
  echo "FAIL: $*" >&2
  exit 1
}

here=$(cd "$(dirname "$0")" && pwd)
build=$(cd "${1:?usage: $0 BUILD_FOLDER [FOLDER_OF_NCCL_H]}" && pwd)
library=$build/lib/libnccl.so.2
[ -e "$library" ] || fail "there is no $library"

nccl=${2:-}
if [ -z "$nccl" ]; then
  nccl=$(python3 -c 'import os, nvidia.nccl
print(os.path.join(list(nvidia.nccl.__path__)[0], "include"))' 2>/dev/null) ||
    fail "python3 knows no package nvidia.nccl; name the folder of nccl.h"
fi
grep -q 'NVIDIA CORPORATION' "$nccl/nccl.h" || fail "$nccl/nccl.h is not NVIDIA's"
grep -q '^#define NCCL_VERSION_CODE 22809' "$nccl/nccl.h" ||
  fail "$nccl/nccl.h is not of 2.28.9: $(grep '^#define NCCL_VERSION_CODE' "$nccl/nccl.h")"

cuda=
for candidate in "${CUDA_HOME:-}" "$(dirname "$(dirname "$(command -v nvcc || echo /x/x)")")" \
  /usr/local/cuda; do
  [ -n "$candidate" ] && [ -e "$candidate/include/cuda_runtime_api.h" ] && cuda=$candidate && break
done
[ -n "$cuda" ] || fail "cuda_runtime_api.h was not found; set CUDA_HOME"
runtime=
for candidate in "$cuda"/lib64 "$cuda"/lib "$cuda"/targets/*/lib; do
  [ -e "$candidate/libcudart_static.a" ] && runtime=$candidate/libcudart_static.a && break
done
[ -n "$runtime" ] || fail "libcudart_static.a was not found below $cuda"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Includes the header by its full path; a search might find an installed Oriel's nccl.h.
"${CXX:-g++}" -std=c++17 -O1 -Wall -I"$nccl" -I"$cuda/include" \
  -DPROGRAM_NCCL_HEADER="\"$nccl/nccl.h\"" \
  "$here/nvidia_header_program.cpp" -o "$work/program" "$library" "$runtime" -ldl -lpthread -lrt
LD_LIBRARY_PATH=$build/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export LD_LIBRARY_PATH
ldd "$work/program" | grep -q "libnccl.so.2 => $build/lib/" ||
  fail "the program would load another library: $(ldd "$work/program" | grep nccl)"
status=0
timeout -k 5 60 "$work/program" || status=$?
case $status in
  0) ;;
  77) exit 77 ;;
  124 | 137) fail "the program has not ended within 60 seconds" ;;
  *) fail "the program ended with status $status" ;;
esac
