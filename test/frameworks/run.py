#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs the installed PyTorch, JAX and CuPy on Oriel: each script of this folder on N ranks, through
oriel-run --preload. Ranks share GPUs if there are fewer. Prints one line per script (PASS, FAIL or
SKIP), and below it one line per check.

Exit status: 0 if nothing failed; 1 if something did; 2 for misuse; 77 if everything was skipped.
"""
import importlib.util
import os
import pathlib
import sys
import tempfile
import time

import checks
import programs

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools" / "common"))
from command_line import make_parser  # noqa: E402

DEFAULT_BUILD = HERE.parents[1] / "build"
GRACE_S = 15  # time for oriel-run to end by itself after the time limit
# script -> modules that it needs
SCRIPTS = {
    "torch_import": ["torch"],
    "torch_collectives": ["torch"],
    "torch_point_to_point": ["torch"],
    "torch_groups": ["torch"],
    "torch_graphs": ["torch"],
    "torch_mempool": ["torch"],
    "torch_abort": ["torch"],
    "torch_ddp": ["torch", "sklearn"],
    "torch_fsdp": ["torch"],
    "torch_threads": ["torch"],
    "accelerate_train": ["torch", "accelerate"],
    "accelerate_launch": ["torch", "accelerate"],
    "lightning_train": ["torch", "lightning|pytorch_lightning"],
    "jax_collectives": ["jax", "jaxlib"],
    "cupy_collectives": ["cupy"],
    "cupy_threads": ["cupy"],
}


def parse_options():
    parser = make_parser(__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=DEFAULT_BUILD, metavar="DIR",
                        help="build folder, or the folder of an installation (%(default)s)")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", nargs="+", choices=list(SCRIPTS), metavar="NAME",
                        help="run these scripts only")
    parser.add_argument("--limit", type=float, default=120, metavar="SECONDS",
                        help="time limit of each script (%(default)s)")
    parser.add_argument("--logs", type=pathlib.Path, metavar="DIR",
                        help="keep the whole output of each script there")
    parser.add_argument("--list", action="store_true", help="print the names of the scripts")
    options = parser.parse_args()
    if options.ranks < 1:
        parser.error("--ranks: at least 1")
    if options.limit <= 0:
        parser.error("--limit: more than 0 seconds")
    return options


def missing(modules):
    """Returns the first module of the list that is not installed; `a|b` needs one of the two."""
    for names in modules:
        if all(importlib.util.find_spec(name) is None for name in names.split("|")):
            return names.replace("|", " or ")
    return None


def run_ranks(options, name, log):
    """Runs one script; returns oriel-run's exit status, or TIMED_OUT if oriel-run did not end."""
    with tempfile.TemporaryDirectory(prefix="oriel-frameworks-") as meeting:
        command = [options.build / "bin" / "oriel-run", "--preload", "-n", str(options.ranks),
                   "--timeout", str(options.limit), sys.executable, HERE / f"{name}.py"]
        return programs.run_to_log(command, log, options.limit + GRACE_S,
                                   **{checks.MEETING: meeting}, PYTHONUNBUFFERED="1",
                                   # Same default as torchrun's. Ranks with a thread on every
                                   # processor slow each other down.
                                   OMP_NUM_THREADS=os.environ.get("OMP_NUM_THREADS", "1"),
                                   PYTHONDONTWRITEBYTECODE="1")


class Report:
    """Facts parsed from the output of a script."""

    def __init__(self, text):
        self.lines, self.started, self.where, self.reason = [], None, None, ""
        self.failed = self.passed = 0
        self.stopped = False
        for line in text.splitlines():
            self.take(line)

    def take(self, line):
        word, _, rest = line.partition(" ")
        if word in ("@pass", "@fail", "@skip"):
            self.started = None
            self.passed += word == "@pass"
            self.failed += word == "@fail"
            seconds, _, name = rest.partition(" ")
            self.lines.append(f"  {word[1:]:4} {float(seconds):6.2f} s  {name}")
        elif word == "@begin":
            self.started = rest
        elif word in ("@detail", "@note", "@stop"):
            text = f"       {'stopped: ' if word == '@stop' else ''}{rest}"
            self.stopped = self.stopped or word == "@stop"
            if text not in self.lines:
                self.lines.append(text)
        elif word == "@resolved":
            self.lines.append(f"       in the process: ncclAllReduce is {rest}")
        elif line.startswith("oriel-run: ncclAllReduce is "):
            self.where = line.removeprefix("oriel-run: ")
        elif line.startswith("skipped: ") and not self.reason:
            self.reason = line.removeprefix("skipped: ")


def evaluate(status, report):
    """Returns (PASS, FAIL or SKIP, why)."""
    if status == checks.SKIPPED:
        return "SKIP", report.reason or "the script did not say why"
    if status == programs.TIMED_OUT:
        return "FAIL", f"past its time limit, in '{report.started or 'no check'}'"
    if status != 0 or report.failed or report.stopped:
        return "FAIL", f"exit status {status}, {report.failed} check(s) failed"
    if report.where is None or "not Oriel" in report.where:
        return "FAIL", f"oriel-run says: {report.where or 'nothing about ncclAllReduce'}"
    if report.passed == 0:
        return "FAIL", "no check has run"
    return "PASS", f"{report.passed} checks; {report.where}"


def run_script(options, name, folder):
    log, begin = folder / f"{name}.log", time.monotonic()
    status = run_ranks(options, name, log)
    text = log.read_text(errors="replace")
    report = Report(text)
    result, why = evaluate(status, report)
    lines = report.lines if result != "SKIP" else []
    if result == "FAIL":
        lines += programs.last_lines([line for line in text.splitlines()
                                      if not line.startswith("@")])
    programs.print_result(result, time.monotonic() - begin, name, why, lines)
    return result


def main():
    options = parse_options()
    names = options.only or list(SCRIPTS)
    if options.list:
        print("\n".join(names))
        return 0
    gpus = checks.gpu_count()
    results, runnable = [], []
    for name in names:
        lacking = missing(SCRIPTS[name])
        reason = (f"there is no Python module {lacking}" if lacking
                  else "there is no GPU" if gpus == 0 else None)
        if reason:
            programs.print_result("SKIP", 0, name, f"skipped, {reason}")
            results.append("SKIP")
        else:
            runnable.append(name)
    if runnable and not (options.build / "bin" / "oriel-run").exists():
        print(f"run.py: there is no {options.build / 'bin' / 'oriel-run'}; name a build by --build",
              file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory(prefix="oriel-frameworks-") as scratch:
        folder = options.logs or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results += [run_script(options, name, folder) for name in runnable]
    return programs.conclude(results, f"{options.ranks} ranks, {gpus} GPU(s)")


if __name__ == "__main__":
    sys.exit(main())
