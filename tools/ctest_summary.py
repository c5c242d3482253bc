#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs ctest and ends with its summary, before which it says why tests, and cases within tests that
passed, were skipped.

ctest_summary.py BUILD_DIR [ARGUMENT OF ctest ...]. Exits as ctest does, or with 1 if no test ran."""
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

SUMMARY = re.compile(r"^\d+% tests passed")
REASON = re.compile(r"skip", re.I)
# What a case says that ends early, on a line of its own or in the middle of one.
CASE = re.compile(r"\bskipped: .*")


def skipped_tests(report):
    """(name, reason) of each test that did not run, from ctest's JUnit report. A command that knows
    nothing of tests says why on its last line."""
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            continue
        output = case.findtext("system-out") or ""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reasons = [line for line in lines if REASON.search(line)] or lines[-1:]
        yield case.get("name"), reasons[0] if reasons else "(it gave no reason)"


def skipped_cases(report):
    """(name, reason) of what was left out within tests that passed. Past a limit of length ctest
    cuts a passed test's output in the middle; what it says there is not seen."""
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.get("status") != "run":
            continue
        output = case.findtext("system-out") or ""
        for reason in dict.fromkeys(found.group() for found in CASE.finditer(output)):
            yield case.get("name"), reason


def show(title, found):
    if found:
        print(f"{len(found)} {title}:")
    for name, reason in found:
        print(f"  {name}: {reason}")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    build, arguments = pathlib.Path(sys.argv[1]), sys.argv[2:]
    with tempfile.TemporaryDirectory(prefix="oriel-ctest-") as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error",
                   "--output-junit", str(report), "--test-output-size-passed", "1000000",
                   *arguments]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
        held = []
        for line in run.stdout:
            if held or SUMMARY.match(line):
                held.append(line)
            else:
                print(line, end="", flush=True)
        status = run.wait()
        skipped = list(skipped_tests(report)) if report.exists() else []
        cases = list(skipped_cases(report)) if report.exists() else []
    show("tests skipped", skipped)
    show("cases skipped within tests that passed", cases)
    print("".join(held), end="", flush=True)
    sys.exit(status)


if __name__ == "__main__":
    main()
