#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws titles of the tests of a module at random, for the questions that newcomers.md describes:

    draw_titles.py [MODULE [SEED [COUNT]]]     MODULE: a folder of test, such as topo; -: drawn

The seed decides the titles, and a drawn module. Without a seed the script draws one at random and
prints it. The same arguments and tests give the same output."""
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
DEFAULT_COUNT = 12
DRAWN = "-"
MODULES = ("base", "boot", "comm", "device", "kernels", "net", "preload", "shadow", "topo",
           "window")


def titles_of(text):
    """Returns the titles of the Catch2 cases of a file."""
    code = lint.NOT_CODE.sub(lambda found: " " if found[0].startswith("/") else found[0], text)
    return ["".join(re.findall(LITERAL, found[1] or found[3])) for found in CASE.finditer(code)]


def titles_under(module):
    """Returns the titles of a module's tests, sorted, each once."""
    folder = lint.ROOT / "test" / module
    files = [path for path in lint.sources(lint.ROOT) if path.is_relative_to(folder)]
    return sorted({title for path in files for title in titles_of(path.read_text())})


def module_of(name, seed):
    """Returns `name`, or the module that the seed draws if `name` is DRAWN."""
    return random.Random(seed).choice(MODULES) if name == DRAWN else name


def draw(module, seed, count):
    """Returns `count` titles of the module that the seed draws."""
    return random.Random(seed).sample(titles_under(module), count)


def self_test():
    text = ('TEST_CASE("a is b", "[req:1.1]") {}\n// TEST_CASE("comment")\n'
            'TEST_CASE(\n    "two "\n    "parts", "[x]") { f("no title"); }\n'
            'TEMPLATE_TEST_CASE("for types", "", int) {}\n'
            'TEST_CASE_METHOD(A<B>, "of a class") {}\n')
    found = titles_of(text)
    right = found == ["a is b", "two parts", "for types", "of a class"]
    if not right:
        print(f"titles of tests: self-test: found {found}")
    draws = [module_of(DRAWN, seed) for seed in range(200)]
    if draws != [module_of(DRAWN, seed) for seed in range(200)] or set(draws) != set(MODULES):
        print("titles of tests: self-test: seeds do not decide the module, or leave one out")
        right = False
    short = [module for module in MODULES if len(titles_under(module)) < DEFAULT_COUNT]
    if short:
        print(f"titles of tests: self-test: less than {DEFAULT_COUNT} titles in {', '.join(short)}")
        right = False
    first, again = (draw(module_of(DRAWN, 5), 5, 3) for _ in range(2))
    if first != again:
        print("titles of tests: self-test: one seed draws different titles")
        right = False
    if right:
        print("titles of tests: self-test: ok")
    sys.exit(0 if right else 1)


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true",
                        help="see that titles are found, and that a seed repeats its draw")
    parser.add_argument("module", nargs="?", default=DRAWN,
                        help="a folder of test, or - to draw it from the seed (-)")
    parser.add_argument("seed", nargs="?", type=int, help="of the draw (random)")
    parser.add_argument("count", nargs="?", type=int, default=DEFAULT_COUNT,
                        help=f"of titles ({DEFAULT_COUNT})")
    arguments = parser.parse_args()
    if arguments.self_test:
        self_test()
    seed = random.randrange(LARGEST_SEED) if arguments.seed is None else arguments.seed
    module = module_of(arguments.module, seed)
    number = len(titles_under(module))
    if not 0 < arguments.count <= number:
        parser.error(f"test/{module} has {number} titles, not {arguments.count}")
    print(f"{arguments.count} of {number} titles of {module}, seed {seed}")
    print(*draw(module, seed, arguments.count), sep="\n")


if __name__ == "__main__":
    main()
