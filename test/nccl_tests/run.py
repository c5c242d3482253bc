#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Runs NVIDIA's nccl-tests, unmodified and built with NVIDIA's headers, on Oriel's libnccl.so.2.

Runs every program with each registration (-R 0, 1, 2), with plain calls and CUDA graphs (-G). Each
run covers all types and operations and two sizes, and checks each result (-c 1). The ranks are
processes of mpirun and share one GPU. Prints one line per run: PASS, FAIL or SKIP.

Exit status: 0 if nothing failed; 1 if something did; 2 for misuse; 77 if everything was skipped.
"""
# [req:5.20]
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "frameworks"), str(HERE.parents[1] / "tools" / "common")]
import checks  # noqa: E402
import programs  # noqa: E402
from command_line import make_parser  # noqa: E402

REDUCING = ("all_reduce", "reduce_scatter", "reduce")
PROGRAMS = REDUCING + ("all_gather", "broadcast", "alltoall", "alltoallv", "gather", "scatter",
                       "sendrecv", "hypercube")
REGISTRATIONS, GRAPHS = (0, 1, 2), (0, 1)
TYPES, OPERATIONS = 12, 6
COLUMNS = 13  # size, count, type, operation, root; twice: time, two rates, wrong values
# Lets mpirun run as root, and with more ranks than processors.
MPI = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1"}


def parse_options():
    parser = make_parser(__doc__)
    parser.add_argument("--source", type=pathlib.Path, metavar="DIR", help="checkout of nccl-tests")
    parser.add_argument("--include", type=pathlib.Path, metavar="DIR",
                        help="folder of NVIDIA's nccl.h, such as that of PyPI's nvidia-nccl-cu13")
    parser.add_argument("--build", type=pathlib.Path, default=HERE.parents[1] / "build",
                        metavar="DIR", help="build folder, or the folder of an installation "
                        "(%(default)s)")
    parser.add_argument("--programs", type=pathlib.Path, metavar="DIR",
                        help="folder of the built programs (nccl-tests in the build folder)")
    parser.add_argument("--build-only", action="store_true", help="build the programs, run none")
    parser.add_argument("--ranks", type=int, default=2, metavar="N", help="(%(default)s)")
    parser.add_argument("--only", nargs="+", choices=PROGRAMS, default=PROGRAMS, metavar="NAME",
                        help="run these programs only: " + ", ".join(PROGRAMS))
    parser.add_argument("--registration", nargs="+", type=int, choices=REGISTRATIONS,
                        default=REGISTRATIONS, help="registrations, -R of the programs: 0, 1, 2")
    parser.add_argument("--graph", nargs="+", type=int, choices=GRAPHS, default=GRAPHS,
                        help="0: plain calls, 1: in CUDA graphs; both by default")
    parser.add_argument("--device", type=int, default=0, metavar="N", help="GPU (%(default)s)")
    parser.add_argument("--minutes", type=float, default=9, metavar="M",
                        help="starts no further program after this time (%(default)s)")
    parser.add_argument("--limit", type=float, default=90, metavar="SECONDS",
                        help="time limit of each run (%(default)s)")
    parser.add_argument("--logs", type=pathlib.Path, metavar="DIR",
                        help="keep the whole output of each run there")
    options = parser.parse_args()
    if options.ranks < 2:
        parser.error("--ranks: at least 2")
    options.programs = (options.programs or options.build / "nccl-tests").resolve()
    options.build = options.build.resolve()
    return options


def program_of(options, name):
    return options.programs / f"{name}_perf"


def mpi_home():
    """Returns the parent of mpicc's include folder; None if there is no mpicc or no mpi.h."""
    if shutil.which("mpicc") is None:
        return None
    command = subprocess.run(["mpicc", "-show"], check=True, capture_output=True, text=True).stdout
    folders = [pathlib.Path(word[2:]) for word in command.split() if word.startswith("-I")]
    return next((folder.parent for folder in folders if (folder / "mpi.h").exists()), None)


def build_programs(options):
    """Builds missing programs with nccl-tests' own makefile; returns why it cannot, or None."""
    if all(program_of(options, name).exists() for name in PROGRAMS):
        return None
    if options.source is None or options.include is None:
        return f"not all programs are in {options.programs}, and --source or --include is missing"
    if not (options.source / "src" / "Makefile").exists():
        return f"{options.source} is no checkout of nccl-tests"
    home = mpi_home()
    if home is None:
        return "there is no mpicc"
    # The makefile expects NVIDIA's header and the library in one folder.
    nccl = options.programs / "nccl"
    nccl.mkdir(parents=True, exist_ok=True)
    for name, target in (("include", options.include.resolve()), ("lib", options.build / "lib")):
        (nccl / name).unlink(missing_ok=True)
        (nccl / name).symlink_to(target)
    make = ["make", "-C", options.source / "src", "build", "MPI=1", "DSO=1", f"MPI_HOME={home}",
            f"NCCL_HOME={nccl}", f"BUILDDIR={options.programs}", f"-j{os.cpu_count()}"]
    if subprocess.run(make, check=False).returncode != 0:
        sys.exit("run.py: nccl-tests could not be built")
    return None


def check_library(options, environment):
    """Ends this script unless the loader gives the programs Oriel's library."""
    listed = subprocess.run(["ldd", program_of(options, options.only[0])], check=False, text=True,
                            capture_output=True, env=dict(os.environ, **environment)).stdout
    found = {line.split()[0]: line for line in listed.splitlines() if "=>" in line}
    for name in ("libnccl.so.2", "liboriel.so.0"):
        if f"=> {options.build / 'lib'}/" not in found.get(name, ""):
            print(f"run.py: the programs do not load {name} from {options.build / 'lib'}: "
                  f"{found.get(name, 'not found').strip()}", file=sys.stderr)
            sys.exit(2)


def evaluate(name, status, text):
    """Returns (PASS or FAIL, why)."""
    if status == programs.TIMED_OUT:
        return "FAIL", "past its time limit"
    rows = [line.split() for line in text.splitlines() if line[:1] == " "]
    if name == "hypercube":  # prints no column for the operation
        rows = [row[:3] + ["none"] + row[3:] for row in rows]
    rows = [row for row in rows if len(row) >= COLUMNS and row[0].isdigit()]
    wrong = sum(row[8] != "0" or row[12] not in ("0", "N/A") for row in rows)
    types, operations = len({row[2] for row in rows}), len({row[3] for row in rows})
    seen = f"{len(rows)} rows, {types} types"
    if name in REDUCING:
        seen += f", {operations} operations"
    if status != 0 or wrong or ": 0 OK" not in text:
        return "FAIL", f"exit status {status}, {wrong} rows with wrong values; {seen}"
    expected = TYPES * (OPERATIONS if name in REDUCING else 1)
    combinations = len({(row[2], row[3]) for row in rows})
    if combinations < expected:
        return "FAIL", f"{combinations} of {expected} types and operations have run; {seen}"
    return "PASS", seen


def run_program(options, name, registration, graph, folder, environment):
    title = f"{name} -R {registration} -G {graph}"
    log, begin = folder / f"{name}-r{registration}-g{graph}.log", time.monotonic()
    command = ["mpirun", "-n", str(options.ranks), program_of(options, name), "-g", "1",
               "-b", "1000", "-e", "600000", "-f", "600", "-d", "all", "-o", "all", "-c", "1",
               "-r", str(options.ranks - 1), "-n", "2", "-w", "1", "-R", str(registration),
               "-G", str(graph)]
    status = programs.run_to_log(command, log, options.limit, **environment)
    text = log.read_text(errors="replace")
    result, why = evaluate(name, status, text)
    lines = programs.last_lines(text.splitlines()) if result == "FAIL" else []
    programs.print_result(result, time.monotonic() - begin, title, why, lines)
    return result


def reason_to_skip(options, name, end):
    if name == "hypercube" and options.ranks & (options.ranks - 1):
        return "hypercube needs a power of two of ranks"
    return "no time is left of --minutes" if time.monotonic() > end else None


def run_all(options, folder):
    environment = dict(MPI, NCCL_TESTS_DEVICE=str(options.device), LD_LIBRARY_PATH=os.pathsep.join(
        [str(options.build / "lib")] + os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)))
    check_library(options, environment)
    results, end = [], time.monotonic() + 60 * options.minutes
    for graph in options.graph:
        for registration in options.registration:
            for name in options.only:
                reason = reason_to_skip(options, name, end)
                if reason:
                    programs.print_result("SKIP", 0, f"{name} -R {registration} -G {graph}", reason)
                    results.append("SKIP")
                else:
                    results.append(run_program(options, name, registration, graph, folder,
                                                environment))
    return programs.conclude(results, f"{options.ranks} ranks on GPU {options.device}")


def main():
    options = parse_options()
    if not (options.build / "lib" / "libnccl.so.2").exists():
        print(f"run.py: there is no {options.build / 'lib' / 'libnccl.so.2'}; name a build by "
              "--build", file=sys.stderr)
        return 2
    lacking = build_programs(options)
    if lacking is None and not options.build_only:
        lacking = ("there is no GPU" if checks.gpu_count() == 0 else
                   "there is no mpirun" if shutil.which("mpirun") is None else None)
    if lacking:
        print(f"skipped: {lacking}")
        return checks.SKIPPED
    if options.build_only:
        return 0
    with tempfile.TemporaryDirectory(prefix="oriel-nccl-tests-") as scratch:
        folder = options.logs or pathlib.Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        return run_all(options, folder)


if __name__ == "__main__":
    sys.exit(main())
