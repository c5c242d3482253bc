#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the console blocks of a page, and compares output and exit status with the page.

page_test.py PAGE BUILD_FOLDER [--gpus]: lines may come in any order. `...` stands for any text, and
`build/` for BUILD_FOLDER. `<!-- exits with 1 -->` above a block gives the expected status of its
commands; the default is 0. Blocks below `<!-- needs 2 GPUs -->` run with --gpus only. If such a
block is skipped because the machine has fewer GPUs, the exit status is 77."""
import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"(?P<notes>(?:^<!-- [^\n]* -->\n)*)^```console\n(?P<text>.*?)^```$",
                   re.M | re.S)
NOTE = re.compile(r"<!-- (?:needs (?P<gpus>\d+) GPUs?|exits with (?P<status>\d+)) -->")
SKIPPED = 77
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("ORIEL_", "NCCL_")) or name.startswith("ORIEL_TEST_")}


def matches(pattern, line):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


def differences(expected, printed):
    """Yields lines of the page that were not printed, and printed lines that the page lacks."""
    left = list(printed)
    for pattern in sorted(expected, key=lambda line: "..." in line):
        found = next((line for line in left if matches(pattern, line)), None)
        if found is None:
            yield f"the page says: {pattern}"
        else:
            left.remove(found)
    yield from (f"not on the page: {line}" for line in left)


def gpu_count():
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True, text=True)
    except OSError:
        return 0
    present = listed.stdout.count("GPU ") if listed.returncode == 0 else 0
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return present if visible is None else min(present, len(visible.split(",")))


class Block:
    """A console block, with the GPUs and the exit status that the comments above it require."""

    def __init__(self, found):
        self.text, self.gpus, self.status = found["text"], 0, 0
        for line in found["notes"].splitlines():
            note = NOTE.fullmatch(line)
            if not note:
                raise SystemExit(f"{line}: a comment above a console block that says nothing of it")
            self.gpus = int(note["gpus"] or self.gpus)
            self.status = int(note["status"] or self.status)


def check(block, build):
    for piece in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        command, _, expected = piece.partition("\n")
        done = subprocess.run(re.sub(r"(?<!\S)build/", f"{build}/", command), shell=True,
                              check=False, env=CLEAN, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=100)
        printed = done.stdout.replace(f"{build}/", "build/")
        yield from (f"$ {command}: {one}"
                    for one in differences(expected.splitlines(), printed.splitlines()))
        if done.returncode != block.status:
            yield f"$ {command}: exits with {done.returncode}, on the page with {block.status}"


def blocks_of(text):
    return [Block(found) for found in BLOCK.finditer(text)]


def self_test():
    """Checks that planted differences are found."""
    assert not list(differences(["a", "b ... d"], ["b c d", "a"]))
    for expected, printed in ((["a"], []), ([], ["a"]), (["a", "a"], ["a"]),
                              (["a ... c"], ["a b"])):
        assert list(differences(expected, printed)), (expected, printed)
    fails = "```console\n$ echo a; exit 3\na\n```\n"
    for notes, gpus, right in (("", 0, False), ("<!-- exits with 3 -->\n", 0, True),
                               ("<!-- exits with 1 -->\n", 0, False),
                               ("<!-- needs 2 GPUs -->\n<!-- exits with 3 -->\n", 2, True)):
        [block] = blocks_of("text\n\n" + notes + fails)
        assert block.gpus == gpus and (not list(check(block, "build"))) == right, notes


def main():
    self_test()
    page, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    with_gpus, present, skipped = sys.argv[3:] == ["--gpus"], gpu_count(), 0
    blocks = [block for block in blocks_of(page.read_text(encoding="utf-8"))
              if (block.gpus > 0) == with_gpus]
    found = [] if blocks else ["there is no such console block"]
    for block in blocks:
        if block.gpus > present:
            print(f"skipped: a block needs {block.gpus} GPUs, {present} are here")
            skipped += 1
        else:
            found += check(block, build)
    for finding in found:
        print(f"{page}: {finding}")
    if found:
        return 1
    return SKIPPED if skipped else 0


if __name__ == "__main__":
    sys.exit(main())
