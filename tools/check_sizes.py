#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks sizes: files have at most 600 lines, functions 60, kernels 120 and test cases 100. Classes
of the product have at most 25 methods and 15 members. Every source file names its licence at the
top. Some pages have limits too (LONGEST_PAGES). A line of Python has at most 100 characters;
clang-format sees to the lines of C++ and CUDA.

Functions are found by their braces, not by a parser: a block that opens outside any other function,
after a parameter list. This covers CUDA files, which check_tidy.py does not read.
Classes are not parsed either. A declaration with a parameter list is a method, unless defaulted or
deleted. A struct without methods is a record and may have any number of members.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

LONGEST_FILE = 600
LONGEST_LINE = 100
LONGEST_PAGES = {"docs/performance.md": 150, "docs/architecture.md": 110, "docs/internals/": 200}
LONGEST_FUNCTION = 60
LONGEST_KERNEL = 120
LONGEST_TEST = 100  # longer than functions: the sections of a test case stand alone
MOST_METHODS = 25
MOST_MEMBERS = 15
PRODUCT = ("src", "include", "tools")
# Classes above these limits: (most methods, most members, reason). An entry whose class is within
# the limits again is an error.
LARGE_CLASSES = {
    "include/oriel/device/comm.hpp:CommView": (25, 21, "what a kernel is handed, by value"),
    "include/oriel/device/queue/send_queue.hpp:QueueView": (25, 18, "one layout for GPU and NIC"),
    "src/base/settings.hpp:Settings": (25, 26, "one member for each setting"),
    "src/kernels/plan/arguments.hpp:AllReduceArguments": (
        25, 25, "what a kernel is handed, by value"),
    "src/net/soft/sent_requests.hpp:SentRequest": (25, 16, "a record with one question"),
}

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum)\b|\bextern\s*$")
NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# Matches what may stand before a class's name: alignas, attributes and macros of capital letters.
BEFORE_NAME = (r"(?:(?:alignas|__\w+__)\s*" + NESTED + r"\s*|\[\[[^\]]*\]\]\s*|[A-Z][A-Z0-9_]+\s+)")
BRACKETED = r"<(?:[^<>{};]|<(?:[^<>{};]|<[^<>{};]*>)*>)*>"
CLASS = re.compile(r"\b(?<!enum )(?:class|struct)\s+" + BEFORE_NAME + r"*([\w:]+(?:\s*" + BRACKETED
                   + r")?(?:::\w+)*)(?:\s+final)?\s*(?::(?!:)[^{;()]*)?\{")
ACCESS = re.compile(r"\b(?:public|private|protected)\s*:(?!:)")
NO_MEMBER = re.compile(r"(?:using|friend|typedef|static_assert|class|struct|enum|union)\b"
                       r"|template\s*<[^>]*>\s*(?:friend|using|class|struct)\b")
DEFAULTED = re.compile(r"=\s*(?:default|delete)$")
TEMPLATE_ARGUMENTS = re.compile(r"<[^<>]*>")
ARGUMENTS = re.compile(r"\([^()]*\)")
FUNCTION_POINTER = re.compile(r"\(\s*\*\s*\w+\s*\)\s*\(")
STATIC = re.compile(r"(?:inline\s+)?(?:static|constexpr)\b")
NAME = re.compile(r"([~\w:]+(?:<[^<>]*>)?)\s*\(")


def blank(match):
    """Replaces all characters but newlines by spaces, so that line numbers stay."""
    return re.sub(r"[^\n]", " ", match.group(0))


def code_of(text):
    return PREPROCESSOR.sub(blank, lint.NOT_CODE.sub(blank, text))


def is_function(header):
    """Returns True if a brace after `header` (the text since the last ; { or }) opens a
    function."""
    if "(" not in header:
        return False
    before = header.split("(", 1)[0]
    return not SCOPE.search(before) and not before.rstrip().endswith("=")


def functions_of(text):
    """Returns (first line, last line, header) of each outermost function."""
    code = code_of(text)
    found = []
    depth = 0
    header_start = 0
    block = None  # outermost open function or initialiser: (depth, start, header)
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


def statements_of(body):
    """Returns the declarations of a class body, without the content of braces."""
    flat, depth, brackets = [], 0, 0
    for char in body:
        depth += char == "{"
        if depth == 0:
            flat.append(char)
            brackets += {"(": 1, ")": -1}.get(char, 0)
        elif char == "}":
            depth -= 1
            if depth == 0:
                flat.append("{}" if brackets > 0 else "{};")
    text = ACCESS.sub(";", "".join(flat))
    return [statement.strip() for statement in text.split(";") if statement.strip(" \n{}")]


def classes_of(text):
    """Yields (line, name, number of methods, number of members) of each class."""
    code = code_of(text)
    for found in CLASS.finditer(code):
        depth, end = 1, found.end()
        while depth > 0 and end < len(code):
            depth += {"{": 1, "}": -1}.get(code[end], 0)
            end += 1
        methods = members = 0
        for statement in statements_of(code[found.end():end - 1]):
            statement = statement.removesuffix("{}").strip()
            if NO_MEMBER.match(statement) or DEFAULTED.search(statement):
                continue
            bare = statement
            while (fewer := TEMPLATE_ARGUMENTS.sub("", bare)) != bare:
                bare = fewer
            if FUNCTION_POINTER.search(bare):
                members += 1
            elif "(" in bare.split("=")[0] or "operator" in bare:
                methods += 1
            elif not STATIC.match(statement):
                members += 1 + ARGUMENTS.sub("", bare).count(",")
        yield code.count("\n", 0, found.start()) + 1, found[1], methods, members


def check_classes(name, text, large=None):
    large = LARGE_CLASSES if large is None else large
    for line, label, methods, members in classes_of(text):
        if methods == 0:
            continue
        most_methods, most_members, _ = large.get(f"{name}:{label}",
                                                  (MOST_METHODS, MOST_MEMBERS, ""))
        for count, most, what in ((methods, most_methods, "methods"),
                                  (members, most_members, "members")):
            if count > most:
                yield f"{name}:{line}: class {label} has {count} {what}, more than {most}"


def check_table(root):
    """Finds entries of LARGE_CLASSES whose class is missing or within the limits."""
    for key in LARGE_CLASSES if root == lint.ROOT else ():
        name, label = key.split(":")
        path = root / name
        counts = [(methods, members) for _, found, methods, members in
                  classes_of(path.read_text() if path.exists() else "") if found == label]
        if not counts:
            yield f"tools/check_sizes.py: {key} of the table is not there"
        elif counts[0][0] <= MOST_METHODS and counts[0][1] <= MOST_MEMBERS:
            yield f"tools/check_sizes.py: {key} of the table is small enough"


def check_file(path, name):
    text = path.read_text(errors="replace")
    lines = text.splitlines()
    if len(lines) > LONGEST_FILE:
        yield f"{name}:1: the file has {len(lines)} lines, more than {LONGEST_FILE}"
    if "SPDX-License-Identifier: Apache-2.0" not in "\n".join(lines[:3]):
        yield f"{name}:1: no SPDX licence line at the top"
    yield from check_functions(name, text)
    if name.parts[0] in PRODUCT or len(name.parts) == 1:
        yield from check_classes(name.as_posix(), text)


def check_pages(root):
    for path in lint.tracked_files(root):
        name = path.relative_to(root).as_posix()
        for start, most in LONGEST_PAGES.items():
            lines = len(path.read_text().splitlines()) if name.startswith(start) else 0
            if lines > most:
                yield f"{name}:1: the page has {lines} lines, more than {most}"


def check_python(root):
    for path in lint.tracked_files(root):
        text = path.read_text(errors="replace") if path.suffix in ("", ".py") else ""
        for number, line in enumerate(text.split("\n") if lint.is_python(path, text) else (), 1):
            if len(line) > LONGEST_LINE:
                yield (f"{path.relative_to(root)}:{number}: the line has {len(line)} characters, "
                       f"more than {LONGEST_LINE}")


def check(root):
    return [finding for path in lint.sources(root)
            for finding in check_file(path, path.relative_to(root))] + [
                *check_table(root), *check_pages(root), *check_python(root)]


LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"
STEPS = "  step();\n"
CLEAN = {
    "a.cpp": LICENCE + "namespace a {\nint f() {\n" + STEPS * 58 + "}\n}  // namespace a\n",
    "b.cu": LICENCE + "__global__ void k(int* p) {\n" + STEPS * 100 + "}\n",
    # Long classes and tables do not count as functions.
    "test/c.hpp": LICENCE + "class C {\n public:\n" + "  int f() { return 1; }\n" * 90 + "};\n"
             + "const int t[] = {\n" + "  1,\n" * 90 + "};\n"
             + "const F u[] = {\n" + "  F(1),\n" * 90 + "  {F(1), 2},\n};\n",
    # A class at both limits, and a record with many members.
    "e.hpp": LICENCE + "class E {\n"
             + "".join(f"  void f{i}(int x) {{ g(x); }}\n" for i in range(25))
             + "  E(const E&) = delete;\n  using F = void (*)();\n"
             + "".join(f"  std::map<int, int> m{i}_ = h(0);\n" for i in range(15)) + "};\n"
             + "struct R {\n" + "".join(f"  int (*m{i})(int);\n" for i in range(40)) + "};\n",
    "d.cpp": LICENCE + '// a brace in a comment: {\nconst char* text = "{";\n'
             + "int g() {\n" + STEPS * 40 + "}\nint h() {\n" + STEPS * 40 + "}\n",
    "docs/architecture.md": "\n" * 110,
    "tools/a.py": f"x = '{'…' * 94}'\n",
    "tools/run": f"#!/bin/sh\n# {'x' * 100}\n",
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
    ({"src/a/a.hpp": LICENCE + "class A : public B<int> {\n  A();\n"
      + "".join(f"  int f{i}();\n" for i in range(25)) + "};\n"}, "class A has 26 methods"),
    ({"src/a/a.cpp": LICENCE + "struct A::State final {\n"
      + "  bool f(std::function<void(int)> g = {});\n"
      + "".join(f"  int m{i} = 0, n{i};\n" for i in range(8)) + "};\n"},
     "class A::State has 16 members"),
    *(({"include/oriel/a.hpp": LICENCE + before + " {\n  A();\n"
        + "".join(f"  {member}{i};\n" for i in range(25)) + "};\n"}, finding)
      for before, member, finding in (
          ("class ORIEL_API Plant", "int f(int x = 1) const; int m", "class Plant has 26 methods"),
          ("class ORIEL_API Plant", "int m", "class Plant has 25 members"),
          ("template <>\nstruct Plant<int>", "int m", "class Plant<int> has 25 members"),
          ("template <class T>\nclass Plant<std::map<T, int>, M> final : public B<T>", "int m",
           "class Plant<std::map<T, int>, M> has 25 members"),
          ("template <>\nstruct alignas(sizeof(int)) ORIEL_API Plant<int>::State", "int m",
           "class Plant<int>::State has 25 members"),
          ("class [[nodiscard(\"\")]] ORIEL_API Plant", "int m", "class Plant has 25 members"),
          ("struct __attribute__((aligned(8))) Plant", "int m", "class Plant has 25 members"))),
    ({"a.hpp": LICENCE + "\n" * 600}, "601 lines, more than 600"),
    ({"a.hpp": "int x;\n"}, "no SPDX"),
    ({"docs/performance.md": "\n" * 151}, "151 lines, more than 150"),
    ({"docs/internals/net.md": "\n" * 201}, "201 lines, more than 200"),
    ({"docs/architecture.md": "\n" * 111}, "docs/architecture.md:1: the page has 111 lines"),
    ({"docs/a/a.py": f"\nx = '{'x' * 95}'\n"}, "docs/a/a.py:2: the line has 101 characters"),
    ({"tools/a": f"#!/usr/bin/env python3\n# {'x' * 99}\n"}, "tools/a:2: the line has 101 char"),
]

if __name__ == "__main__":
    lint.main("sizes of files and functions", check, CLEAN, PLANTS)
