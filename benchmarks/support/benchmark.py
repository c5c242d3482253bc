# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Shared by the scripts of benchmarks/: finds programs, and writes results."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "common"))
from command_line import make_parser  # noqa: E402,F401

# Collectives that oriel-perf measures.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce",
               "gather", "scatter", "sendrecv")
# Build folders of the presets, without those of sanitizers, which would slow down what is measured.
BUILDS = ("build", "build-release-all", "build-host", "build-dev")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text):
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def add_build_flag(parser):
    parser.add_argument("--build", type=pathlib.Path,
                        help=f"the build whose programs are run (the first of {', '.join(BUILDS)} "
                             "that has them)")


def add_perf_flags(parser, minutes, rounds):
    """Adds the flags of scripts that run oriel-perf for every collective."""
    add_build_flag(parser)
    parser.add_argument("--lib", help="Oriel's libnccl.so.2 (the one beside oriel-perf)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="by commas")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"),
                        help="host: to try this script on a machine without GPU")
    parser.add_argument("--out", required=True, help="JSON file to write")


def find_program(options, name, given=None):
    """Returns the path `given`, else that of the build's `name`; exits if no such file exists.
    Without a build chooses the first that has the program, also for the programs to come."""
    if options.build is None:
        builds = [ROOT / build for build in BUILDS]
        options.build = next((build for build in builds if (build / "bin" / name).is_file()),
                             builds[0])
    path = pathlib.Path(given) if given else options.build / "bin" / name
    if path.is_file():
        return str(path)
    raise SystemExit(f"there is no {path}: build it with \"cmake --build {options.build} "
                     f"--target {name}\", or name another build with --build")


def result(name, parameters, unit, samples=None, median=None, **details):
    """Returns one result in the format that benchmarks/README.md describes."""
    made = {"name": name, "parameters": parameters, "unit": unit}
    if median is not None:
        made["median"] = median
    if samples is not None:
        made["samples"] = samples
    if details:
        made["details"] = details
    return made


def write_results(path, results, **more):
    """Writes a JSON file with the results; `more` adds further facts of the run."""
    document = {"format": 2, "results": results, **more}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
