#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the flags of every benchmark script and of each program named on the command line.

--help must name --out and say what is measured, and --version must work. An unknown flag must be
refused by name, with the nearest flag, and with status 2. Usage:

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
    if "--out" not in help_.stdout:
        yield "it has no --out"
    version = run(command, "--version")
    name = pathlib.Path(command[-1]).name
    if version.returncode != 0 or not version.stdout.startswith(f"{name} (Oriel) "):
        yield f"--version: status {version.returncode}, {version.stdout + version.stderr!r}"
    refused = run([*command, "--out"], "--no-such-flag")
    if refused.returncode != 2 or f"{name}: unknown flag --no-such-flag\n" not in refused.stderr:
        yield f"--out --no-such-flag: status {refused.returncode}, {refused.stderr!r}"
    for flag, near in (("--no-such-flag", ""), ("--verson", "; did you mean --version?")):
        refused = run(command, flag)
        if refused.returncode != 2 or f"{name}: unknown flag {flag}{near}\n" not in refused.stderr:
            yield f"{flag}: status {refused.returncode}, {refused.stderr!r}"


def main():
    scripts = [path for path in sorted(FOLDER.glob("*/*.py")) if path.parent.name != "support"]
    commands = [[sys.executable, str(path)] for path in scripts]
    commands += [[program] for program in sys.argv[1:]]
    faults = [f"{command[-1]}: {fault}" for command in commands for fault in faults_of(command)]
    print("\n".join(faults) or f"{len(commands)} benchmarks say what they measure")
    return 1 if faults or not scripts else 0


if __name__ == "__main__":
    sys.exit(main())
