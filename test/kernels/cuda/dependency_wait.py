#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.26][req:1.27]
"""No kernel touches memory before it has passed the grid-dependency wait.

A kernel starts while the one before it in the stream still runs, so whatever it reads earlier than
griddepcontrol.wait may be about to change: user buffers, the epochs, a scalar on the device. This
compiles kernels to PTX and walks every path from each kernel's start to the first wait.

    dependency_wait.py --nvcc NVCC --root SOURCE_DIR FILE.cu...
"""

import argparse
import re
import subprocess
import sys

ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)\s*\(", re.M)
LABEL = re.compile(r"^(\$?[\w$]+):$")
WAIT = "griddepcontrol.wait"
# Parameters, constants and what only this CTA can see are no one else's.
OWN_SPACES = {"param", "const", "local", "shared"}
ACCESSES = {"ld", "ldu", "st", "atom", "red", "cp", "multimem", "prefetch", "call"}


def bodies(ptx):
    """(name, lines) of each kernel; a line is one label or instruction, without its semicolon."""
    for match in ENTRY.finditer(ptx):
        depth = 0
        start = ptx.index("{", match.end())
        for end in range(start, len(ptx)):
            depth += {"{": 1, "}": -1}.get(ptx[end], 0)
            if depth == 0:
                break
        text = re.sub(r"//[^\n]*", "", ptx[start + 1:end])
        lines = (line.strip().rstrip(";").strip() for line in text.split("\n"))
        yield match.group(1), [line for line in lines if line]


def early_accesses(lines):
    """Memory accesses on some path that has not passed the wait, and whether a path reaches it."""
    labels = {}
    for index, line in enumerate(lines):
        label = LABEL.match(line)
        if label:
            labels[label.group(1)] = index
    found, waits, seen, pending = [], False, set(), [0]
    while pending:
        index = pending.pop()
        if index in seen or index >= len(lines):
            continue
        seen.add(index)
        guard = re.match(r"@\S+\s+", lines[index])
        words = lines[index][guard.end() if guard else 0:].split(None, 1)
        parts = words[0].split(".")
        if words[0] == WAIT and not guard:
            waits = True
            continue
        if parts[0] in ACCESSES and not OWN_SPACES & set(re.split(r"[.:]+", words[0])):
            found.append(lines[index])
        ends = parts[0] in ("ret", "exit", "trap")
        if parts[0] == "brx":  # through a table: anywhere
            pending += labels.values()
            ends = True
        elif parts[0] == "bra":
            pending.append(labels[words[1].strip()])
            ends = True
        if guard or not ends:
            pending.append(index + 1)
    return found, waits


def check(ptx):
    """What is wrong with each kernel, by name; empty lists for those that are right."""
    verdicts = {}
    for name, lines in bodies(ptx):
        found, waits = early_accesses(lines)
        verdicts[name] = [f"before the wait: {line}" for line in found]
        if not waits:
            verdicts[name].append("no path reaches a wait")
    return verdicts


def compile_to_ptx(nvcc, root, source):
    command = [nvcc, "-std=c++20", "-O3", "-arch=sm_90", "-ptx", "--expt-relaxed-constexpr",
               f"-I{root}/include", f"-I{root}/src", "-o", "-", source]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--nvcc", required=True)
    parser.add_argument("--root", required=True)
    parser.add_argument("sources", nargs="+")
    options = parser.parse_args()
    bad = 0
    for source in options.sources:
        ptx = compile_to_ptx(options.nvcc, options.root, source)
        verdicts = check(ptx)
        for name, wrong in verdicts.items():
            for text in wrong:
                print(f"{source}: {name}: {text}", file=sys.stderr)
                bad += 1
        # The check itself: it must find every kernel guilty once the wait is gone.
        without = check(ptx.replace(WAIT, "griddepcontrol.launch_dependents"))
        least = 15 if "all_reduce" in source else 1
        if len(verdicts) < least or not all(any("before" in text for text in wrong)
                                            for wrong in without.values()):
            print(f"{source}: the check has lost its kernels: {sorted(verdicts)}", file=sys.stderr)
            bad += 1
        print(f"{source}: {len(verdicts)} kernels")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
