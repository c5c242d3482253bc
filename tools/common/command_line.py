# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""The command line of scripts, with the manners of the tools (command_line.hpp)."""
import argparse
import difflib
import re
import sys


class Parser(argparse.ArgumentParser):
    """Has --version, and complains as the other tools do: an unknown flag before anything else."""

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
                near = difflib.get_close_matches(name, known, 1)
                self.error(f"unknown flag {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return super().parse_args(args, namespace)

    def error(self, message):
        self.exit(2, f"{self.prog}: {message}\n{self.prog} --help lists the options\n")
