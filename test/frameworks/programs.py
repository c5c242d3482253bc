# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts that run third-party programs on Oriel. Each program has a time limit and
gets one line with its result (PASS, FAIL or SKIP). All of them share one exit status."""
import os
import pathlib
import signal
import subprocess
import sys

import checks

TIMED_OUT = 124  # oriel-run's exit status at its timeout
LAST_LINES = 25  # output lines printed for a failed program
# Keeps NVLink multicast off, whatever a program requests.
MULTICAST_OFF = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1",
                 "NVSHMEM_DISABLE_NVLS": "1"}


def session_of(pid):
    """Returns the session of a process; None if the process has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return None


def kill_session(session):
    """Kills the processes left of a session. Launchers give each rank a group, not a session."""
    for folder in pathlib.Path("/proc").iterdir():
        if folder.name.isdigit() and session_of(int(folder.name)) == session:
            try:
                os.kill(int(folder.name), signal.SIGKILL)
            except ProcessLookupError:
                pass


def run_to_log(command, log, limit_s, **environment):
    """Runs a program with its output in the file `log`; returns its exit status, or TIMED_OUT."""
    with open(log, "wb") as output:
        runner = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=subprocess.STDOUT, start_new_session=True,
                                  env=dict(os.environ, **MULTICAST_OFF, **environment))
    try:
        return runner.wait(limit_s)
    except subprocess.TimeoutExpired:
        return TIMED_OUT
    finally:
        kill_session(runner.pid)
        runner.wait()


def print_result(result, seconds, name, why, lines=()):
    print(f"{result} {seconds:6.1f} s {name}: {why}")
    for line in lines:
        print(line)
    sys.stdout.flush()


def last_lines(lines):
    return [f"  | {line[:300]}" for line in lines[-LAST_LINES:]]


def conclude(results, subject):
    """Prints the totals; returns the exit status: 1 if something failed, 77 if nothing passed."""
    count = {result: results.count(result) for result in ("PASS", "FAIL", "SKIP")}
    print(f"{subject}: {count['PASS']} passed, {count['FAIL']} failed, {count['SKIP']} skipped")
    if count["FAIL"]:
        return 1
    return 0 if count["PASS"] else checks.SKIPPED
