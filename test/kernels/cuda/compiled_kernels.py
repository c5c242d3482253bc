#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.26][req:1.27][req:5.9]
"""Checks properties of compiled kernels; needs nvcc but no GPU.

No kernel may access memory before the grid-dependency wait. A kernel starts while its predecessor
in the stream still runs. Memory read before griddepcontrol.wait may still change: user buffers, the
epochs, a scalar on the device. The check compiles kernels to PTX and walks every path from each
kernel's start to the first wait.

No kernel may have a larger stack frame than FRAMES allows. The frame is in local memory, so the
loops that move data would also load and store it. ptxas reports the frames. FRAMES holds the values
of CUDA 13.0; with another version, frames are not compared. Usage:

    compiled_kernels.py --nvcc NVCC --root SOURCE_DIR FILE.cu...
"""

import argparse
import pathlib
import re
import subprocess
import sys

ENTRY = re.compile(r"^\s*(?:\.visible\s+|\.weak\s+)?\.entry\s+(\w+)\s*\(", re.M)
LABEL = re.compile(r"^(\$?[\w$]+):$")
WAIT = "griddepcontrol.wait"
# State spaces that no other CTA or kernel can change.
OWN_SPACES = {"param", "const", "local", "shared"}
ACCESSES = {"ld", "ldu", "st", "atom", "red", "cp", "multimem", "prefetch", "call"}


# Maximum frame bytes by kernel name; the first match counts, and 0 applies without a match. Sums of
# types of 16 bits and more are compiled for 2, 4 and 8 ranks without a frame. So are lines of
# copies, at any address. Out-of-line functions may have no frame, and spill nothing.
FRAMES = (
    (r"(one_shot|two_shot|stream)_kernel<.*\(oriel::kernels::Family\)0, [248]>", 0),
    (r"one_shot_kernel<", 128),  # any number of ranks: arrays indexed by the rank
    (r"two_shot_kernel<", 144),
    (r"stream_kernel<", 336),
    (r"hierarchy_kernel<", 328),
    (r"blocks_kernel<\(oriel::kernels::Collective\)5>", 48),  # an all-to-all
    (r"(blocks|broadcast)_kernel", 0),
    (r"(block|broadcast)_lines_kernel", 0),
    (r"exchange_kernel<\(oriel::kernels::ExchangeForm\)0>", 32),
    (r"exchange_kernel<\(oriel::kernels::ExchangeForm\)3>", 48),
    (r"exchange_kernel<\(oriel::kernels::ExchangeForm\)4>", 32),
    (r"exchange_kernel", 0),
)
FRAME = re.compile(r"Function properties for (\w+)\s+(\d+) bytes stack frame, (\d+) bytes spill")
OUT_OF_LINE = re.compile(r"copy_(out_of_line|shifted)")


def bodies(ptx):
    """Yields (name, lines) of each kernel; a line is a label or instruction without semicolon."""
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
    """Returns the memory accesses on paths before the wait, and whether a path reaches a wait."""
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
        if parts[0] == "brx":  # indexed branch: assumes all labels
            pending += labels.values()
            ends = True
        elif parts[0] == "bra":
            pending.append(labels[words[1].strip()])
            ends = True
        if guard or not ends:
            pending.append(index + 1)
    return found, waits


def check(ptx):
    """Returns the faults of each kernel by name; correct kernels have empty lists."""
    results = {}
    for name, lines in bodies(ptx):
        found, waits = early_accesses(lines)
        results[name] = [f"before the wait: {line}" for line in found]
        if not waits:
            results[name].append("no path reaches a wait")
    return results


def frames_of(ptxas, ptx):
    """Returns the frame bytes of kernels and of out-of-line copy functions, by C++ name. For the
    functions, spilled bytes count too."""
    done = subprocess.run([ptxas, "-v", "-arch=sm_90", "-o", "/dev/null", "/dev/stdin"], check=True,
                          input=ptx, stderr=subprocess.PIPE, text=True)
    found = FRAME.findall(done.stderr)
    names = subprocess.run(["c++filt"], check=True, input="\n".join(name for name, _, _ in found),
                           stdout=subprocess.PIPE, text=True).stdout.splitlines()
    kernels = dict.fromkeys(name for name, _ in bodies(ptx))
    frames = {}
    for (symbol, size, spilled), name in zip(found, names):
        if symbol in kernels:
            frames[name] = int(size)
        elif OUT_OF_LINE.search(name):
            frames[name] = max(frames.get(name, 0), int(size), int(spilled))
    return frames


def is_cuda_13_0(nvcc):
    version = subprocess.run([nvcc, "--version"], check=True, stdout=subprocess.PIPE, text=True)
    return "release 13.0," in version.stdout


def check_frames(frames):
    """Yields one line per frame that is too large."""
    for name, size in frames.items():
        most = next((most for pattern, most in FRAMES if re.search(pattern, name)), 0)
        if size > most:
            yield f"{name}: its frame has {size} bytes, more than {most}"


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
    compares_frames = is_cuda_13_0(options.nvcc)
    for source in options.sources:
        ptx = compile_to_ptx(options.nvcc, options.root, source)
        results = check(ptx)
        for name, wrong in results.items():
            for text in wrong:
                print(f"{source}: {name}: {text}", file=sys.stderr)
                bad += 1
        # Self-test: without the wait, the check must report every kernel.
        without = check(ptx.replace(WAIT, "griddepcontrol.launch_dependents"))
        least = 15 if "all_reduce" in source else 1
        if len(results) < least or not all(any("before" in text for text in wrong)
                                            for wrong in without.values()):
            print(f"{source}: the check has lost its kernels: {sorted(results)}", file=sys.stderr)
            bad += 1
        frames = frames_of(pathlib.Path(options.nvcc).with_name("ptxas"), ptx)
        for text in check_frames(frames) if compares_frames else ():
            print(f"{source}: {text}", file=sys.stderr)
            bad += 1
        kernels = [name for name in frames if not OUT_OF_LINE.search(name)]
        too_large = list(check_frames(dict.fromkeys(frames, 1000)))
        if len(kernels) != len(results) or len(too_large) != len(frames):
            print(f"{source}: ptxas reports the frames of {len(kernels)} kernels", file=sys.stderr)
            bad += 1
        print(f"{source}: {len(results)} kernels")
    if not compares_frames:
        print("this is not CUDA 13.0: frames are not compared")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
