#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""3.21: an all-reduce of two "nodes" of one machine without direct copies, beside what the stages that
its bytes pass allow by themselves, in the same run.

    nodes_stages.py --perf oriel-perf --stages stage_bench [--ranks 4] [--bytes 64M] [--backend cuda]
                    [--out FILE]

A rank of R sends 2/R of the message: of the part that it reduces for its node one half as sums to the
other node, and of the other half, which it finishes, the result. The stages overlap, so the slowest
of them bounds the whole. They are measured before and after, and the faster time of each counts.
Writes one JSON object. Exit status 77 where there is no GPU for each rank.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile

UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def bytes_of(text):
    return int(text[:-1]) * UNITS[text[-1]] if text[-1] in UNITS else int(text)


def run_stages(options, crossing):
    done = subprocess.run([options.stages, str(options.ranks), str(crossing)], check=True,
                          stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def run_collective(options):
    with tempfile.TemporaryDirectory() as folder:
        out = pathlib.Path(folder) / "perf.json"
        command = [options.perf, "all_reduce", "--sizes", str(options.bytes), "--ranks",
                   str(options.ranks), "--per-node", str(options.ranks // 2), "--backend",
                   options.backend, "--out-of-place", "-n", "4", "--rounds", "9", "--json", str(out)]
        environment = dict(os.environ, ORIEL_DIRECT_COPY="0")
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
        return json.loads(out.read_text())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--perf", required=True)
    parser.add_argument("--stages", required=True)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--bytes", type=bytes_of, default=bytes_of("64M"))
    parser.add_argument("--backend", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--out")
    options = parser.parse_args()

    crossing = options.bytes * 2 // options.ranks
    before = run_stages(options, crossing)
    names = {stage["stage"] for stage in before}
    if options.backend == "cuda" and len(names) < 3:
        print("skipped: no GPU for each rank")
        return 77
    collective = run_collective(options)
    stages = {}
    for stage in before + run_stages(options, crossing):
        stages[stage["stage"]] = min(stage["seconds"], stages.get(stage["stage"], 1e9))
    if options.backend == "host":  # nothing is copied to or from a GPU
        stages = {"wire": stages["wire"]}
    seconds = collective["cases"][0]["out_of_place"]["ours"]["median_us"] / 1e6
    bound = max(stages.values())
    result = {
        "ranks": options.ranks, "bytes": options.bytes, "bytes_a_rank_sends": crossing,
        "backend": options.backend, "wrong": collective["wrong"],
        "stage_seconds": stages, "bound_seconds": bound, "all_reduce_seconds": seconds,
        "part_of_bound": bound / seconds, "perf": collective,
    }
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: value for name, value in result.items() if name != "perf"}))
    return 1 if collective["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
