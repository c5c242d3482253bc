#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:4.12]
"""Tests the properties that the command lines of all tools share, by one table of programs.

command_line_test.py ROOT VERSION PROGRAM..."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(sys.argv[1])
VERSION = sys.argv[2]
PROGRAMS = [pathlib.Path(path) for path in sys.argv[3:]]
SCRIPTS = [ROOT / "tools/check", ROOT / "tools/quickstart"]
CHECKS = [*sorted(ROOT.glob("tools/check_*.py")), ROOT / "tools/ctest_summary.py",
          *sorted(ROOT.glob("docs/plots/*.py")), *sorted(ROOT.glob("docs/notes/*.py")),
          ROOT / "test/planted/plant.py", ROOT / "test/gpu/run_all.sh",
          ROOT / "test/frameworks/run.py", ROOT / "test/topo/machine/capture_fixture.py"]
OURS = {path.name: path for path in PROGRAMS}
CLEAN = {name: value for name, value in os.environ.items()
         if not name.startswith(("ORIEL_", "NCCL_"))}


def run(program, *arguments, **environment):
    return subprocess.run([str(program), *arguments], env={**CLEAN, **environment}, check=False,
                          capture_output=True, text=True, timeout=60)


class CommandLines(unittest.TestCase):
    def expect(self, status, program, *arguments, **environment):
        """Checks the exit status, and that a failure prints only an error naming the program."""
        done = run(program, *arguments, **environment)
        with self.subTest(program=program.name, arguments=arguments):
            self.assertEqual(done.returncode, status, done.stderr)
            if status != 0:
                self.assertEqual(done.stdout, "")
                self.assertRegex(done.stderr, rf"^(tools/)?{program.name}: ")
        return done

    def test_help_and_version(self):
        for program in PROGRAMS + SCRIPTS + CHECKS:
            for flag in ("--help", "-h"):
                done = self.expect(0, program, flag)
                self.assertIn("--version", done.stdout)
                self.assertEqual(done.stderr, "")
            first, _, more = self.expect(0, program, "--version").stdout.partition("\n")
            self.assertEqual(first, f"{program.name} (Oriel) {VERSION}")
            self.assertEqual(more != "", program.name == "oriel-info")

    def test_an_unknown_flag_is_named_before_anything_else_that_is_wrong(self):
        wrong = {"oriel-run": ["-n", "many"], "oriel-perf": ["-n", "0"], "oriel-tune": ["-b", "7X"],
                 "oriel-topo": ["--width", "wide"], "oriel-info": ["--markdown"]}
        for program in PROGRAMS + SCRIPTS + CHECKS:
            for flag, near in (("--verson", "; did you mean --version?"), ("--zebra-stripes", ""),
                               ("--bogusness", "")):
                near = "" if program.name == "run_all.sh" else near
                done = self.expect(2, program, *wrong.get(program.name, []), flag)
                self.assertIn(f"{program.name}: unknown flag {flag}{near}\n", done.stderr)

    def test_an_unknown_flag_is_named_where_a_value_is_due(self):
        for name, *arguments in (("oriel-info", "--merge"), ("oriel-perf", "all_reduce", "-n"),
                                 ("oriel-perf", "--json"), ("oriel-run", "-n"),
                                 ("oriel-topo", "--file"), ("oriel-tune", "-o")):
            said = self.expect(2, OURS[name], *arguments, "--bogus").stderr
            self.assertIn(f"{name}: unknown flag --bogus\n", said)
        self.assertIn("--merge", self.expect(2, OURS["oriel-info"], "--merge").stderr)

    def test_the_nearest_flag_is_one_of_the_programs_own(self):
        for name, flag, near in (("oriel-run", "--rank=2", "--ranks"),
                                 ("oriel-perf", "--iter", "--iters"),
                                 ("oriel-topo", "--jsn", "--json"),
                                 ("oriel-info", "--envs", "--env"),
                                 ("oriel-tune", "--round", "--rounds")):
            said = self.expect(2, OURS[name], flag).stderr
            self.assertIn(f"unknown flag {flag.partition('=')[0]}; did you mean {near}?", said)
        self.assertIn("did you mean --quick?", self.expect(2, SCRIPTS[0], "--quik").stderr)

    def test_misuse(self):
        for name, *arguments in (("oriel-run",), ("oriel-run", "-n", "2"),
                                 ("oriel-run", "-n", "0", "true"), ("oriel-perf",),
                                 ("oriel-perf", "all_to_nothing"),
                                 ("oriel-perf", "all_reduce", "-b", "8", "-e", "4"),
                                 ("oriel-topo", "word"), ("oriel-topo", "--json", "--svg"),
                                 ("oriel-topo", "--json=3"), ("oriel-info", "--env=3"),
                                 ("oriel-info", "--markdown"), ("oriel-tune", "word"),
                                 ("oriel-tune", "-b", "64K", "-e", "1K")):
            self.expect(2, OURS[name], *arguments)
        # The invalid argument is passed on to oriel-perf, which refuses it.
        tuned = run(OURS["oriel-tune"], "-g", "9999", "-e", "64")
        self.assertEqual(tuned.returncode, 2, tuned.stderr)
        for script in SCRIPTS:
            self.expect(2, script, "word")
        if "oriel-nic" in OURS:
            self.expect(2, OURS["oriel-nic"])
            self.expect(2, OURS["oriel-nic"], "serve")  # without its socket

    def test_other_failures(self):
        self.expect(1, OURS["oriel-info"], "--env", ORIEL_BACKEND="gpu")
        self.expect(1, OURS["oriel-topo"], "--file", "/no/such/file")
        self.expect(1, OURS["oriel-perf"], "all_reduce", "--ranks", "1",
                    "--lib", "/no/such/library")
        self.expect(1, OURS["oriel-tune"], "-e", "64", "--perf", "/bin/false")
        self.expect(1, OURS["oriel-tune"], "-e", "64", "--perf", "/no/such/program")
        self.expect(1, OURS["oriel-tune"], "-e", "64", "-o", "/no/such/folder/table")

    def test_oriel_run_ends_as_its_program(self):
        for status in (0, 1, 2, 7):
            self.assertEqual(run(OURS["oriel-run"], "-n", "2", "sh", "-c",
                                 f"exit {status}").returncode, status)
        # Arguments after the program's name belong to the program.
        self.assertEqual(run(OURS["oriel-run"], "-n", "1", "echo", "--verson").stdout, "--verson\n")
        self.expect(127, OURS["oriel-run"], "-n", "1", "/no/such/program")

    def test_tune_and_info_without_arguments_show_help(self):
        for name in ("oriel-tune", "oriel-info"):
            self.assertEqual(self.expect(0, OURS[name]).stdout,
                             self.expect(0, OURS[name], "--help").stdout)

    def test_quickstart_builds_every_tool(self):
        """Checks that quickstart builds the targets of all programs, and that OURS has them all."""
        built = re.search(r"^build_preset release (.*)$", SCRIPTS[1].read_text(), re.M)[1].split()
        self.assertLessEqual({"oriel_tools", "oriel_examples"}, set(built))
        sources = {path.parent.name for path in (ROOT / "tools").glob("*/main.cpp")}
        names = {"topology": "oriel-topo"}
        self.assertEqual({names.get(one, f"oriel-{one}") for one in sources} - {"oriel-nic"},
                         set(OURS) - {"oriel-tune", "oriel-nic"})

    def test_help_that_cannot_be_written_is_a_failure(self):
        for name in set(OURS) - {"oriel-tune"}:
            with open("/dev/full", "w", encoding="utf-8") as full, tempfile.TemporaryFile() as said:
                done = subprocess.run([str(OURS[name]), "--help"], env=CLEAN, check=False,
                                      stdout=full, stderr=said)
                self.assertEqual(done.returncode, 1, name)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
