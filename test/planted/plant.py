#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Plants all defects of defects.py in a copy of the tree. A defect is active only if the
environment variable ORIEL_TEST_PLANTED holds its number. Reports texts that do not stand exactly
once in the tree, and exits with 1 then.

Then build the copy with -DCMAKE_CXX_FLAGS="-include PATH/planted.hpp" and run ctest for each
number.
"""
import pathlib
import re
import sys

from defects import DEFECTS

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools" / "lib"))
import lint  # noqa: E402


def plant(root):
    """Returns ({path: text with all defects}, texts that do not stand exactly once)."""
    files = [path for folder in ("src", "include") for path in (root / folder).rglob("*")
             if path.suffix in (".hpp", ".cpp", ".cuh")]
    texts = {path: path.read_text() for path in files}
    missing = []
    for number, (module, old, new) in enumerate(DEFECTS, 1):
        pattern = re.compile(r"\s+".join(re.escape(word) for word in old.split()))
        hits = [path for path in files for _ in pattern.findall(texts[path])]
        if len(hits) != 1:
            missing.append(f"{number} ({module}) stands {len(hits)} times: {old[:80]}")
            continue
        planted = new.replace("PLANTED", f"PLANTED_({number})")
        texts[hits[0]] = pattern.sub(lambda _: planted, texts[hits[0]])
    return texts, missing


def check(root):
    return plant(root)[1]


CLEAN = {f"src/a/d{number}.cpp": old.replace(" ", "\n  ")
         for number, (_, old, _) in enumerate(DEFECTS, 1)}
PLANTS = [
    ({**CLEAN, "src/a/d1.cpp": "int x;\n"}, "1 (base) stands 0 times"),
    ({**CLEAN, "include/again.hpp": CLEAN["src/a/d40.cpp"]}, "40 (comm) stands 2 times"),
]


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing")
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    parser.add_argument("tree", nargs="?", type=pathlib.Path,
                        help="a copy of the repository; it is changed unless --check is given")
    arguments = parser.parse_args()
    if arguments.self_test:
        missing = lint.self_test(check, CLEAN, PLANTS)
        summary = f"planted defects: self-test with {len(PLANTS)} planted violations: "
        summary += f"{len(missing)} found" if missing else "ok"
    elif arguments.tree is None:
        parser.error("which tree?")
    else:
        texts, missing = plant(arguments.tree)
        done = "can be planted" if arguments.check else "planted"
        summary = f"{len(DEFECTS) - len(missing)} of {len(DEFECTS)} {done}"
        for path, text in () if arguments.check else texts.items():
            path.write_text(text)
    print(*missing, summary, sep="\n")
    sys.exit(1 if missing else 0)


if __name__ == "__main__":
    main()
