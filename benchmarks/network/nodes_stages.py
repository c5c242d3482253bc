#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
# [req:3.21]
"""Measures an all-reduce among simulated "nodes" on one machine, one rank per node, and its bound.

The bound is the time of the slowest stage that the bytes pass, measured by itself in the same run.
A rank of R sends 2 (R - 1) / R of the message. It sends partial sums to the ranks that finish them,
and the result of its own part to each of them. The stages overlap, so the slowest stage bounds the
whole. Stages are measured before and after; the faster time of each counts. ORIEL_P2P_DISABLE keeps
GPUs from each other's memory, so that their bytes pass the stages. CPU ranks copy from each other's
windows without the wire, so they may be faster than the bound.
Writes a JSON file. Exit status: 0; 1 if a result was wrong; 77 with fewer than two ranks or without
a GPU for each rank.
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402


def run_stages(options, crossing):
    done = subprocess.run([options.stages, "--ranks", str(options.ranks), "--bytes", str(crossing)],
                          check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_collective(options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "perf.json"
        command = [options.perf, "all_reduce", "--sizes", str(options.bytes), "--ranks",
                   str(options.ranks), "--per-node", "1", "--backend",
                   options.backend, "--out-of-place", "-n", "4", "--rounds", "9",
                   "--json", str(out)]
        environment = dict(os.environ, ORIEL_P2P_DISABLE="1")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        return json.loads(out.read_text())


def main():
    parser = benchmark.make_parser(__doc__)
    benchmark.add_build_flag(parser)
    parser.add_argument("--perf", help="the oriel-perf to use (the build's)")
    parser.add_argument("--stages", help="the stage_bench to use (the build's)")
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=benchmark.parse_size, default=64 << 20,
                        help="size of the message (64M)")
    parser.add_argument("--backend", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--out", help="JSON file to write")
    options = parser.parse_args()
    options.perf = benchmark.find_program(options, "oriel-perf", options.perf)
    options.stages = benchmark.find_program(options, "stage_bench", options.stages)

    if options.ranks < 2:
        print("skipped: two nodes need a GPU each")
        return 77
    crossing = options.bytes * 2 * (options.ranks - 1) // options.ranks
    before = run_stages(options, crossing)
    names = {stage["name"] for stage in before}
    if options.backend == "cuda" and len(names) < 3:
        print("skipped: no GPU for each rank")
        return 77
    collective = run_collective(options)
    stages = {}
    for stage in before + run_stages(options, crossing):
        stages[stage["name"]] = min(stage["median"], stages.get(stage["name"], 1e9))
    if options.backend == "host":  # nothing is copied to or from a GPU
        stages = {"wire": stages["wire"]}
    seconds = collective["cases"][0]["out_of_place"]["ours"]["median_us"] / 1e6
    bound = max(stages.values())
    parameters = {"ranks": options.ranks, "bytes": options.bytes, "backend": options.backend}
    results = [benchmark.result("all_reduce", parameters, "s", median=seconds,
                                bytes_a_rank_sends=crossing, part_of_bound=bound / seconds,
                                wrong=collective["wrong"])]
    results += [benchmark.result(f"stage {name}", parameters, "s", median=time)
                for name, time in stages.items()]
    if options.out:
        benchmark.write_results(options.out, results, perf=collective)
    for one in results:
        print(json.dumps(one))
    return 1 if collective["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
