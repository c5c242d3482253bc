#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:1.25]
"""Checks the code that pages show. Every block of a page is one of these:

- a console block, which page_test.py runs: its page is registered in CMakeLists.txt;
- a block of C or C++, which must stand, line for line, in the file named by the comment above it;
- any other block, fenced or indented, below a comment that says why nothing runs it:
  `<!-- not run: REASON -->`.

Each page says what is measured, or that nothing is; CONTRIBUTING.md and CHANGELOG.md have rules and
history only. The constants that SECURITY.md quotes must stand in the code. The examples must be
short.

doc_test.py ROOT"""
import pathlib
import re
import sys

PAGES = ("*.md", "docs/**/*.md", "examples/**/*.md", "benchmarks/*.md", "test/*/README.md")
UNMEASURED = ("CONTRIBUTING.md", "CHANGELOG.md")
MEASURED = re.compile(r"\bmeasured\b", re.I)
FENCE = re.compile(r"(?:^<!-- (?P<note>[^\n]+) -->\n+)?^(?P<fence>```|~~~)(?P<language>[^\n]*)\n"
                   r"(?P<code>.*?)^(?P=fence)$",
                   re.M | re.S)
# Matches an indented block. A list's continuation has the list's item before it.
INDENTED = re.compile(r"(?P<before>^(?! {4})[^\n]*\n)\n(?P<code>(?: {4}[^\n]+\n|\n(?= {4}))+)",
                      re.M)
LIST_ITEM = re.compile(r"\s*(?:[-*]|\d+\.) |  +\S")
LARGEST = 120  # an example's file has fewer lines
REGISTERED = re.compile(r"\boriel_page\(\S+ ([^\s)]+\.md)\)")
REGISTERED_GLOB = re.compile(r"\$\{PROJECT_SOURCE_DIR\}/(\S*\*\.md)")
CONSTANT = re.compile(r"`(?P<path>src/[^`]+)`: `(?P<text>[^`]+)`")


def fence_finding(block, read):
    language, note = block["language"], block["note"]
    if language == "console":
        return None
    if language in ("c", "cpp"):
        if note is None:
            return "no comment names the file of this code"
        if "\n" + block["code"] not in "\n" + read(note):
            return f"this is not in {note} as it stands here"
        return None
    is_excused = note is not None and note.startswith("not run: ")
    return None if is_excused else "nothing runs this block, and no comment says why"


def findings(text, read):
    """Yields the faults of the blocks of a page; `read` returns a file's text by its path."""
    for block in FENCE.finditer(text):
        if fault := fence_finding(block, read):
            yield f"line {text.count(chr(10), 0, block.start()) + 1}: {fault}"
    prose = FENCE.sub(lambda block: re.sub(r"[^\n]+", "text", block[0]), text)
    for block in INDENTED.finditer(prose):
        before = prose[:block.start("code")].rstrip("\n").rpartition("\n")[2]
        if not before.startswith("<!-- not run: ") and not LIST_ITEM.match(before):
            line = prose.count("\n", 0, block.start("code")) + 1
            yield f"line {line}: nothing runs this block, and no comment says why"


def registered_pages(cmake):
    """Returns patterns of the pages whose console blocks are run, as CMakeLists.txt names them."""
    lists = {found[1]: found[2].split()
             for found in re.finditer(r"\bforeach\((\w+) ([^$)]+)\)", cmake)}
    patterns = REGISTERED_GLOB.findall(cmake)
    for page in REGISTERED.findall(cmake):
        variable = re.search(r"\$\{(\w+)\}", page)
        values = lists.get(variable[1], []) if variable else [""]
        patterns += [page.replace(variable[0] if variable else "", value) for value in values]
    return patterns


def console_findings(page, text, patterns):
    """Yields a fault if nothing runs the console blocks of `page`, a path from the root."""
    has_console = any(block["language"] == "console" for block in FENCE.finditer(text))
    if has_console and not any(("/" / page).match("/" + pattern) for pattern in patterns):
        yield "test/examples/CMakeLists.txt does not register the page, so no console block runs"


def measured_findings(name, text):
    """Yields a fault if the prose or the tables of a page do not have the word "measured"."""
    prose = re.sub(r"<!--.*?-->|^ {4}[^\n]*", "", FENCE.sub("", text), flags=re.S | re.M)
    if name not in UNMEASURED and not MEASURED.search(prose):
        yield "the page does not say what is measured, on what, and what is not"


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
    patterns = registered_pages("foreach(e a b)\n  oriel_page(x_${e} e/${e}/R.md)\nendforeach()\n"
                                "oriel_page(r R.md)\noriel_page(${name} ${page})\n"
                                "file(GLOB p ${PROJECT_SOURCE_DIR}/docs/*.md)\n")
    for page, is_run in (("e/a/R.md", 1), ("e/b/R.md", 1), ("e/c/R.md", 0), ("R.md", 1),
                         ("S.md", 0), ("docs/a.md", 1), ("docs/b/a.md", 0)):
        path = pathlib.PurePath(page)
        assert is_run != len(list(console_findings(path, "```console\n$ a\n```\n", patterns))), page
        assert not list(console_findings(path, "```\na\n```\n", patterns)), page
    for text in ("Nothing here is\nmeasured.\n", "Measured: 2 H200.\n", "| not measured | 8 |\n"):
        assert not list(measured_findings("docs/a.md", text)), text
    for text in ("", "We unmeasured it; it measures.\n", "<!-- measured -->\n",
                 "Text:\n\n    measured\n", "```console\n$ echo measured\nmeasured\n```\n"):
        assert list(measured_findings("docs/a.md", text)), text
        assert not list(measured_findings("CHANGELOG.md", text)), text
    files = {"a.hpp": "int a;\nint b;\n  int c;\n"}
    good = "<!-- a.hpp -->\n```cpp\nint b;\n  int c;\n```\n"
    excused = "Text:\n\n<!-- not run: why -->\n\n    ls\n\n    ls\n"
    for right in (good, "text\n", "```console\n$ a\n```\n", excused, "- item\n\n    more\n",
                  "<!-- not run: why -->\n```\nls\n```\n"):
        assert not list(findings(right, files.get)), right
    for bad in (good.replace("int b", "int d"), good.replace("  int c", "int c"),
                good.replace("<!-- a.hpp -->\n", ""), good.replace("int b;\n", "b;\n"),
                good + good.replace("int b", "int e"), "```\nls\n```\n", "Text:\n\n    ls\n",
                good.replace("a.hpp", "not run: why"), "```c++\nint x;\n```\n", "~~~\nls\n~~~\n",
                "```cpp title=x\nint x;\n```\n", excused.replace("not run: why", "why")):
        assert list(findings(bad, lambda path: files.get(path, ""))), bad


def main():
    root = pathlib.Path(sys.argv[1])
    self_test()
    def read(path):
        return (root / path).read_text(encoding="utf-8")

    patterns, found = registered_pages(read("test/examples/CMakeLists.txt")), []
    for page in (page for pattern in PAGES for page in sorted(root.glob(pattern))):
        name, text = page.relative_to(root), page.read_text(encoding="utf-8")
        found += [f"{name}: {one}" for one in (*findings(text, read),
                                               *console_findings(name, text, patterns),
                                               *measured_findings(name.as_posix(), text))]
    found += constant_findings(read("SECURITY.md"), read)
    for path in sorted((root / "examples").glob("*/*.[chu]*")):
        lines = path.read_text(encoding="utf-8").count("\n")
        if lines >= LARGEST:
            found.append(f"{path} has {lines} lines; it is to have less than {LARGEST}")
    for finding in found:
        print(finding)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
