#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Proves that two revisions of sources differ in comments only, for the judgement that comments.md
describes.

Compares C, C++ and CUDA by their tokens, Python by its syntax tree without docstrings, and shell
and CMake by their lines without comments. A changed file of another kind is reported too. Exits
with 1 if anything but a comment differs."""
import ast
import pathlib
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_comments import is_cmake, lint  # noqa: E402

TOKEN = re.compile(
    r"(?P<newline>\n)|(?P<space>(?:[^\S\n]|\\\n)+)"
    r"|(?P<comment>//(?:\\\n|[^\n])*|/\*.*?\*/)"
    r'|(?:u8|[uUL])?R"(?P<mark>[^()\\\s]*)\(.*?\)(?P=mark)"'
    r"""|(?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')"""
    r"|\.?\d(?:'?\w|(?<=[eEpP])[+-]|\.)*|[A-Za-z_]\w*"
    r"|<=>|<<=|>>=|->\*|\.\.\.|::|->|\.\*|\+\+|--|&&|\|\||<<|>>|##|[-+*/%&|^<>=!]=|.", re.S)
SHELL = re.compile(
    r"""(?P<comment>(?<![^\s;&|()])#(?!!)[^\n]*)|\\.|'[^']*'"""
    r"""|"(?:\\.|\$\((?:[^()]|\([^()]*\))*\)|[^"\\])*\""""
    r"""|<<<|<<-?[ ]*(?P<quote>['"]?)(?P<end>\w+)(?P=quote).*?\n\s*(?P=end)$|.""", re.S | re.M)
CMAKE = re.compile(
    r"""(?P<comment>#\[(?P<open>=*)\[.*?\](?P=open)\]|#[^\n]*)|\\.|"(?:\\.|[^"\\])*\""""
    r"""|\[(?P<mark>=*)\[.*?\](?P=mark)\]|.""", re.S)


def c_tokens(text):
    """Yields the tokens of a C-like file. In directives spaces are tokens, because there
    `f(x)` and `f (x)` differ."""
    begins_line, in_directive, is_apart = True, False, False
    for found in TOKEN.finditer(text):
        if found.lastgroup == "newline":
            if in_directive:
                yield "\n"
            begins_line, in_directive = True, False
        elif found.lastgroup in ("space", "comment"):
            is_apart = True
            continue
        else:
            if in_directive and is_apart:
                yield " "
            in_directive |= begins_line and found[0] == "#"
            begins_line = False
            yield found[0]
        is_apart = False


def python_tokens(text):
    tree = ast.parse(lint.python_of(text))
    for node in ast.walk(tree):
        if (isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
                and ast.get_docstring(node) is not None):
            del node.body[0]
    first = text.partition("\n")[0]
    return [first if first.startswith("#!") else "", *ast.dump(tree, indent=1).split("\n")]


def lines_without(pattern, text):
    """Returns the lines of shell or CMake without comments; `pattern` names the group comment."""
    code = pattern.sub(lambda found: "" if found["comment"] else found[0], text)
    return [line.rstrip() for line in code.split("\n") if line.strip()]


def tokens_of(name, text):
    """Returns what of a file is no comment, or None if comments of such a file are not known."""
    path = pathlib.PurePath(name)
    if path.suffix in lint.SOURCE_SUFFIXES:
        return list(c_tokens(text))
    if lint.is_python(path, text):
        return python_tokens(text)
    if is_cmake(path):
        return lines_without(CMAKE, text)
    if path.suffix == ".sh" or re.match(r"#!.*\bsh\b|#!.*\bbash\b", text):
        return lines_without(SHELL, text)
    return None


def difference(name, old, new):
    """Returns a finding, or None if the texts differ in comments only. None stands for no file."""
    if old is None or new is None:
        return f"{name}: is in one version only"
    if old == new:
        return None
    before, after = tokens_of(name, old), tokens_of(name, new)
    if before is None or after is None:
        return f"{name}: has changed, and no comments are known in such a file"
    if before == after:
        return None
    pairs = zip([*before, None], [*after, None])
    place = next(i for i, (one, other) in enumerate(pairs) if one != other)
    was, now = (" ".join(tokens[place:place + 4]) for tokens in (before, after))
    return f"{name}: the code has changed: {was!r} has become {now!r}"


def git(parser, *arguments):
    command = ["git", "-c", "safe.directory=*", "-C", str(lint.ROOT), *arguments]
    done = subprocess.run(command, check=False, capture_output=True, text=True,
                          errors="surrogateescape")
    if done.returncode != 0:
        parser.error(done.stderr.strip().split("\n")[-1])
    return done.stdout


def text_at(parser, revision, name):
    """Returns a file's text in a revision, or in the working tree if that is ""; None if none."""
    if not revision:
        path = lint.ROOT / name
        return path.read_text(errors="surrogateescape") if path.is_file() else None
    if not git(parser, "ls-tree", revision, "--", name):
        return None
    return git(parser, "show", f"{revision}:{name}")


SAME = [
    ("a.cpp", "int a;  // b\n#define F(x) x /* y\n*/ + 1\n/// z\n",
     "// c\nint a;\n#define F(x) x + 1\n"),
    ("a.cpp", "f(a,  // why\n  1'000);", "f(a, 1'000);"),
    ("a.h", "// a\\\nb\nint c;", "int c;"),
    ("a.py", '"""A."""\nx = "#"  # y\n', 'x = "#"\n'),
    ("a.py", "def f():\n  'a'\n  return 1", "def f():\n  return 1"),
    ("run", "#!/usr/bin/env python3\n@A@\nx = 1  # y", "#!/usr/bin/env python3\n@A@\nx = 1"),
    ("a.sh", "cat <<<END\n# a\nEND\n", "cat <<<END\nEND\n"),
    ("a.sh", "#!/bin/sh\n# a\nx=${#y}  # b\n", "#!/bin/sh\nx=${#y}\n"),
    ("x.cmake", "f(a# b\n  c)\n#[[ d\n]]", "f(a\n  c)"),
]
OTHER = [
    ("a.cpp", "int a;", "int b;"),
    ("a.cpp", 'f("//a");', 'f("//b");'),
    ("a.cpp", "a++ + b;", "a + ++b;"),
    ("a.cpp", "#define F(x) 1", "#define F (x) 1"),
    ("a.cpp", "#define A\nb\n", "#define A b\n"),
    ("a.cpp", 'R"x(a)" // )x";', 'R"x(a)" // b)x";'),
    ("a.cpp", "int a; // b\nint c;", "int a; // b int c;"),
    ("a.cpp", "int a; // b\nint c;", "int a; // b\\\nint c;"),
    ("a.py", "x = 1", "x = 2"),
    ("a.py", "#!/bin/python\nx", "#!/bin/sh\nx"),
    ("run", "#!/usr/bin/env python3\n@A@", "#!/usr/bin/env python3\n@B@"),
    ("a.py", "x = '''\n# a'''", "x = '''\n# b'''"),
    ("a.sh", "echo a#b", "echo a#c"),
    ("a.sh", "cat <<END\n# a\nEND\n", "cat <<END\n# b\nEND\n"),
    ("a.sh", "cat <<<END\n# a\nx\nEND\n", "cat <<<END\n# a\ny\nEND\n"),
    ("a.sh", 'x="$(f "a # b")"', 'x="$(f "a # c")"'),
    ("run", "#!/bin/sh\nf 'a\n# b'", "#!/bin/sh\nf 'a\n# c'"),
    ("x.cmake", 'f("#a")', 'f("#b")'),
    ("x.cmake", "f([[\n#a]])", "f([[\n#b]])"),
    ("a.md", "a", "b"),
]


def self_test():
    wrong = [f"reported: {finding}" for finding in (difference(*one) for one in SAME) if finding]
    wrong += [f"not found: {one}" for one in OTHER if not difference(*one)]
    print(*wrong, f"tokens: self-test with {len(OTHER)} planted changes: "
          f"{f'{len(wrong)} wrong' if wrong else 'ok'}", sep="\n")
    sys.exit(1 if wrong else 0)


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that changes are found")
    parser.add_argument("old", nargs="?", help="revision, or OLD..NEW")
    parser.add_argument("paths", nargs="*", help="files and folders to compare (all)")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    if arguments.old is None:
        parser.error("which revision?")
    old, _, new = arguments.old.partition("..")
    names = git(parser, "diff", "--no-renames", "--name-only", "-z", old, *([new] if new else []),
                "--", *arguments.paths).split("\0")[:-1]
    findings = [difference(name, text_at(parser, old, name), text_at(parser, new, name))
                for name in names]
    findings = [finding for finding in findings if finding]
    print(*findings, f"{len(names)} files differ, {len(findings)} in more than comments", sep="\n")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
