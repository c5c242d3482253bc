#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that clang-format 14 would change no source file. To fix a file: clang-format-14 -i."""
import pathlib
import shutil
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402


def clang_format():
    for name in ("clang-format-14", "clang-format"):
        path = shutil.which(name)
        if path and " 14." in subprocess.run([path, "--version"], capture_output=True,
                                             text=True).stdout:
            return path
    sys.exit("format: there is no clang-format 14 (other versions format differently)")


def check(root):
    files = [str(path) for path in lint.sources(root)]
    if not files:
        return []
    done = subprocess.run(
        [clang_format(), f"--style=file:{lint.ROOT / '.clang-format'}", "--dry-run",
         "--ferror-limit=1", *files], capture_output=True, text=True)
    findings = [line for line in done.stderr.splitlines() if "warning:" in line or "error:" in line]
    if done.returncode != 0 and not findings:
        findings = [done.stderr.strip()]
    return findings


CLEAN = {"a.cpp": "int f();\n"}
PLANTS = [({"a.cpp": "int f(){return 1;}\n"}, "a.cpp:1"),
          ({"a.cu": "int  f();\n"}, "a.cu:1"),
          ({"a.hpp": "int* f();\nint *g();\n"}, "a.hpp:2")]

if __name__ == "__main__":
    lint.main("format", check, CLEAN, PLANTS)
