#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""clang-tidy 14 finds nothing in the C++ files of src/ and tools/ that a build folder compiles.

check_tidy.py BUILD_DIR. A file that passed is not looked at again until it, a header of ours, its
flags or .clang-tidy changes; what passed is noted under BUILD_DIR/tidy."""
import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

CHECKED = ("src", "tools")
# The compile commands are gcc's, whose warning options clang need not know.
EXTRA_ARGUMENTS = ("--extra-arg=-Wno-unknown-warning-option",)


def clang_tidy():
    for name in ("clang-tidy-14", "clang-tidy"):
        path = shutil.which(name)
        if path and " 14." in subprocess.run([path, "--version"], capture_output=True,
                                             text=True).stdout:
            return path
    sys.exit("tidy: there is no clang-tidy 14")


def digest_of_headers(root):
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes())
    for path in lint.sources(root):
        if path.suffix in (".h", ".hpp"):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.digest()


def compiled_files(root, build):
    """(path, digest of what its verdict depends on) for each file that the build compiles."""
    headers = digest_of_headers(root)
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        inside = path.is_relative_to(root) and path.relative_to(root).parts[0] in CHECKED
        if inside and path.suffix == ".cpp" and path.exists():
            key = hashlib.sha256(headers + entry["command"].encode() + path.read_bytes())
            yield path, key.hexdigest()


def look_at(job):
    program, build, path, passed = job
    if passed.exists():
        return [], 0.0
    begin = time.monotonic()
    done = subprocess.run([program, "--quiet", *EXTRA_ARGUMENTS, "-p", str(build), str(path)],
                          capture_output=True, text=True)
    findings = sorted(set(re.findall(r"^.*(?:warning|error): .*$", done.stdout, re.M)))
    if done.returncode != 0 and not findings:
        findings = [f"{path}: clang-tidy failed: {done.stderr.strip()[-300:]}"]
    if not findings:
        passed.touch()
    for finding in findings:  # at once: all files together take minutes
        print(finding, flush=True)
    return findings, time.monotonic() - begin


def check(root, build):
    program = clang_tidy()
    notes = build / "tidy"
    notes.mkdir(exist_ok=True)
    jobs = [(program, build, path, notes / key) for path, key in compiled_files(root, build)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(look_at, jobs))
    looked = sum(1 for _, seconds in results if seconds > 0)
    print(f"tidy: {looked} of {len(jobs)} files looked at, the others have passed before")
    return sorted({finding for findings, _ in results for finding in findings})


CLEAN = "int twice(int x) { return 2 * x; }\n"
PLANTS = [
    ("#include <string>\nint f(std::string text) { return static_cast<int>(text.size()); }\n",
     "performance-unnecessary-value-param"),
    ("#include <string>\n#include <utility>\nstd::size_t f(std::string a) {\n"
     "  std::string b = std::move(a);\n  return a.size() + b.size();\n}\n",
     "bugprone-use-after-move"),
    ("class Counter {\n public:\n  explicit Counter(int count) : count_(count) {}\n\n private:\n"
     "  int count_;\n};\n", "clang-diagnostic-unused-private-field"),
]


def self_test():
    failures = []
    with tempfile.TemporaryDirectory(prefix="oriel-tidy-") as folder:
        root = pathlib.Path(folder)
        (root / "src").mkdir()
        (root / "build").mkdir()
        shutil.copy(lint.ROOT / ".clang-tidy", root / ".clang-tidy")
        source = root / "src" / "a.cpp"
        commands = [{"directory": folder, "file": str(source),
                     "command": f"c++ -std=c++20 -Wall -Werror -Wno-restrict -c {source}"}]
        (root / "build" / "compile_commands.json").write_text(json.dumps(commands))
        for text, expected in [(CLEAN, None), *PLANTS]:
            source.write_text(text)
            findings = check(root, root / "build")
            if expected is None and findings:
                failures += [f"found in a clean file: {finding}" for finding in findings]
            if expected is not None and not any(expected in finding for finding in findings):
                failures.append(f"not found: {expected}; found instead: {findings}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=lint.ROOT / "build")
    arguments = parser.parse_args()
    findings = self_test() if arguments.self_test else check(lint.ROOT, arguments.build.resolve())
    if arguments.self_test:
        for finding in findings:
            print(finding)
    what = "tidy" + (": self-test" if arguments.self_test else "")
    print(f"{what}: {'ok' if not findings else f'{len(findings)} found'}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
