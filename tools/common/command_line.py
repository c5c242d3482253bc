# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Parses the command line of scripts in the same way as the tools (command_line.hpp)."""
import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def edit_distance(a, b):
    """Returns the number of insertions, deletions and replacements that turn `a` into `b`."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            replaced = diagonal + (letter != other)
            diagonal, row[j] = row[j], min(replaced, row[j] + 1, row[j - 1] + 1)
    return row[-1]


def suggest_name(name, known):
    """Returns "; did you mean NAME?", or "" if more than a third of `name` would have to change.

    Does the same as suggest_name() of src/base/nearest_name.hpp.
    """
    nearest = min(known, key=lambda one: edit_distance(name, one))
    return f"; did you mean {nearest}?" if edit_distance(name, nearest) * 3 <= len(name) else ""


def make_parser(purpose):
    """Returns a Parser for the running script; --help prints `purpose`."""
    version = re.search(r"project\(oriel VERSION ([\d.]+)", (ROOT / "CMakeLists.txt").read_text())
    return Parser(pathlib.Path(sys.argv[0]).name, version[1], purpose)


class Parser(argparse.ArgumentParser):
    """Adds --version, and reports errors as the tools do: an unknown flag before any other
    error."""

    def __init__(self, program, version, purpose):
        super().__init__(prog=program, description=purpose, allow_abbrev=False,
                         formatter_class=argparse.RawDescriptionHelpFormatter)
        self.add_argument("--version", action="version", version=f"{program} (Oriel) {version}",
                          help="say which version this is")

    def parse_args(self, args=None, namespace=None):
        known = [name for action in self._actions for name in action.option_strings]
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            if re.match(r"--?[a-zA-Z]", word) and name not in known and word[:2] not in known:
                self.error(f"unknown flag {name}{suggest_name(name, known)}")
        return super().parse_args(args, namespace)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help lists the options\n")
