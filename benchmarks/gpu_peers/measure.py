#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Compares Oriel's all-reduce with another libnccl-compatible library on the GPUs of this host.

Measures f32 and bf16, in place and out of place, with both buffers registered and with neither. The
sizes are every power of two from 8 B to 1 GiB, and three odd counts. Calls are in CUDA graphs; a
further pass lets ranks enter with jitter. One JSON file holds every round, and
docs/plots/peers_table.py makes tables of it.

Exit status: 0; 1 if a result was wrong or a run failed. With --require, the exit status is 3 if the
upper 95 % bound of a ratio is above --bound.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

ODD_COUNTS = (1001, 100_003, 10_000_019)
SMALL = [1 << power for power in range(3, 26)]
LARGE = [1 << power for power in range(26, 31)]


def parse_options():
    parser = benchmark.make_parser(__doc__)
    benchmark.add_build_flag(parser)
    parser.add_argument("--perf", help="the oriel-perf to use (the build's)")
    parser.add_argument("--lib", help="Oriel's libnccl.so.2 (the one beside oriel-perf)")
    parser.add_argument("--against", required=True, help="the other library")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--jitter", type=float, default=20, help="microseconds")
    parser.add_argument("--register", default="both,none", help="by commas")
    parser.add_argument("--types", default="float,bfloat16", help="by commas")
    parser.add_argument("--most", type=int, default=1 << 30, help="largest size in bytes")
    parser.add_argument("--backend", default="cuda", choices=("cuda", "host"),
                        help="host: without graphs, to try this script on a machine without GPU")
    parser.add_argument("--out", required=True, help="JSON file to write")
    parser.add_argument("--bound", type=float, default=1.02)
    parser.add_argument("--require", action="store_true")
    options = parser.parse_args()
    options.perf = benchmark.find_program(options, "oriel-perf", options.perf)
    return options


def run(options, registration, sizes, counts, calls, launches):
    """Runs oriel-perf once, its table on standard output. Returns its exit status and its JSON."""
    with tempfile.TemporaryDirectory(prefix="oriel-gpu-peers-") as directory:
        path = pathlib.Path(directory) / "run.json"
        command = [options.perf, "all_reduce", "--backend", options.backend,
                   "--ranks", str(options.ranks),
                   "-d", options.types, "--sizes", ",".join(map(str, sizes)),
                   "-n", str(calls), "-G", str(launches if options.backend == "cuda" else 0),
                   "--rounds", str(options.rounds), "--jitter", str(options.jitter),
                   "--register", registration, "--against", options.against, "-J", str(path)]
        if counts:
            command += ["--counts", ",".join(map(str, counts))]
        if options.lib:
            command += ["--lib", options.lib]
        status = subprocess.run(command, check=False).returncode
        document = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return status, document


def placements(runs):
    for one in runs:
        for case in one["cases"]:
            for placement in ("out_of_place", "in_place"):
                if placement in case:
                    yield one, case, placement, case[placement]


def results_of(runs):
    return [benchmark.result("all_reduce",
                             {"library": whose, "bytes": case["bytes"], "type": case["type"],
                              "ranks": one["ranks"], "placement": placement,
                              "registration": one["ours"]["registration"]},
                             "us", median=result[whose]["median_us"])
            for one, case, placement, result in placements(runs) for whose in ("ours", "theirs")]


def main():
    options = parse_options()
    runs, failed = [], False
    small = [size for size in SMALL if size <= options.most]
    large = [size for size in LARGE if size <= options.most]
    odd = [count for count in ODD_COUNTS if 4 * count <= options.most]
    for registration in options.register.split(","):
        # Long calls: a few suffice, since the host's share of their time is small.
        for sizes, counts, calls, launches in ((small, odd, 20, 2), (large, [], 5, 1)):
            if not sizes:
                continue
            status, document = run(options, registration, sizes, counts, calls, launches)
            failed = failed or status != 0
            if document is not None:
                runs.append(document)
    benchmark.write_results(options.out, results_of(runs), runs=runs)
    above = 0
    for one, case, placement, result in placements(runs):
        high = result["ratio"]["high"]
        if high > options.bound:
            above += 1
            print(f"# above {options.bound}: {case['bytes']} B {case['type']} {placement} "
                  f"registration {one['ours']['registration']}: {result['ratio']['median']:.3f} "
                  f"[{result['ratio']['low']:.3f}, {high:.3f}]")
    print(f"# {sum(1 for _ in placements(runs))} comparisons, {above} above {options.bound}")
    if failed:
        return 1
    return 3 if above and options.require else 0


if __name__ == "__main__":
    sys.exit(main())
