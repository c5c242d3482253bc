#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Plants false comments in a copy of the tree, for the judgement that comments.md describes:

    plant_comments.py COPY LIST SEED PATH...     copies the tree to COPY without its history, and
                                                 exchanges a word or number, or leaves out a "not",
                                                 in comments below PATHs
    plant_comments.py --score LIST FINDINGS      counts which planted comments were found

Writes what was planted to LIST, which must lie outside COPY. FINDINGS is what a reader wrote: lines
that begin with FILE:LINE. A planted comment is found if LINE is one of its lines. Exits with 1 if
fewer comments can be planted than asked for, or fewer than nine of ten were found."""
import json
import os
import pathlib
import random
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
from check_comments import NO_PROSE, comments_of, lint  # noqa: E402
from compare_tokens import difference  # noqa: E402

PAIRS = """before/after, at most/at least, first/last, acquire/release, acquires/releases,
smaller/larger, shorter/longer, fewer/more, sender/receiver, source/destination, reads/writes,
device/host, GPU/CPU, GPUs/CPUs, never/always, true/false, local/remote, all/some, both/neither,
requester/responder, input/output, send/receive, sent/received, sends/receives, bytes/elements,
ms/us, lowest/highest, oldest/newest, earlier/later, older/newer, ascending/descending,
success/failure, succeeds/fails, two/three, load/store, loads/stores, all ranks/rank 0,
every rank/rank 0, each rank/rank 0, aligned/unaligned, Collective/Local, caller/callee,
begins/ends, next/previous, with/without, present/missing, waits for/does not wait for,
accepts/refuses, accepted/refused, only/also, empty/full, above/below, known/unknown,
needs/does not need, prints/hides, skips/runs, process/thread"""
UNITS = (r"(?:ms|us|s|KiB|MiB|GiB|GB|B|bytes|bits|ranks|CTAs|threads|GPUs|words|lines|entries"
         r"|times)\b")
NUMBER = re.compile(rf"(?<![\w.#-])[1-9]\d{{0,3}}(?= {UNITS})")
NEGATION = re.compile(r"\b(is|are|do|does|has|have|must|may|can|will|be)(?: not|(?<=can)not)(?= )")
# Matches no word that is part of a name, a path or a compound.
WORD = r"(?<![\w:.`/-]){}(?![\w(:`/-]|\.\w)"
PLANTED_PER_MISS = 10  # at most one of so many may be missed


def exchanges():
    """Returns pairs (pattern, function that returns what stands for a match)."""
    rules = [(NUMBER, lambda found: str(2 * int(found[0]))), (NEGATION, lambda found: found[1])]
    for pair in PAIRS.replace("\n", " ").split(", "):
        for one, other in (pair.split("/"), reversed(pair.split("/"))):
            rules.append((re.compile(WORD.format(one)), lambda found, other=other: other))
            capital = other[0].upper() + other[1:]
            rules.append((re.compile(WORD.format(one[0].upper() + one[1:])),
                          lambda found, capital=capital: capital))
    return rules


def candidates(name, text, comment, rules):
    """Returns texts of a file in which one claim of a comment is another: (line, whole text)."""
    lines, found = text.split("\n"), []
    for number, body in enumerate(comment.lines, comment.line):
        line = lines[number - 1]
        begin = line.rfind(body.strip())
        if begin < 0 or not body.strip() or NO_PROSE.search(body):
            continue
        for pattern, other in rules:
            for match in pattern.finditer(line, begin):
                changed = line[:match.start()] + other(match) + line[match.end():]
                planted = "\n".join([*lines[:number - 1], changed, *lines[number:]])
                if len(changed) <= 100 and difference(name, text, planted) is None:
                    found.append((number, planted))
    return found


def copy_tree(root, copy):
    for path in lint.tracked_files(root):
        target = copy / path.relative_to(root)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(path.read_bytes())
        target.chmod(path.stat().st_mode)


def plant(root, copy, paths, seed, count):
    """Copies the tree, and changes up to `count` comments of the copy. Returns (number of comments,
    records of those that were changed)."""
    copy_tree(root, copy)
    comments = []
    for path in lint.tracked_files(root):
        name = path.relative_to(root)
        if any(name.is_relative_to(one) for one in paths):
            comments += [(name.as_posix(), comment) for comment in comments_of(path)]
    records, rules, dice = [], exchanges(), random.Random(seed)
    for name, comment in dice.sample(comments, len(comments)):
        text = (copy / name).read_text(encoding="utf-8")
        possible = candidates(name, text, comment, rules) if len(records) < count else []
        if possible:
            line, planted = dice.choice(possible)
            (copy / name).write_text(planted, encoding="utf-8")
            records.append({"file": name, "first": comment.line,
                            "last": comment.line + len(comment.lines) - 1,
                            "old": text.split("\n")[line - 1].strip(),
                            "new": planted.split("\n")[line - 1].strip()})
    # Sets all times alike, so that they do not tell which files have changed.
    for path in copy.rglob("*"):
        os.utime(path, (0, 0))
    return len(comments), sorted(records, key=lambda record: (record["file"], record["first"]))


def missed(records, findings):
    """Returns the records that none of the lines FILE:LINE names."""
    found = [(match[1], int(match[2]))
             for match in re.finditer(r"^([^\s:]+):(\d+)", findings, re.M)]
    return [record for record in records
            if not any(name == record["file"] and record["first"] <= line <= record["last"]
                       for name, line in found)]


def score(records, findings):
    left = missed(records, findings)
    for record in left:
        print(f"{record['file']}:{record['first']}: not found: {record['new']}")
    print(f"{len(records) - len(left)} of {len(records)} found")
    sys.exit(1 if len(left) * PLANTED_PER_MISS > len(records) else 0)


def self_test():
    files = {f"src/{name}": text for name, text in (
        ("a.cpp", "// Returns after the first.\nint a;\n\n/// Waits 64 ms.\nint after();\n"),
        ("b.py", "x = 'after'  # is not kept\n"), ("c.cmake", "# SPDX- after\nset(before after)\n"),
        ("e", "#!/usr/bin/env python3\n# Prints two.\n@A@\n"),
        ("d.h", "/* `before` is\n * never true. */\nint b;\n"))}
    with tempfile.TemporaryDirectory() as folder:
        root, copy = pathlib.Path(folder, "root"), pathlib.Path(folder, "copy")
        lint.write_tree(root, {**files, "other/e.py": "# after\n"})
        read, records = plant(root, copy, ["src"], 1, 20)
        wrong = [] if (read, len(records)) == (6, 5) else [f"{read} read, {records}"]
        for name, text in files.items():
            planted = (copy / name).read_text()
            lines = [(one.strip(), other.strip()) for one, other
                     in zip(text.split("\n"), planted.split("\n"), strict=True) if one != other]
            listed = [(one["old"], one["new"]) for one in records if one["file"] == name]
            if sorted(lines) != sorted(listed) or difference(name, text, planted):
                wrong.append(f"{name}: {lines} changed, {listed} listed")
        findings = "src/a.cpp:1: x\nsrc/a.cpp:4\nsrc/d.h:2 y\nsrc/e:2\nsrc/b.py:2\n"
        if len(missed(records, findings)) != 1:
            wrong.append("the score is wrong")
    print(*wrong, f"planted comments: self-test: {'failed' if wrong else 'ok'}", sep="\n")
    sys.exit(1 if wrong else 0)


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that it plants what it lists")
    parser.add_argument("--score", action="store_true", help="count what a reader found")
    parser.add_argument("--count", type=int, default=20, help="of comments to plant (20)")
    parser.add_argument("words", nargs="*", metavar="ARGUMENT", help="see above")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    words = arguments.words
    if arguments.score:
        if len(words) != 2:
            parser.error("--score takes LIST and FINDINGS")
        try:
            listed, findings = (pathlib.Path(word).read_text() for word in words)
        except OSError as error:
            parser.error(str(error))
        score(json.loads(listed), findings)
    if len(words) < 4 or not words[2].isdigit():
        parser.error("COPY, LIST, SEED and a PATH are needed")
    copy, listed = (pathlib.Path(word).resolve() for word in words[:2])
    if copy.exists() or copy.is_relative_to(lint.ROOT) or listed.is_relative_to(copy):
        parser.error("COPY must be new and outside the tree, LIST outside COPY")
    read, records = plant(lint.ROOT, copy, words[3:], int(words[2]), arguments.count)
    listed.write_text(json.dumps(records, indent=1) + "\n")
    print(f"{len(records)} of {read} comments planted, seed {words[2]}")
    sys.exit(0 if len(records) == arguments.count else 1)


if __name__ == "__main__":
    main()
