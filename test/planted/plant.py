#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Plants all defects of defects.py in a copy of the tree. A defect is active only if the
environment variable ORIEL_TEST_PLANTED holds its number. Reports texts that do not stand exactly
once in the tree.

Then build the copy with -DCMAKE_CXX_FLAGS="-include PATH/planted.hpp" and run ctest for each
number.
"""
import argparse
import pathlib
import re

from defects import DEFECTS

parser = argparse.ArgumentParser(description=__doc__,
                                 formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("tree", type=pathlib.Path, help="a copy of the repository; it is changed")
root = parser.parse_args().tree
files = [path for folder in ("src", "include") for path in (root / folder).rglob("*")
         if path.suffix in (".hpp", ".cpp", ".cuh")]
texts = {path: path.read_text() for path in files}
missing = 0
for number, (module, old, new) in enumerate(DEFECTS, 1):
    pattern = re.compile(r"\s+".join(re.escape(word) for word in old.split()))
    hits = [path for path in files for _ in pattern.findall(texts[path])]
    if len(hits) != 1:
        print(f"{number} ({module}) stands {len(hits)} times: {old.splitlines()[0][:80]}")
        missing += 1
        continue
    planted = new.replace("PLANTED", f"PLANTED_({number})")
    texts[hits[0]] = pattern.sub(lambda _: planted, texts[hits[0]])
for path, text in texts.items():
    path.write_text(text)
print(f"{len(DEFECTS) - missing} of {len(DEFECTS)} planted")
