#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the commands of a page's console blocks and compares what they print with the page.

page_test.py PAGE BUILD_FOLDER: lines may come in any order, `...` stands for
anything, `build/` for BUILD_FOLDER. A block below `<!-- needs 2 GPUs -->` is skipped without them."""
import os
import pathlib
import re
import subprocess
import sys

BLOCK = re.compile(r"(?:^<!-- needs (?P<gpus>\d+) GPUs -->\n)?^```console\n(?P<text>.*?)^```$",
                   re.M | re.S)
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("ORIEL_", "NCCL_")) or name.startswith("ORIEL_TEST_")}


def matches(pattern, line):
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), line) is not None


def differences(expected, printed):
    """Lines of the page that nothing printed, and printed lines that the page has not."""
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
    return listed.stdout.count("GPU ") if listed.returncode == 0 else 0


def check(block, build):
    for piece in re.split(r"^\$ ", block, flags=re.M)[1:]:
        command, _, expected = piece.partition("\n")
        done = subprocess.run(re.sub(r"(?<!\S)build/", f"{build}/", command), shell=True, check=False,
                              env=CLEAN, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              timeout=100)
        printed = done.stdout.replace(f"{build}/", "build/")
        yield from (f"$ {command}: {one}"
                    for one in differences(expected.splitlines(), printed.splitlines()))


def self_test():
    """The comparison must find what is planted."""
    assert not list(differences(["a", "b ... d"], ["b c d", "a"]))
    for expected, printed in ((["a"], []), ([], ["a"]), (["a", "a"], ["a"]), (["a ... c"], ["a b"])):
        assert list(differences(expected, printed)), (expected, printed)


def main():
    self_test()
    page, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]).resolve()
    blocks = list(BLOCK.finditer(page.read_text(encoding="utf-8")))
    found = [] if blocks else ["there is no console block"]
    for block in blocks:
        if int(block["gpus"] or 0) > gpu_count():
            print(f"a block that needs {block['gpus']} GPUs is left out")
            continue
        found += check(block["text"], build)
    for finding in found:
        print(f"{page}: {finding}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
