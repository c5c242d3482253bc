#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that each public header compiles alone: as C++20, as C99 if it is a C header, and with
nvcc if there is one. A .cuh header is for nvcc only."""
import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
C_HEADERS = {"nccl.h"}  # nccl_device.h is C++: it is for kernels


def find_nvcc():
    candidate = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return candidate if os.access(candidate, os.X_OK) else None


def compile_commands(path, include, nvcc):
    """Yields (language, command) for each way in which the header must compile, without the
    source."""
    if path.suffix != ".cuh":
        yield "C++20", ["c++", "-std=c++20", "-fsyntax-only", *WARNINGS, f"-I{include}", "-xc++"]
    if path.name in C_HEADERS:
        yield "C99", ["cc", "-std=c99", "-pedantic", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                      f"-I{include}", "-xc"]
    if nvcc:
        # Compiles to PTX, so that the assembly in the header is generated too.
        yield "CUDA", [nvcc, "-std=c++20", "-arch=sm_90", "-ptx", "-o", "/dev/null", "-Werror",
                       "all-warnings", f"-I{include}", "-x", "cu"]


def compile_header(job):
    path, include, language, command, folder = job
    name = path.relative_to(include)
    source = pathlib.Path(folder) / (str(name).replace("/", "_") + "." + language + ".src")
    # Includes the header twice: it must have an include guard.
    source.write_text(f'#include "{name}"\n#include "{name}"\n')
    done = subprocess.run([*command, str(source)], capture_output=True, text=True)
    if done.returncode == 0:
        return None
    lines = (done.stderr + done.stdout).strip().splitlines()
    errors = [line for line in lines if "error" in line] or lines
    return f"include/{name}: does not compile alone as {language}: {errors[0] if errors else '?'}"


def check(root):
    include = root / "include"
    headers = [path for path in lint.sources(root) if path.is_relative_to(include)]
    nvcc = find_nvcc()
    if not nvcc:
        print("headers: skipped with CUDA: there is no nvcc")
    with tempfile.TemporaryDirectory(prefix="oriel-headers-") as folder:
        jobs = [(path, include, language, command, folder) for path in headers
                for language, command in compile_commands(path, include, nvcc)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            findings = list(pool.map(compile_header, jobs))
    return [finding for finding in findings if finding]


CLEAN = {"include/oriel/a.hpp": "#pragma once\n#include <vector>\ninline std::vector<int> v;\n",
         "include/nccl.h": "#ifndef N\n#define N\n#include <stddef.h>\nsize_t f(void);\n#endif\n"}
PLANTS = [
    ({"include/oriel/a.hpp": "#pragma once\ninline std::vector<int> v;\n"}, "alone as C++20"),
    ({"include/oriel/a.hpp": "struct A {};\n"}, "alone as C++20"),
    ({"include/nccl.h": "#pragma once\nbool f(int x = 1);\n"}, "alone as C99"),
]
if find_nvcc():
    PLANTS.append(({"include/oriel/a.cuh": "#pragma once\n__device__ int f() { return g(); }\n"},
                   "alone as CUDA"))

if __name__ == "__main__":
    lint.main("public headers", check, CLEAN, PLANTS)
