# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared parts of the check scripts: the list of files, the report and the self-test.

A check is a function check(root) that returns a list of findings, each one line. The self-test
plants violations in empty folders and fails unless the check finds each one. A check that finds
nothing any more is noticed this way.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "common"))
from command_line import make_parser  # noqa: E402

SOURCE_SUFFIXES = {".c", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
# Matches comments, string and character literals, and raw strings, which are not code.
NOT_CODE = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<mark>[^()\s]*)\(.*?\)(?P=mark)"|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])*'", re.S)
# Matches the line of a script that CMake replaces by code, such as @ORIEL_COMMAND_LINE@.
PLACEHOLDER = re.compile(r"^@(\w+)@$", re.M)
SKIPPED_FOLDERS = {"build", ".git", "out"}


def tracked_files(root):
    """Returns the files of the tree that git does not ignore; without git, all outside builds."""
    if (root / ".git").exists():
        listed = subprocess.run(
            ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others",
             "--exclude-standard"],
            cwd=root, check=True, capture_output=True, text=True).stdout
        paths = [root / name for name in listed.split("\0") if name]
    else:
        paths = []
        for folder, folders, names in os.walk(root):
            folders[:] = [f for f in folders
                          if f not in SKIPPED_FOLDERS and not f.startswith("build-")]
            paths += [pathlib.Path(folder) / name for name in names]
    return sorted(path for path in paths if path.is_file())


def sources(root):
    """Returns our C, C++ and CUDA files."""
    return [path for path in tracked_files(root) if path.suffix in SOURCE_SUFFIXES]


def is_python(path, text):
    """Returns True for a Python file: by its suffix, or without one by its first line."""
    first = text.partition("\n")[0]
    return path.suffix == ".py" or (
        path.suffix == "" and re.match(r"#!.*\bpython", first) is not None)


def python_of(text):
    """Returns a script that can be parsed: its placeholders are names. No other text moves."""
    return PLACEHOLDER.sub(r"\1  ", text)


def write_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def self_test(check, clean, plants):
    """Returns the failures of a check on planted files.

    clean: files in which nothing may be found. plants: pairs (files, text of the finding).
    """
    failures = []
    with tempfile.TemporaryDirectory(prefix="oriel-lint-") as folder:
        root = pathlib.Path(folder)
        write_tree(root, clean)
        failures += [f"found in clean files: {finding}" for finding in check(root)]
    for files, expected in plants:
        with tempfile.TemporaryDirectory(prefix="oriel-lint-") as folder:
            root = pathlib.Path(folder)
            write_tree(root, files)
            findings = check(root)
            if not any(expected in finding for finding in findings):
                failures.append(f"not found: {expected!r}; found instead: {findings}")
    return failures


def main(name, check, clean, plants, write=None, part=None):
    """Runs a check as a program. write(root): called for --write, if the check can write. part: the
    check, clean files and plants of a part of the check, which has a self-test of its own."""
    parser = make_parser(f"Checks the {name}.")
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    if write is not None:
        parser.add_argument("--write", action="store_true", help="write what is out of date")
    parser.add_argument("root", nargs="?", type=pathlib.Path, default=ROOT,
                        help="of the source tree (this one)")
    arguments = parser.parse_args()
    if write is not None and arguments.write:
        write(arguments.root.resolve())
        return
    if arguments.self_test:
        tests = [(check, clean, plants)] + ([part] if part else [])
        findings = [failure for test in tests for failure in self_test(*test)]
        summary = f"{name}: self-test with {sum(len(test[2]) for test in tests)} planted violations"
    else:
        findings = check(arguments.root.resolve())
        summary = name
    for finding in findings:
        print(finding)
    print(f"{summary}: {'ok' if not findings else f'{len(findings)} found'}")
    sys.exit(1 if findings else 0)
