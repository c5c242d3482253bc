#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/requirements.md is up to date with docs/requirements.in.md and the tags of
tests. Each tag must have a sentence in docs/requirements.in.md. Each requirement must have one
sentence, a code of its own without a gap before it, and a tagged test or a "shown by". Pages and
comments must cite no commit and no issue of ours. Links of pages must lead to files; sources that
pages name, and pages that comments name, must exist. A page must name each raw file of
docs/performance. To write the page again:

    tools/check_requirements.py --write
"""
import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

SENTENCES = "docs/requirements.in.md"
PAGE = "docs/requirements.md"
RAW = "docs/performance"
CODE = r"(?:\d+\.\d+|promise:\d+|[ABDFHQ]\d+)"
ENTRY = re.compile(rf"({CODE}) (.+)")
TAGS = re.compile(r'"((?:\[[^\]\s"]+\])+)"|^\s*(?:#|//|///) *((?:\[[^\]\s"]+\])+)', re.M)
# Tags that only select tests. A test with the tag "." is left out of a plain run.
PLAIN = {".", "figures", "loops", "python", "reduce", "root", "scalar", "vendor"}
TAGGED_SUFFIXES = lint.SOURCE_SUFFIXES | {".py", ".sh", ".cmake", ".txt", ""}
# Matches digits alone only after a word that cites, because most of them are numbers.
HASH = re.compile(r"(?:(?<![\w./:,-])(?=#?[a-f]*\d)(?=#?\d*[a-f])#?"
                  r"|(?i:\b(?:commit|revision|since|as of)\b):? ?#?(?=[a-f]*\d))"
                  r"[0-9a-f]{7,40}(?![\w-]|[.:]\w)")
# Matches no "#1": numbers of one digit count calls and cards.
ISSUE = re.compile(r"\bissues?[-_ ]?#?\d+|(?<![\w&/#])#\d{2,5}\b", re.I)
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")
# Matches the last part of a source's path. A name that begins with "x_" or "_" is a pattern.
SOURCE = re.compile(r"(?<![\w*-])(?!x_|_)(\w+\.(?:hpp|cpp|cuh|cu))\b")
SENTENCE_END = re.compile(r"[.!?](?=\s|$)")
MOST_WORDS = 25
PAGE_NAME = re.compile(r"\bdocs/[\w/.-]+\.md\b")
SCRIPT_COMMENT = re.compile(r"(?:^|\s)#(.*)")
SCRIPT_SUFFIXES = {".py", ".sh", ".cmake", ".txt", ""}


class Entry:
    def __init__(self, sentence):
        self.parts = {"sentence": sentence, "shown by": "", "open": ""}
        self.last = "sentence"

    def add(self, line):
        word = next((part for part in self.parts if line.startswith(part + ": ")), None)
        if word:
            self.last = word
            line = line[len(word) + 2:]
        self.parts[self.last] = f"{self.parts[self.last]} {line}".strip()


def read_sentences(text):
    """Returns (lines of the page, {code: Entry}). A tuple (code,) stands for an Entry's lines."""
    lines, entries, current = [], {}, None
    for line in text.splitlines():
        found = ENTRY.fullmatch(line)
        if found:
            current = entries[found[1]] = Entry(found[2])
            lines.append((found[1],))
        elif line.startswith("  ") and current:
            current.add(line.strip())
        else:
            current = None
            lines.append(line)
    return lines, entries


def sentence_findings(lines, entries):
    """Finds codes that stand twice, gaps in numbers, and rows that are not one short sentence."""
    codes = [line[0] for line in lines if isinstance(line, tuple)]
    findings = [f"{SENTENCES}: the code {code} stands {count} times"
                for code, count in collections.Counter(codes).items() if count > 1]
    for code in codes:
        part, _, number = code.rpartition(".")
        if part and int(number) > 1 and f"{part}.{int(number) - 1}" not in entries:
            findings.append(f"{SENTENCES}: there is no row {part}.{int(number) - 1} before {code}")
    for code, entry in entries.items():
        sentence = entry.parts["sentence"]
        ends = [found.end() for found in SENTENCE_END.finditer(sentence)]
        if ends != [len(sentence)]:
            findings.append(f"{SENTENCES}: {code} is not one sentence")
        if (words := len(sentence.split())) > MOST_WORDS:
            findings.append(f"{SENTENCES}: {code} has {words} words, more than {MOST_WORDS}")
    return findings


def read_tags(root):
    """Returns {code: files of tests}, and (file, line, tag) of each tag that is not a code."""
    files, strange = {}, []
    for path in lint.tracked_files(root):
        name = path.relative_to(root).as_posix()
        if not name.startswith(("test/", "benchmarks/")) or path.suffix not in TAGGED_SUFFIXES:
            continue
        text = path.read_text(encoding="utf-8", errors="replace")
        for found in TAGS.finditer(text):
            for tag in re.findall(r"\[([^\]]+)\]", found[1] or found[2]):
                code = tag.removeprefix("req:")
                if re.fullmatch(CODE, code) and (tag != code) == code[0].isdigit():
                    files.setdefault(code, set()).add(name)
                elif tag not in PLAIN and found[1] is not None:
                    strange.append((name, text.count("\n", 0, found.start()) + 1, tag))
    return files, strange


def shown(files):
    """Returns the names of tests as Markdown: one sentence for each folder."""
    folders = {}
    for name in sorted(files):
        path = pathlib.PurePosixPath(name)
        stem = path.stem.removesuffix("_test")
        folder = path.parent.as_posix().removeprefix("test/")
        folders.setdefault(folder, set()).add(stem)
    return ". ".join(f"`{folder}`: " + ", ".join(sorted(names))
                     for folder, names in sorted(folders.items()))


def make_page(lines, entries, tags):
    page, table = [], False
    for line in lines:
        if not isinstance(line, tuple):
            table = False
            page.append(line)
            continue
        if not table:
            page += ["| code | requirement | shown by | open |", "|---|---|---|---|"]
            table = True
        code, = line
        parts = entries[code].parts
        by = ". ".join(filter(None, [parts["shown by"], shown(tags.get(code, ()))]))
        page.append(f"| {code} | {parts['sentence']} | {by} | {parts['open']} |")
    first_part = next(i for i, line in enumerate(page) if line.startswith("## "))
    page[first_part:first_part] = [
        f"This page is written by `tools/check_requirements.py --write` from "
        f"`{pathlib.PurePosixPath(SENTENCES).name}`", "and the tags of tests; do not edit it.", ""]
    return "\n".join(page) + "\n"


def requirement_findings(root):
    source = root / SENTENCES
    if not source.exists():
        return [f"{SENTENCES}: missing"]
    lines, entries = read_sentences(source.read_text(encoding="utf-8"))
    tags, strange = read_tags(root)
    findings = [f"{name}:{line}: the tag [{tag}] is no code of a requirement"
                for name, line, tag in strange]
    findings += sentence_findings(lines, entries)
    findings += [f"{SENTENCES}: no sentence for {code}, which {min(files)} is tagged with"
                 for code, files in sorted(tags.items()) if code not in entries]
    findings += [f"{SENTENCES}: nothing shows {code}: tag a test, or say 'shown by: ...'"
                 for code, entry in entries.items()
                 if code not in tags and not entry.parts["shown by"]]
    page = root / PAGE
    if not page.exists() or page.read_text(encoding="utf-8") != make_page(lines, entries, tags):
        findings.append(f"{PAGE}: stale; tools/check_requirements.py --write writes it anew")
    return findings


def prose_of(path):
    """Yields (line number, text) of the prose: the lines of a page, or the comments of a source."""
    text = path.read_text(encoding="utf-8", errors="replace")
    if path.suffix in lint.SOURCE_SUFFIXES:
        for found in lint.NOT_CODE.finditer(text):
            if found[0].startswith("/"):
                yield from enumerate(found[0].splitlines(), text.count("\n", 0, found.start()) + 1)
        return
    for number, line in enumerate(text.splitlines(), 1):
        if path.suffix == ".md":
            yield number, line
        elif path.suffix in SCRIPT_SUFFIXES and (found := SCRIPT_COMMENT.search(line)):
            yield number, found[1]


def prose_findings(root):
    findings, files = [], lint.tracked_files(root)
    sources = {path.name for path in files}
    for path in files:
        name = path.relative_to(root).as_posix()
        for number, text in prose_of(path):
            for what, pattern in (("commit", HASH), ("issue", ISSUE)):
                if found := pattern.search(text):
                    findings.append(f"{name}:{number}: cites the {what} '{found[0]}'")
            if path.suffix in lint.SOURCE_SUFFIXES:
                findings += [f"{name}:{number}: there is no page {page}"
                             for page in PAGE_NAME.findall(text) if not (root / page).exists()]
            if path.suffix == ".md":
                findings += [f"{name}:{number}: the link {link} leads nowhere"
                             for link in LINK.findall(text)
                             if "://" not in link and not (path.parent / link).exists()]
                findings += [f"{name}:{number}: there is no source {source}"
                             for quoted in re.findall(r"`([^`]+)`", text)
                             for source in SOURCE.findall(quoted) if source not in sources]
    return findings


def raw_file_findings(root):
    """Finds files of docs/performance that no page names."""
    files = lint.tracked_files(root)
    pages = "\n".join(path.read_text(encoding="utf-8") for path in files if path.suffix == ".md")
    return [f"{RAW}/{path.name}: no page names this file" for path in files
            if path.parent == root / RAW
            and not re.search(rf"(?<![\w-]){re.escape(path.name)}", pages)]


def check(root):
    return requirement_findings(root) + prose_findings(root) + raw_file_findings(root)


def write(root):
    lines, entries = read_sentences((root / SENTENCES).read_text(encoding="utf-8"))
    (root / PAGE).write_text(make_page(lines, entries, read_tags(root)[0]), encoding="utf-8")


IN = ("# Title\n\nText.\n\n## Part\n\n1.1 First.\n  open: more\n  work\nF7 Second.\n"
      "  shown by: a page\n")
CLEAN = {SENTENCES: IN,
         "test/a/x_test.cpp": 'TEST_CASE("t", "[req:1.1][F7]")\n// 0x0123abc\nf("// 0123abc", '
         '0123abc);  // 1b:00.0, 2024-a1b2c3d4\n',
         "docs/performance/a.json": "", "docs/a.md": "See performance/a.json.\n",
         "test/a/y.py": "# [req:1.1]\nx = [1]\n",
         "README.md": "[page](docs/requirements.md) deadbeef 1048576 call #1 `a/x_test.cpp` "
                      "`x_y.cpp`\n",
         PAGE: "# Title\n\nText.\n\nThis page is written by `tools/check_requirements.py --write` "
               "from `requirements.in.md`\nand the tags of tests; do not edit it.\n\n## Part\n\n"
               "| code | requirement | shown by | open |\n|---|---|---|---|\n"
               "| 1.1 | First. | `a`: x, y | more work |\n| F7 | Second. | a page. `a`: x |  |\n"}
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"test/a/z_test.cpp": '"[req:1.2]"'}, "no sentence for 1.2"),
    ({"test/a/z.py": "# [F9]\n"}, "no sentence for F9"),
    ({"test/a/z_test.cpp": '"[req:1.1][slow]"'}, "z_test.cpp:1: the tag [slow]"),
    ({"test/a/z_test.cpp": '"[1.1]"'}, "the tag [1.1]"),
    ({"test/a/z_test.cpp": '"[req:F7]"'}, "the tag [req:F7]"),
    ({SENTENCES: IN + "F8 Third.\n"}, "nothing shows F8"),
    ({SENTENCES: IN.replace("First", "Fist")}, "requirements.md: stale"),
    ({"test/a/z_test.cpp": '"[req:1.1]"'}, "requirements.md: stale"),
    ({SENTENCES: IN + "1.1 Third.\n"}, "the code 1.1 stands 2 times"),
    ({SENTENCES: IN + "F7 Third.\n"}, "the code F7 stands 2 times"),
    ({SENTENCES: IN + "1.3 Third.\n"}, "there is no row 1.2 before 1.3"),
    ({SENTENCES: IN.replace("First.", "First. More.")}, "1.1 is not one sentence"),
    ({SENTENCES: IN.replace("First.", "First")}, "1.1 is not one sentence"),
    ({SENTENCES: IN.replace("First.", "word " * 25 + "more.")}, "1.1 has 26 words"),
    ({"docs/a.md": "text\nsince 0123abc it works\n"},
     "docs/a.md:2: cites the commit 'since 0123abc'"),
    ({"src/a.cpp": "int a;  // as of a1b2c3d4\n"}, "src/a.cpp:1: cites the commit"),
    ({"docs/a.md": "It works since 0123abc.\n"}, "docs/a.md:1: cites the commit 'since 0123abc'"),
    ({"src/a.cpp": "int a;  /* of old:\n  a1b2c3d4: it */\n"}, "src/a.cpp:2: cites the commit"),
    ({"tools/run": "#!/bin/sh\n# as 0123abc, and\n"}, "tools/run:2: cites the commit"),
    ({"src/a.cpp": "// commit:1234abc says why\n"}, "src/a.cpp:1: cites the commit"),
    ({"docs/a.md": "It is mended (#12ab34c).\n"}, "docs/a.md:1: cites the commit '#12ab34c'"),
    ({"docs/a.md": "It works since 1234567.\n"}, "docs/a.md:1: cites the commit"),
    ({"docs/a.md": "See Commit 12345678 for it.\n"}, "docs/a.md:1: cites the commit"),
    ({"tools/a.py": "# of issue 7\n"}, "tools/a.py:1: cites the issue"),
    ({"docs/a.md": "As issue-7 says.\n"}, "docs/a.md:1: cites the issue 'issue-7'"),
    ({"src/a.cpp": "// ISSUE16\n"}, "src/a.cpp:1: cites the issue 'ISSUE16'"),
    ({"docs/a.md": "It waits (#16).\n"}, "docs/a.md:1: cites the issue '#16'"),
    ({"docs/performance/b.txt": "1 us\n"}, "docs/performance/b.txt: no page names this file"),
    ({"docs/performance/h-a.json": "", "docs/a.md": "See h-a.json.\n"},
     "performance/a.json: no page"),
    ({"docs/a.md": "[x](b.md)\n"}, "docs/a.md:1: the link b.md"),
    ({"docs/a.md": "See `src/c/d.hpp`.\n"}, "docs/a.md:1: there is no source d.hpp"),
    ({"src/a.cpp": "int a;  // docs/b.md says why\n"}, "src/a.cpp:1: there is no page docs/b.md"))]

if __name__ == "__main__":
    lint.main("requirements", check, CLEAN, PLANTS, write)
