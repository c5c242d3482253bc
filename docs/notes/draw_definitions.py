#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws definitions at random from src, include, tools and benchmarks, for the trial that
finding-a-definition.md describes.

usage: draw_definitions.py SEED [COUNT]     in the root of the repository
"""
import pathlib
import random
import re
import subprocess
import sys

TYPE = re.compile(r"(?:class|struct|enum class) (\w+)[^;]*\{")
NO_FUNCTION = r"(?!namespace|class|struct|enum|using|static_assert|TEST|extern|template|return|union)"
FUNCTION = re.compile(rf"^{NO_FUNCTION}[A-Za-z_][\w:<>,&*\s\[\]]*?((?:\w+::)*~?\w+)\(")
PYTHON = re.compile(r"(?:def|class) (\w+)")


def definitions_of(path):
    """Yields (line, name) of each type and function defined at a file's outermost level."""
    lines = pathlib.Path(path).read_text().split("\n")
    for number, line in enumerate(lines, 1):
        if path.endswith(".py"):
            found = PYTHON.match(line)
        else:
            found = TYPE.match(line)
            if not found and (call := FUNCTION.match(line)):
                head = next((end for end in lines[number - 1:number + 5]
                             if re.search(r"[{;]\s*$", end)), "")
                found = call if head.rstrip().endswith("{") else None
        if found:
            yield number, found.group(1)


def main():
    seed = int(sys.argv[1])
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    names = subprocess.run(["git", "ls-files", "src", "include", "tools", "benchmarks"], check=True,
                           capture_output=True, text=True).stdout.split()
    files = [name for name in names if re.search(r"\.(cpp|hpp|cu|cuh|py|c|h)$", name)]
    drawn = [(path, *place) for path in files for place in definitions_of(path)]
    print(f"{count} of {len(drawn)} definitions in {len(files)} files, seed {seed}")
    for path, line, name in random.Random(seed).sample(drawn, count):
        print(f"{path}:{line} {name}")


if __name__ == "__main__":
    main()
