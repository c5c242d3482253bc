#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that every script here, and each program named on the command line, says in --help what it
measures and refuses an unknown flag by name with status 2.

    check_flags.py [PROGRAM...]
"""
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(__file__).resolve().parents[1]


def run(command, flag):
    return subprocess.run([*command, flag], capture_output=True, text=True, timeout=20, check=False)


def faults_of(command):
    help_ = run(command, "--help")
    if help_.returncode != 0 or not any(word in help_.stdout.lower() for word in
                                        ("measure", "model", "compares", "what the links")):
        yield f"--help does not say what it measures: {help_.stdout + help_.stderr!r}"
    if "--out" not in help_.stdout and "Measures nothing" not in help_.stdout:
        yield "it has no --out"
    refused = run(command, "--no-such-flag")
    if refused.returncode != 2 or 'unknown flag "--no-such-flag"' not in refused.stderr:
        yield f"--no-such-flag: status {refused.returncode}, {refused.stderr!r}"


def main():
    scripts = [path for path in sorted(FOLDER.glob("*/*.py")) if path.parent.name != "support"]
    commands = [[sys.executable, str(path)] for path in scripts]
    commands += [[program] for program in sys.argv[1:]]
    faults = [f"{command[-1]}: {fault}" for command in commands for fault in faults_of(command)]
    print("\n".join(faults) or f"{len(commands)} benchmarks say what they measure")
    return 1 if faults or not scripts else 0


if __name__ == "__main__":
    sys.exit(main())
