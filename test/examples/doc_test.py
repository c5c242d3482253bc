#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.25]
"""Checks code that is quoted in the documentation.

Every C++ block of docs/programming.md must stand, line for line, in the file named by the comment
above it. README.md must show the first example unchanged. The constants that SECURITY.md quotes
must stand in the code. The examples must be short.

doc_test.py ROOT"""
import pathlib
import re
import sys

BLOCK = re.compile(r"(?:^<!-- (?P<path>[^\n]+) -->\n)?^```cpp\n(?P<code>.*?)^```$", re.M | re.S)
LARGEST = 120  # maximum lines of an example's file
CONSTANT = re.compile(r"`(?P<path>src/[^`]+)`: `(?P<text>[^`]+)`")


def findings(text, read):
    """Yields the faults of the blocks of `text`; `read` returns a file's text by its path."""
    blocks = list(BLOCK.finditer(text))
    if not blocks:
        yield "there is no C++ in it"
    for block in blocks:
        line = text.count("\n", 0, block.start()) + 1
        if block["path"] is None:
            yield f"line {line}: no comment names the file of this code"
        elif "\n" + block["code"] not in "\n" + read(block["path"]):
            yield f"line {line}: this is not in {block['path']} as it stands here"


def constant_findings(text, read):
    """Yields the constants that SECURITY.md quotes and the code does not have."""
    quoted = list(CONSTANT.finditer(text))
    if not quoted:
        yield "SECURITY.md: no bound names its constant"
    for one in quoted:
        if not re.search(rf"\b{re.escape(one['text'])}(?![\w'])", read(one["path"])):
            yield f"SECURITY.md: {one['path']} has no {one['text']}"


def self_test():
    """Checks that planted faults are found."""
    quote = "| 4 | `src/a.hpp`: `kMost = 4` |"
    assert not list(constant_findings(quote, lambda _: "int kMost = 4;"))
    assert list(constant_findings(quote, lambda _: "int kMost = 40;"))
    assert list(constant_findings("", lambda _: ""))
    files = {"a.hpp": "int a;\nint b;\n  int c;\n"}
    good = "<!-- a.hpp -->\n```cpp\nint b;\n  int c;\n```\n"
    assert not list(findings(good, files.get))
    for bad in (good.replace("int b", "int d"), good.replace("  int c", "int c"),
                good.replace("<!-- a.hpp -->\n", ""), good.replace("int b;\n", "b;\n"), "text\n",
                good + good.replace("int b", "int e")):
        assert list(findings(bad, files.get)), bad


def main():
    root = pathlib.Path(sys.argv[1])
    self_test()
    def read(path):
        return (root / path).read_text(encoding="utf-8")

    found = [f"docs/programming.md: {one}"
             for one in findings(read("docs/programming.md"), read)]
    found += constant_findings(read("SECURITY.md"), read)
    readme = read("README.md")
    first = read("examples/01_all_reduce/all_reduce.c")
    if "```c\n" + first.partition("Apache-2.0\n")[2] + "```" not in readme:
        found.append("README.md's first program is not examples/01_all_reduce/all_reduce.c")
    for path in sorted((root / "examples").glob("*/*.[chu]*")):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines >= LARGEST:
            found.append(f"{path} has {lines} lines; it is to have less than {LARGEST}")
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
