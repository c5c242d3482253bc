#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Files have at most 600 lines, functions 60, kernels 120; every source file names its licence at
the top.

Functions are found by their braces, not by a parser: a block that opens outside any other function,
after a parameter list. That covers CUDA files and headers, which clang-tidy does not see here.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

LONGEST_FILE = 600
LONGEST_FUNCTION = 60
LONGEST_KERNEL = 120
LONGEST_TEST = 100  # a test case tells a story, with sections that stand alone

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b|\bextern\s*$")
NAME = re.compile(r"([~\w:]+(?:<[^<>]*>)?)\s*\(")


def blank(match):
    """As many lines as before, without content."""
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(text):
    return PREPROCESSOR.sub(blank, lint.NOT_CODE.sub(blank, text))


def is_function(header):
    """Whether a brace after `header` (the text since the last ; { or }) opens a function."""
    if "(" not in header:
        return False
    before = header.split("(", 1)[0]
    return not SCOPE.search(before) and not before.rstrip().endswith("=")


def functions_of(text):
    """(first line, last line, header) of each outermost function."""
    code = code_of(text)
    found = []
    depth = 0
    header_start = 0
    block = None  # the outermost function or initialiser that is open: (depth, start, header)
    for match in re.finditer(r"[{};]", code):
        at, what = match.start(), match.group(0)
        if what == "{":
            depth += 1
            header = code[header_start:at]
            if block is not None:
                continue
            if re.match(r"[\w>(,]", code[at - 1:at]):
                block = (depth, None, "")  # `name{`: an initialiser within a longer header
            elif header.rstrip().endswith("="):
                block = (depth, None, "=")
            elif is_function(header):
                start = header_start + len(header) - len(header.lstrip())
                block = (depth, start, header)
            else:
                header_start = at + 1
        elif what == "}":
            if block is not None and block[0] == depth:
                _, start, header = block
                if start is not None:
                    found.append((code.count("\n", 0, start) + 1, code.count("\n", 0, at) + 1,
                                  header))
                if header:
                    header_start = at + 1
                block = None
            elif block is None:
                header_start = at + 1
            depth -= 1
        elif block is None:
            header_start = at + 1
    return found


def check_functions(path, text):
    for first, last, header in functions_of(text):
        kernel = "__global__" in header
        limit = LONGEST_KERNEL if kernel else LONGEST_FUNCTION
        if "TEST_CASE" in header:
            limit = LONGEST_TEST
        length = last - first + 1
        if length > limit:
            name = NAME.search(header)
            what = "kernel" if kernel else "function"
            yield (f"{path}:{first}: {what} {name.group(1) if name else '?'} has {length} lines, "
                   f"more than {limit}")


def check_file(path, name):
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    if len(lines) > LONGEST_FILE:
        yield f"{name}:1: the file has {len(lines)} lines, more than {LONGEST_FILE}"
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        yield f"{name}:1: no SPDX licence line at the top"
    yield from check_functions(name, text)


def check(root):
    return [finding for path in lint.sources(root)
            for finding in check_file(path, path.relative_to(root))]


LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
STEPS = "  step();\n"
CLEAN = {
    "a.cpp": LICENCE + "namespace a {\nint f() {\n" + STEPS * 58 + "}\n}  // namespace a\n",
    "b.cu": LICENCE + "__global__ void k(int* p) {\n" + STEPS * 100 + "}\n",
    # Long classes and tables are no functions.
    "c.hpp": LICENCE + "class C {\n public:\n" + "  int f() { return 1; }\n" * 90 + "};\n"
             + "const int t[] = {\n" + "  1,\n" * 90 + "};\n"
             + "const F u[] = {\n" + "  F(1),\n" * 90 + "  {F(1), 2},\n};\n",
    "d.cpp": LICENCE + '// a brace in a comment: {\nconst char* text = "{";\n'
             + "int g() {\n" + STEPS * 40 + "}\nint h() {\n" + STEPS * 40 + "}\n",
}
PLANTS = [
    ({"a.cpp": LICENCE + "namespace a {\nint f(int x) {\n" + STEPS * 59 + "}\n}\n"},
     "a.cpp:3: function f has 61 lines"),
    ({"a.cpp": LICENCE + "C::C(int x)\n    : a_(x), b_{x} {\n" + STEPS * 60 + "}\n"},
     "function C::C has 63 lines"),
    ({"a.cpp": LICENCE + "class C {\n  int f() const {\n" + STEPS * 60 + "  }\n};\n"},
     "function f has 62 lines"),
    ({"a.cpp": LICENCE + 'TEST_CASE("x") {\n' + STEPS * 100 + "}\n"}, "function TEST_CASE"),
    ({"a.cpp": LICENCE + "#define F(x) \\\n  {\nint f() {\n" + STEPS * 60 + "}\n"}, "function f"),
    ({"a.cpp": LICENCE + "int n = 1'000;\nint f() {\n" + STEPS * 60 + "}\n"}, "function f"),
    ({"k.cu": LICENCE + "__global__ void k(int* p) {\n" + STEPS * 120 + "}\n"},
     "kernel k has 122 lines"),
    ({"a.hpp": LICENCE + "\n" * 600}, "601 lines, more than 600"),
    ({"a.hpp": "int x;\n"}, "no SPDX"),
]

if __name__ == "__main__":
    lint.main("sizes of files and functions", check, CLEAN, PLANTS)
