#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs ctest and ends with ctest's summary. Before the summary, lists skipped tests, and skipped
cases within tests that passed, with the reasons.

A test that fails runs once more, because a busy machine can make any wait too long. If the test
then passes, it is named. If a sanitizer reported something, or more than 3 tests passed only on the
second run, the exit status is not 0.

ctest_summary.py BUILD_DIR [ARGUMENT OF ctest ...]. Exits as ctest does, which fails if
no test ran. For the two reasons above it exits with 1 although ctest passes.
ctest_summary.py --self-test"""
import collections
import pathlib
import re
import subprocess
import sys
import tempfile
import xml.etree.ElementTree

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "common"))
from command_line import make_parser  # noqa: E402

SECOND_RUNS_MOST = 3

SUMMARY = re.compile(r"^\d+% tests passed")
REASON = re.compile(r"skip", re.I)
# Matches the message of a case that ends early, anywhere in a line.
CASE = re.compile(r"\bskipped: .*")
FAILED = re.compile(r"Test +#\d+: (\S+) \.*(?: |\*\*\*)*(?:Failed|Timeout|Exception|Not Run)")
SANITIZER = re.compile(r"(?:Thread|Address|Leak|UndefinedBehavior)Sanitizer|: runtime error: ")


def skipped_tests(report):
    """Yields (name, reason) of each test that did not run, from ctest's JUnit report. The reason is
    the first line with "skip", or else the last line of the output."""
    for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase"):
        if case.find("skipped") is None:
            continue
        output = case.findtext("system-out") or ""
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        reasons = [line for line in lines if REASON.search(line)] or lines[-1:]
        yield case.get("name"), reasons[0] if reasons else "(it gave no reason)"


def skipped_cases(report):
    """Yields (name, reason) of each case skipped within a test that passed. ctest cuts the output
    of a passed test at a limit of length; reasons in the part cut out are lost."""
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


def run_ctest(build, arguments):
    """Runs ctest; returns (exit status, lines of the summary)."""
    with tempfile.TemporaryDirectory(prefix="oriel-ctest-") as folder:
        report = pathlib.Path(folder) / "report.xml"
        command = ["ctest", "--test-dir", str(build), "--output-on-failure", "--no-tests=error",
                   "--output-junit", str(report), "--test-output-size-passed", "1000000",
                   "--repeat", "until-pass:2", *arguments]
        run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               errors="replace")
        held, failures, sanitizer = [], collections.Counter(), False
        for line in run.stdout:
            if held or SUMMARY.match(line):
                held.append(line)
                continue
            print(line, end="", flush=True)
            sanitizer = sanitizer or SANITIZER.search(line) is not None
            if (failed := FAILED.search(line)) is not None:
                failures[failed.group(1)] += 1
        status = run.wait()
        if report.exists():
            show("tests skipped", list(skipped_tests(report)))
            show("cases skipped within tests that passed", list(skipped_cases(report)))
    second = [name for name, times in failures.items() if times == 1]
    show("tests failed once and then passed", [(name, "see above") for name in second])
    if sanitizer:
        print("a sanitizer has reported something; no second run makes up for that")
    elif len(second) > SECOND_RUNS_MOST:
        print(f"more than {SECOND_RUNS_MOST} second runs are not the machine's fault")
    else:
        return status, held
    return status or 1, held


def self_test():
    """Runs builds with a test that fails once, one that always fails, and one that fails once with
    a sanitizer's report. Also runs a build with four tests that fail once, and one without
    tests."""
    once = "test -e {0} && exit 0; touch {0}; echo {1}; exit 1"
    report = "WARNING: ThreadSanitizer: data race"
    cases = [({"good": "true", "flaky": once.format("flaky", "late")}, True),
             ({"good": "true", "bad": "false"}, False),
             ({"racy": once.format("racy", report)}, False),
             ({f"flaky{i}": once.format(f"flaky{i}", "late") for i in range(4)}, False),
             ({}, False)]
    for tests, passes in cases:
        with tempfile.TemporaryDirectory(prefix="oriel-ctest-") as folder:
            lines = [f'add_test({name} sh -c [[{what}]])' for name, what in tests.items()]
            pathlib.Path(folder, "CTestTestfile.cmake").write_text("\n".join(lines))
            done = subprocess.run([sys.executable, __file__, folder], capture_output=True,
                                  text=True)
            named = "flaky: see above" in done.stdout
            if (done.returncode == 0) != passes or ("flaky" in tests) != named:
                sys.exit(f"{list(tests)}: exit status {done.returncode}\n{done.stdout}")
    print("ctest_summary: self-test passed")


def main():
    if sys.argv[1:2] == ["--self-test"]:
        return self_test()
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        parser = make_parser(__doc__)
        parser.add_argument("--self-test", action="store_true", help="see that it counts")
        parser.parse_args(sys.argv[1:2] or ["--help"])
    status, summary = run_ctest(pathlib.Path(sys.argv[1]), sys.argv[2:])
    print("".join(summary), end="", flush=True)
    return sys.exit(status)


if __name__ == "__main__":
    main()
