# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""What the scripts of benchmarks/ share: where programs are found, and how results are written."""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools" / "common"))
from command_line import make_parser  # noqa: E402,F401

# What oriel-perf measures.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "reduce",
               "gather", "scatter", "sendrecv")
UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def parse_size(text):
    unit = UNITS.get(text[-1:].upper())
    return int(text[:-1]) * unit if unit else int(text)


def add_build_flag(parser):
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build",
                        help="the build whose programs are run (%(default)s)")


def add_perf_flags(parser, minutes, rounds):
    """Flags of scripts that run oriel-perf for every collective."""
    add_build_flag(parser)
    parser.add_argument("--lib", help="Oriel's libnccl.so.2 (the one beside oriel-perf)")
    parser.add_argument("--collectives", default=",".join(COLLECTIVES), help="by commas")
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"),
                        help="host: to try this script on a machine without GPU")
    parser.add_argument("--out", required=True, help="JSON file to write")


def find_program(options, name, given=None):
    """The path of a program of the build, or of the one that is given."""
    path = pathlib.Path(given) if given else options.build / "bin" / name
    if path.is_file():
        return str(path)
    raise SystemExit(f"there is no {path}: build it with \"cmake --build {options.build} "
                     f"--target {name}\", or name another build with --build")


def result(name, parameters, unit, samples=None, median=None, **details):
    """One result in the shape that benchmarks/README.md describes."""
    made = {"name": name, "parameters": parameters, "unit": unit}
    if median is not None:
        made["median"] = median
    if samples is not None:
        made["samples"] = samples
    if details:
        made["details"] = details
    return made


def write_results(path, results, **more):
    """A file with the results, and what else belongs to the run."""
    document = {"format": 2, "results": results, **more}
    pathlib.Path(path).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
