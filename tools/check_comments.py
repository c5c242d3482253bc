#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that comments and pages can be read: no comment begins with a word that points elsewhere,
and no sentence has more than 25 words. No cell of a page's table has more than 30.

Reads comments of C, C++ and CUDA, of shell, CMake and YAML, comments and docstrings of Python, and
Markdown pages. A command of Doxygen and brackets before the first word are no part of it. Only a
full stop, a question mark and an exclamation mark end a sentence. A list item is a text of its own,
and so is a cell of a page's table. A cell of docs/errors.md may have several messages, separated by
slashes. Each is a text of its own, and the values that it shows are no words. Cells of
docs/requirements.md, and descriptions that a note quotes, may be longer than 30 words.

Examples are not prose: fenced code, and tables in comments. Lines that are indented by four spaces
are an example on a page, where test/examples/doc_test.py reads them. In a comment they are one
below an empty line after a colon.
"""
import ast
import io
import pathlib
import re
import sys
import tokenize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

FOLDERS = ("include", "src", "tools", "test", "benchmarks", "examples", "cmake", "docs",
           ".ci", "CMakeLists.txt", "mkdocs.yml", ".pre-commit-config.yaml", ".clang-tidy",
           ".clang-format")
MOST_WORDS = 25
MOST_CELL_WORDS = 30
# Matches what may stand before the first word: a command such as `@param[in] name`, and brackets.
BEFORE_OPENING = (r"(?:[\\@]t?param(?:\[[a-z,]*\])? +\w+ +|[\\@](?:retval|throws) +\S+ +"
                  r"|[\\@]\w+(?:\[[a-z,]*\])? +|[(\[{\"'`*_<]+)*")
OPENING = re.compile(rf"{BEFORE_OPENING}(?P<word>of|as|the same|what|who|whether)\b", re.I)
# Matches marks for tools and tags of requirements, which are not prose.
NO_PROSE = re.compile(
    r"SPDX-|NOLINT|clang-format o|shellcheck |noqa|^!|^(\[[^\]]*\])+$|^[-=~*/#]*$")
SENTENCE_END = re.compile(r"(?<=[.?!])[)\"'`*]*\s+")
# Matches what may stand before a text of the page of requirements.
REQUIREMENT = re.compile(r"^(?:promise:[0-9]+|[0-9]\.[0-9]+|[A-Z][0-9]{1,2}|  open:|  shown by:) ")
# Pages whose cells have messages of the library, and what stands for a value in a message.
MESSAGE_PAGES = ("docs/errors.md",)
VALUE = re.compile(r"\W*…\W*")
# Pages whose cells may be longer: texts of requirements, and descriptions that a trial has used.
LONG_CELL_PAGES = ("docs/requirements.md", "docs/notes/finding-a-definition.md")
TABLE_ROW = re.compile(r" {0,3}\|(.*)\|\s*$")
CELL_END = re.compile(r"(?<!\\)\|")


class Comment:
    """A comment: its first line's number, and its lines without their markers.

    is_page: a line indented by four spaces is code. Below a list item, it needs four more than the
    item's text.
    """

    def __init__(self, line, lines, is_page=False):
        self.line = line
        self.lines = lines
        self.is_page = is_page

    def examples(self):
        """Yields for each line whether it is an example if it begins a text."""
        before, in_example, item_indent = "", False, 0
        for line in self.lines:
            text = line.strip()
            indent = len(line) - len(line.lstrip())
            is_item = re.match(r"(-|\*|\d+\.) ", text)
            if text and (is_item or indent < 2):
                item_indent = indent + is_item.end() if is_item else 0
            if self.is_page:
                yield indent >= 4 + item_indent
                continue
            # An empty line does not end an example.
            if text:
                in_example = indent >= 4 and (in_example or before.endswith(":"))
            yield in_example
            before = text or before

    def paragraphs(self):
        """Yields (line number, text) of each paragraph and list item.

        After a line that ends with a colon, each line that is indented deeper is a list item.
        """
        begin, parts, in_example = self.line, [], False
        text_indent, list_indent = 0, None
        for number, (line, is_indented) in enumerate(zip(self.lines, self.examples()), self.line):
            text = line.strip()
            is_item = re.match(r"(-|\*|\d+\.) ", text)
            indent = len(line) - len(line.lstrip())
            is_table = text.startswith(("|", ">>>", "$ ", "```"))
            if text.startswith("```"):
                in_example = not in_example
            is_example = in_example or is_table or (is_indented and not parts and not is_item)
            if not text or NO_PROSE.search(text) or is_example or is_item:
                if parts:
                    yield begin, " ".join(parts)
                begin, parts, list_indent = number, [], None
                if is_item:
                    parts = [text[is_item.end():]]
                    text_indent = indent + is_item.end()
                continue
            if parts and parts[-1].endswith(":") and indent >= text_indent + 2:
                list_indent = indent
            if list_indent is not None and indent <= list_indent:
                yield begin, " ".join(parts)
                parts = []
                list_indent = indent if indent == list_indent else None
            if not parts:
                begin, text_indent = number, indent
            parts.append(text)
        if parts:
            yield begin, " ".join(parts)


def strip_marker(text):
    return re.sub(r"^(///?<?|//!|/\*\*?|\*/?|#) ?", "", text.strip("\n").strip())


def c_comments(text):
    """Yields the comments of a C-like file. Adjacent lines with only a comment are one comment."""
    last_line, last_mark, lines, begin = 0, "", [], 0
    for match in lint.NOT_CODE.finditer(text):
        comment = match.group(0)
        if not comment.startswith(("//", "/*")):
            continue
        number = text.count("\n", 0, match.start()) + 1
        before = text[text.rfind("\n", 0, match.start()) + 1:match.start()]
        mark = re.match(r"/+<?", comment).group(0) if not before.strip() else ""
        if comment.startswith("/*"):
            yield Comment(number, [strip_marker(line.removesuffix("*/"))
                                   for line in comment.split("\n")])
            continue
        # Keeps the indentation, which marks an example.
        body = re.sub(r"^/+<? ?", "", comment)
        if mark and mark == last_mark and number == last_line + 1:
            lines.append(body)
        else:
            if lines:
                yield Comment(begin, lines)
            begin, lines = number, [body]
        last_line, last_mark = number, mark
    if lines:
        yield Comment(begin, lines)


# Matches text before a comment that ends the code of its line: in it, # is in no literal.
BEFORE_HASH = re.compile(
    r"""(?:[^"'\\#\s]|\\.|"(?:\\.|[^"\\])*"|'[^']*'|[^"'\\\s]#|\s(?!#))*\s(?=#)""")

# Matches the same in YAML, where a quote within a word is no quote.
BEFORE_HASH_YAML = re.compile(r"""(?:[^"'\s]|(?<=\w)'|"(?:\\.|[^"\\])*"|'[^']*'|\s(?!#))*\s(?=#)""")


def hash_comments(text, before=BEFORE_HASH):
    """Yields the comments that begin with #. Adjacent lines with only a comment are one comment.

    before: matches code before a comment on its line; None if such comments are not read.
    """
    lines, begin = [], 0
    for number, line in enumerate(text.split("\n"), 1):
        found = re.match(r"\s*#+ ?(?!!)(.*)$", line)
        if found and not line.startswith("#!"):
            if not lines:
                begin = number
            lines.append(found.group(1))
            continue
        if lines:
            yield Comment(begin, lines)
            lines = []
        if before and (code := before.match(line)):
            yield Comment(number, [strip_marker(line[code.end():])])
    if lines:
        yield Comment(begin, lines)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def python_comments(text):
    yield from hash_comments(re.sub(r'""".*?"""', lambda m: re.sub(r"#", " ", m.group(0)), text,
                                    flags=re.S), before=None)
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and token.line[:token.start[1]].strip():
            yield Comment(token.start[0], [strip_marker(token.string)])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED) and node.body:
            first = node.body[0]
            if (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
                    and isinstance(first.value.value, str)):
                indent = " " * first.col_offset
                yield Comment(first.lineno, [line.removeprefix(indent)
                                             for line in first.value.value.split("\n")])


def without_code(text):
    """Returns a page with empty lines for fenced code and hidden comments."""
    return re.sub(r"^ *```.*?^ *```$|<!--.*?-->", lambda match: "\n" * match.group(0).count("\n"),
                  text, flags=re.S | re.M)


def page_cells(text):
    """Yields (line number, text) of each cell of a page's tables."""
    for number, line in enumerate(without_code(text).split("\n"), 1):
        if row := TABLE_ROW.match(line):
            yield from ((number, cell.strip()) for cell in CELL_END.split(row[1]))


def page_paragraphs(text):
    """Returns the paragraphs and list items of a page, without headings and hidden comments."""
    lines = ["" if re.match(r"\s*#", line) else line for line in without_code(text).split("\n")]
    # Entries of the page of requirements are items.
    lines = [REQUIREMENT.sub("- ", line) for line in lines]
    return Comment(1, [re.sub(r"^ {1,3}(?=\S)", "", line) for line in lines], True).paragraphs()


def is_cmake(path):
    return path.name == "CMakeLists.txt" or path.name.endswith((".cmake", ".cmake.in"))


def is_yaml(path):
    return path.suffix in (".yaml", ".yml") or path.name in (".clang-tidy", ".clang-format")


def is_shell(path):
    return path.suffix == "" and path.read_bytes()[:2] == b"#!" and b"sh" in path.read_bytes()[:40]


def comments_of(path):
    text = path.read_text(errors="replace")
    if path.suffix in lint.SOURCE_SUFFIXES:
        return c_comments(text)
    if lint.is_python(path, text):
        return python_comments(lint.python_of(text))
    if is_cmake(path) or path.suffix == ".sh" or is_shell(path):
        return hash_comments(text)
    if is_yaml(path):
        return hash_comments(text, BEFORE_HASH_YAML)
    return ()


def count_words(text):
    return sum(not VALUE.fullmatch(word) for word in text.split())


def long_sentences(line, text):
    for sentence in SENTENCE_END.split(text):
        words = count_words(sentence)
        if words > MOST_WORDS:
            yield line, f"{words} words in a sentence, {MOST_WORDS} at most: {sentence[:60]}"


def long_cells(cells):
    for line, text in cells:
        words = count_words(text)
        if words > MOST_CELL_WORDS:
            yield line, f"{words} words in a cell, {MOST_CELL_WORDS} at most: {text[:60]}"


def faults_of(path, name):
    """Yields (line number, fault) of a file. `name`: its path from the root."""
    if path.suffix == ".md":
        page = path.read_text(errors="replace")
        cells = list(page_cells(page))
        if name in MESSAGE_PAGES:
            cells = [(line, text) for line, cell in cells for text in cell.split(" / ")]
        for line, text in [*page_paragraphs(page), *cells]:
            yield from long_sentences(line, text)
        if name not in LONG_CELL_PAGES:
            yield from long_cells(cells)
        return
    for comment in comments_of(path):
        for line, text in comment.paragraphs():
            opening = OPENING.match(text)
            if opening:
                yield line, f'begins with "{opening["word"]}": {text[:60]}'
            yield from long_sentences(line, text)


def check(root):
    findings = []
    for path in lint.tracked_files(root):
        name = path.relative_to(root)
        if path.suffix == ".md" or name.parts[0] in FOLDERS:
            findings += [f"{name}:{line}: {fault}"
                         for line, fault in faults_of(path, name.as_posix())]
    return findings


HALF = " ".join(["word"] * 13)
LONG = f"{HALF} {HALF}"
CLEAN = {
    "src/a.cpp": "// SPDX-License-Identifier: Apache-2.0\n"
                 "/// Returns the sum. Of its parts, the last is the\n/// largest: a fact.\n"
                 'int f();  // kept by g()\nconst char* s = "// of it";\n'
                 f"// Thus:\n//\n//     {LONG}\n//\n//     {LONG}\n"
                 f"/// - item\n///   more\n/// | {LONG} |\n\n"
                 f"// One:\n//   {HALF}\n//   {HALF}\n// Two? {HALF}! {HALF}.\n",
    "tools/b.py": f'"""Prints it:\n\n    {LONG}\n      {LONG}\n"""\nx = 1  # counts them\n',
    "test/CMakeLists.txt": "# Runs alone.\nadd_test(x)\n",
    "d.md": f"# {LONG}\n\nOf it. Short.\n\n```\n{LONG}\n```\n\n| {HALF} | {HALF}. {HALF} |\n\n"
            f"<!-- {LONG} -->\n\n- one\n  {LONG[:60]}\n- {LONG[:60]}\n",
    "docs/errors.md": f"{HALF}.\n\n| {LONG[5:]} … (…). / {HALF} |\n",
    "docs/f.md": f"No colon.\n\n    {LONG}\n\n- item\n\n      {LONG}\n",
    "mkdocs.yml": f"x: '# of it'  # Counts.\n# Short.\ny: \"# {LONG}\"\n",
    "docs/requirements.md": f"| {HALF}. {HALF}. {HALF} |\n",
    "docs/e.md": f"| {HALF}. {HALF}. Four more words here |\n",
    "other/c.py": "# Of a folder that is not checked.\n",
    "src/b.hpp": "/// @brief Prints it.\n/// @param of Number of ranks.\n"
                 "/// (all) of them\nint b;\n",
    "tools/p": '#!/usr/bin/env python3\n@CODE@\nx = """\n# Of it.\n"""\n',
    "tools/c": "#!/bin/sh\necho ${#x} \"# a # of it\" '# of it' \\# of  # counts them\n",
}
PLANTS = [
    ({"src/a.cpp": "/// Of those that wait.\nint f();\n"}, 'src/a.cpp:1: begins with "Of"'),
    ({"src/a.hpp": "int a;  ///< of each rank\n"}, 'begins with "of"'),
    ({"src/a.h": "/* The same for\n * others. */\n"}, 'begins with "The same"'),
    ({"include/a.cuh": "// First line\n// second.\n\n// Whether it is.\n"}, "a.cuh:4"),
    ({"src/a.cpp": "/// Sizes:\n/// - Whole ones.\n/// - As before.\n"}, 'begins with "As"'),
    ({"src/a.cpp": f"// Short. {LONG}.\n"}, "26 words"),
    ({"src/a.cpp": f"/// {LONG[:60]}\n/// {LONG[60:]}\n"}, "26 words"),
    ({"src/a.cpp": f"// {HALF};\n// {HALF}.\n"}, "src/a.cpp:1: 26 words"),
    ({"src/a.cpp": f"// {HALF}:\n// {HALF}.\n"}, "src/a.cpp:1: 26 words"),
    ({"src/a.cpp": f"// One:\n//   {HALF};\n//     {HALF}\n"}, "src/a.cpp:2: 26 words"),
    ({"docs/d.md": f"Short.\n\n{HALF};\n{HALF}.\n"}, "docs/d.md:3: 26 words"),
    ({"docs/d.md": f"- {HALF}: {HALF}\n"}, "docs/d.md:1: 26 words"),
    ({"docs/d.md": f"| a | b |\n|---|---|\n| x | Short. {LONG} |\n"}, "docs/d.md:3: 26 words"),
    ({"docs/d.md": f"| {HALF}; {HALF} | {HALF} |\n"}, "docs/d.md:1: 26 words"),
    ({"docs/d.md": f"| x |\n| {HALF}. {HALF}. Five more words come here |\n"},
     "docs/d.md:2: 31 words in a cell"),
    ({"docs/errors.md": f"{HALF}; {HALF}\n"}, "docs/errors.md:1: 26 words"),
    ({"docs/errors.md": f"| x |\n| {HALF} / {LONG} |\n"}, "docs/errors.md:2: 26 words"),
    ({"docs/d.md": f"- item\n\n    {LONG}\n"}, "docs/d.md:3: 26 words"),
    ({"src/a.cpp": "// Short.\n//\n//     Of those that wait.\n"}, 'src/a.cpp:3: begins with "Of"'),
    ({"src/a.cpp": "//     Of those that wait.\n"}, 'src/a.cpp:1: begins with "Of"'),
    ({"src/a.cpp": "int a;  //     of it\n"}, 'src/a.cpp:1: begins with "of"'),
    ({"src/a.cpp": f"// So:\n//\n//     f()\n//\n// Text.\n//\n//     {LONG}\n"}, "a.cpp:7: 26"),
    ({"tools/b.py": 'async def f():\n    """As g."""\n'}, "tools/b.py:2"),
    ({".pre-commit-config.yaml": "repos:\n  # Of it.\n"}, 'config.yaml:2: begins with "Of"'),
    ({"mkdocs.yml": "x: NCCL's [\"a\"]  # of it\n"}, 'mkdocs.yml:1: begins with "of"'),
    ({".clang-tidy": f"# {LONG}\n"}, ".clang-tidy:1: 26 words"),
    ({"docs/requirements.in.md": f"promise:1 One.\n  open: {HALF}; {HALF}\n"}, "in.md:2: 26 words"),
    ({"tools/b.py": '"""What it prints."""\n'}, 'begins with "What"'),
    ({"tools/b.py": 'def f():\n    """As g."""\n'}, "tools/b.py:2"),
    ({"tools/b.py": "x = 1  # who asks\n"}, 'begins with "who"'),
    ({"test/run": f"#!/bin/sh\n# {LONG}\n"}, "test/run:2"),
    ({"docs/d.md": f"# Title\n\nShort.\n\n- item\n- {LONG}\n"}, "docs/d.md:6: 26 words"),
    ({"README.md": f"One.\n{LONG[:60]}\n{LONG[60:]}\n"}, "README.md:1: 26 words"),
    ({"cmake/x.cmake": "# Of it.\n"}, 'begins with "Of"'),
    ({"src/a.hpp": "/// \\brief Of those that wait.\n"}, 'begins with "Of"'),
    ({"src/a.hpp": "/// @brief What it does.\n"}, 'begins with "What"'),
    ({"src/a.hpp": "/// @param[in] rank Whether it waits.\n"}, 'begins with "Whether"'),
    ({"src/a.hpp": "/// (of each rank)\nint a;\n"}, 'begins with "of"'),
    ({"src/a.hpp": "int a;  ///< @brief (\"as` b\n"}, 'begins with "as"'),
    ({"cmake/x.cmake": "set(a 1)\nset(b \"#\")  # what one takes\n"},
     'x.cmake:2: begins with "what"'),
    ({"test/CMakeLists.txt": "# Runs alone.\nf(x)  # of it\n"},
     'CMakeLists.txt:2: begins with "of"'),
    ({"test/run.sh": "echo '#'  # of the current step\n"}, 'run.sh:1: begins with "of"'),
    ({"CMakeLists.txt": "f(x)  # of it\n"}, 'CMakeLists.txt:1: begins with "of"'),
    ({"cmake/x.cmake.in": "# Of it.\n"}, "x.cmake.in:1"),
    ({"docs/plots/p.py": "# Of it.\n"}, "docs/plots/p.py:1"),
    ({"docs/notes/n.py": "x = 1  # of it\n"}, "docs/notes/n.py:1"),
    ({"tools/t": '#!/usr/bin/env python3\n@CODE@\ndef f():\n    """As g."""\n'}, "tools/t:4"),
]

if __name__ == "__main__":
    lint.main("comments and pages", check, CLEAN, PLANTS)
