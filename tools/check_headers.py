#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that each public header compiles alone: as C++20, as C99 if it is a C header, and with
nvcc if there is one. A .cuh header is for nvcc only.

Each header has an example in its comments, between "/// ```cpp" and "/// ```", which must compile in
the same languages. Doxygen must find a comment at every public symbol, and warn of nothing."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
EXAMPLE = re.compile(r"^//+ ```cpp\n((?:^//.*\n)*?)^//+ ```$", re.M)
DOXYGEN = """
RECURSIVE = YES
FILE_PATTERNS = *.h *.hpp *.cuh
EXTENSION_MAPPING = cuh=C++
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
JAVADOC_AUTOBRIEF = YES
EXTRACT_STATIC = YES
WARN_IF_UNDOCUMENTED = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = ORIEL_DEVICE_FN= ORIEL_DEVICE_SLOW= ORIEL_API= __device__= __host__= __forceinline__=
EXCLUDE_SYMBOLS = *detail*
QUIET = YES
"""
C_HEADERS = {"nccl.h"}


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


def example_of(path):
    """Returns the code of the header's examples, or None if it has none."""
    found = EXAMPLE.findall(path.read_text(encoding="utf-8"))
    code = "\n".join(re.sub(r"^//+ ?", "", one, flags=re.M) for one in found)
    return code if found else None


def compile_header(job):
    path, include, language, command, folder = job
    name = path.relative_to(include)
    source = pathlib.Path(folder) / (str(name).replace("/", "_") + "." + language + ".src")
    header = f"include/{name}"

    def compile_text(text, failure):
        source.write_text(text)
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        if done.returncode == 0:
            return None
        lines = (done.stderr + done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines
        return f"{header}: {failure} {language}: {errors[0] if errors else '?'}"

    # Includes the header twice: it must have an include guard. The header stands first, so that it
    # compiles alone if it compiles with the example behind it.
    both = f'#include "{name}"\n#include "{name}"\n'
    example = example_of(path)
    if example is not None and compile_text(both + example, "") is None:
        return None
    finding = compile_text(both, "does not compile alone as")
    if finding is not None or example is None:
        return finding or f"{header}: has no example"
    return compile_text(both + example, "its example does not compile as")


def doxygen_findings(include):
    """Yields what Doxygen warns of in the public headers."""
    if not shutil.which("doxygen"):
        yield "headers: there is no doxygen; install the package doxygen"
        return
    with tempfile.TemporaryDirectory(prefix="oriel-doxygen-") as folder:
        options = f"INPUT={include}\nOUTPUT_DIRECTORY={folder}\n{DOXYGEN}"
        done = subprocess.run(["doxygen", "-"], input=options, capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if ": warning: " in line or "error: " in line:
            yield line.replace(f"{include.parent}/", "")


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
    return list(dict.fromkeys(filter(None, findings))) + list(doxygen_findings(include))


SIMPLE = "/// A.\n/// ```cpp\n/// {example}\n/// ```\n/// @file\n#pragma once\n{text}\n"
A = SIMPLE.format(example="inline int twice = 2 * a;", text="inline int a = 1;  ///< one")
C = """/// C.
/// ```cpp
/// size_t twice(void) { return 2 * f(); }
/// ```
/// @file
#ifndef N
#define N
#include <stddef.h>
/// Returns a size.
size_t f(void);
#endif
"""
CLEAN = {"include/oriel/a.hpp": A, "include/nccl.h": C}
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"include/oriel/a.hpp": A + "inline std::vector<int> v;  ///< ints\n"}, "alone as C++20"),
    ({"include/oriel/a.hpp": A.replace("#pragma once\n", "struct A {};  ///< a\n")}, "alone as C++20"),
    ({"include/nccl.h": C.replace("size_t f(void)", "bool f(int x = 1)")}, "alone as C99"),
    ({"include/oriel/a.hpp": A.replace("```cpp", "```text")}, "a.hpp: has no example"),
    ({"include/oriel/a.hpp": A.replace("2 * a", "2 * b")}, "its example does not compile as C++20"),
    ({"include/oriel/a.hpp": A.replace("  ///< one", "")}, "is not documented"))]
if find_nvcc():
    PLANTS.append(({**CLEAN, "include/oriel/b.cuh": SIMPLE.format(
        example="", text="/// F.\n__device__ int f() { return g(); }")}, "alone as CUDA"))

if __name__ == "__main__":
    lint.main("public headers", check, CLEAN, PLANTS)
