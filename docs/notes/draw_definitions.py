#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws definitions at random from src, include, tools and benchmarks, for the trial that
finding-a-definition.md describes.

With --check, finds descriptions of the note that have a word of the definition's or the file's
name. Exits with 1 if there are any."""
import pathlib
import random
import re
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "lib"))
import lint  # noqa: E402

NOTE = pathlib.Path(__file__).resolve().parent / "finding-a-definition.md"
ROW = re.compile(r"^\| `([^`]+)`, `([^`]+)` \| (.*) \|$", re.M)
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|\d+")
# Matches what may stand before a type's name.
BEFORE_NAME = r"(?:(?:alignas\([^)]*\)|ORIEL_API|\[\[\w+\]\]) )*"
TYPE = re.compile(rf"(?:class|struct|enum class) {BEFORE_NAME}(\w+)[^;]*\{{")
NO_FUNCTION = (r"(?!namespace|class|struct|enum|using|static_assert|TEST|extern|template|return"
               r"|union|alignas)")
FUNCTION = re.compile(rf"^{NO_FUNCTION}(?:[A-Za-z_][\w:<>,&*\s\[\]]*?[\s&*>\]])?"
                      r"(?!ORIEL_|__)((?:\w+::)*~?\w+)\(")
ATTRIBUTE = re.compile(r"__\w+__\s*\((?:[^()]|\([^()]*\))*\)\s*")
PYTHON = re.compile(r"(?:def|class) (\w+)")


def definitions_of(path):
    """Yields (line, name) of each type and function defined at a file's outermost level."""
    lines = pathlib.Path(path).read_text().split("\n")
    for number, line in enumerate(lines, 1):
        line = ATTRIBUTE.sub("", line)
        if path.endswith(".py"):
            found = PYTHON.match(line)
        else:
            found = TYPE.match(line)
            if not found and (call := FUNCTION.match(line)):
                head = next((end for end in lines[number - 1:number + 5]
                             if re.search(r"[{;]\s*$", end)), "")
                found = call if head.rstrip().endswith("{") else None
        if found:
            yield number, found.group(1)


def words_of(text):
    """Returns the words of a name or a description, without the s of a plural."""
    return {word.lower().removesuffix("s") for word in WORD.findall(text)}


def shared_words(note):
    """Returns a finding for each description that shares words with its names."""
    findings = []
    for name, path, description in ROW.findall(note):
        names = words_of(name) | words_of(pathlib.PurePosixPath(path).stem)
        if shared := sorted(names & words_of(description)):
            findings.append(f"{name}: the description has words of the names: {', '.join(shared)}")
    return findings


def draw(parser, seed, count):
    names = subprocess.run(["git", "ls-files", "src", "include", "tools", "benchmarks"], check=True,
                           capture_output=True, text=True).stdout.split()
    files = [name for name in names if re.search(r"\.(cpp|hpp|cu|cuh|py|c|h)$", name)]
    drawn = [(path, *place) for path in files for place in definitions_of(path)]
    if not 0 < count <= len(drawn):
        parser.error(f"there are {len(drawn)} definitions, not {count}")
    print(f"{count} of {len(drawn)} definitions in {len(files)} files, seed {seed}")
    for path, line, name in random.Random(seed).sample(drawn, count):
        print(f"{path}:{line} {name}")


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="check the note, draw nothing")
    parser.add_argument("seed", nargs="?", type=int, help="of the draw")
    parser.add_argument("count", nargs="?", type=int, default=10, help="of definitions (10)")
    arguments = parser.parse_args()
    if arguments.check:
        planted = "| `CopyEngine::step`, `net/steps.cpp` | steps of the copying engines |"
        if shared_words(planted) != [
                "CopyEngine::step: the description has words of the names: engine, step"]:
            sys.exit("finding-a-definition.md: a planted description with words of names is not "
                     "found")
        note = NOTE.read_text(encoding="utf-8")
        findings = shared_words(note) or ([] if ROW.search(note) else ["there are no descriptions"])
        print("\n".join(findings) or "finding-a-definition.md: ok")
        sys.exit(1 if findings else 0)
    if arguments.seed is None:
        parser.error("which seed?")
    draw(parser, arguments.seed, arguments.count)


if __name__ == "__main__":
    main()
