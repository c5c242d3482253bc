#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws titles of the tests of a module at random, for the questions that newcomers.md describes.

    draw_titles.py [MODULE [SEED [COUNT]]]     MODULE: a folder of test, such as topo

Prints the seed. Without a module or a seed, draws it too. With the same module, seed and tests,
draws the same titles."""
import pathlib
import random
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "lib"))
import lint  # noqa: E402

LITERAL = r'"((?:[^"\\]|\\.)*)"'
CASE = re.compile(rf"\b(?:TEMPLATE_)?TEST_CASE(?:_SIG)?\s*\(\s*((?:{LITERAL}\s*)+)"
                  rf"|\bTEST_CASE_METHOD\s*\(\s*[\w:<>]+,\s*((?:{LITERAL}\s*)+)")
LARGEST_SEED = 10 ** 6
MODULES = ("base", "boot", "comm", "device", "kernels", "net", "topo", "window")


def titles_of(text):
    """Returns the titles of the Catch2 cases of a file."""
    code = lint.NOT_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], text)
    return ["".join(re.findall(LITERAL, found[1] or found[3])) for found in CASE.finditer(code)]


def self_test():
    text = ('TEST_CASE("a is b", "[req:1.1]") {}\n// TEST_CASE("comment")\n'
            'TEST_CASE(\n    "two "\n    "parts", "[x]") { f("no title"); }\n'
            'TEMPLATE_TEST_CASE("for types", "", int) {}\n'
            'TEST_CASE_METHOD(A<B>, "of a class") {}\n')
    found = titles_of(text)
    right = found == ["a is b", "two parts", "for types", "of a class"]
    print(f"titles of tests: self-test: {'ok' if right else f'found {found}'}")
    sys.exit(0 if right else 1)


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that titles are found")
    parser.add_argument("module", nargs="?", help="a folder of test")
    parser.add_argument("seed", nargs="?", type=int, help="of the draw")
    parser.add_argument("count", nargs="?", type=int, default=12, help="of titles (12)")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    if arguments.module is None:
        arguments.module = random.choice(MODULES)
    folder = lint.ROOT / "test" / arguments.module
    files = [path for path in lint.sources(lint.ROOT) if path.is_relative_to(folder)]
    titles = sorted({title for path in files for title in titles_of(path.read_text())})
    if not 0 < arguments.count <= len(titles):
        parser.error(f"test/{arguments.module} has {len(titles)} titles, not {arguments.count}")
    seed = random.randrange(LARGEST_SEED) if arguments.seed is None else arguments.seed
    print(f"{arguments.count} of {len(titles)} titles of {arguments.module}, seed {seed}")
    print(*random.Random(seed).sample(titles, arguments.count), sep="\n")


if __name__ == "__main__":
    main()
