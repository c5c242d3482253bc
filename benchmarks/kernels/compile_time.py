#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:5.14]
"""Measures the processor time that the compiler takes for the files of kernels, for sm_90 alone.

Compiles each file once with the build's own command, one after the other and without a cache. The
build's sources may have moved with their build folder since it was configured. Prints the user time
of each file and of all. Other programs on the same cores make the times longer.
Exit status: 0; 1 if a file does not compile; 77 if the build has no GPU half.
"""
import json
import os
import pathlib
import shlex
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

FOLDER = "src/kernels/cuda/"
TARGET = "--generate-code=arch=compute_90,code=[sm_90]"


def command_of(entry, output):
    """Returns the command that compiles a file of the build for sm_90 into `output`."""
    words = shlex.split(entry["command"])
    while "ccache" in pathlib.Path(words[0]).name:
        words.pop(0)
    words[words.index("-o") + 1] = str(output)
    root = entry["file"][:entry["file"].rindex("/" + FOLDER)]
    words = [word.replace(root + "/", f"{benchmark.ROOT}/") for word in words
             if not word.startswith("--generate-code")]
    return words[:1] + [TARGET] + words[1:]


def user_seconds(command, folder):
    """Runs a compiler. Returns the user time of all its processes; ends this script if it fails."""
    compiler = subprocess.Popen(command, cwd=folder, env=dict(os.environ, CCACHE_DISABLE="1"))
    _, status, usage = os.wait4(compiler.pid, 0)
    compiler.returncode = os.waitstatus_to_exitcode(status)
    if compiler.returncode != 0:
        sys.exit(f"compile_time.py: status {compiler.returncode} of {shlex.join(command)}")
    return usage.ru_utime


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("--build", type=pathlib.Path, default=benchmark.ROOT / "build",
                        help="build folder (%(default)s)")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these files only, without .cu")
    parser.add_argument("--out", help="JSON file to write")
    options = parser.parse_args()
    list_of_commands = options.build / "compile_commands.json"
    if not list_of_commands.is_file():
        parser.error(f"--build: there is no {list_of_commands}")
    entries = json.loads(list_of_commands.read_text(encoding="utf-8"))
    files = {pathlib.Path(entry["file"]).stem: entry for entry in entries
             if "/" + FOLDER in entry["file"] and entry["file"].endswith(".cu")}
    if not files:
        print("skipped: the build has no GPU half")
        return 77
    names = options.only or sorted(files)
    if not set(names) <= set(files):
        parser.error("--only: choose from " + ", ".join(sorted(files)))
    results = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            seconds = user_seconds(command_of(files[name], pathlib.Path(folder, name)), folder)
            results.append(benchmark.result("compile", {"file": name}, "s", median=seconds))
            print(f"{seconds:6.1f} s {name}", flush=True)
    print(f"{sum(one['median'] for one in results):6.1f} s all {len(results)} files, user time")
    if options.out:
        benchmark.write_results(options.out, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
