#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Measures every collective, and sends and receives in a ring, on one GPU.

The ranks are 2 and 4 threads of one process. Buffers are registered, calls are out of place and in
CUDA graphs. At 8 B each time is compared with the all-reduce of 8 B; the aim is at most 1.5 times
as long. At 64 MiB each time is compared with a plain copy; the aim is at most 1.25. The copy has as
many CTAs as all ranks together. Its size is the larger of the bytes that all ranks together read
and write. Ends within --minutes, and then lists the missing cases.

Exit status: 0; 1 if a result was wrong, a run failed or something is missing.
"""
# [req:5.23]
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

SMALL, LARGE = 8, 64 << 20
AIMS = {SMALL: 1.5, LARGE: 1.25}
ROUNDS = 5  # copies without a GPU


def parse_options():
    parser = benchmark.make_parser(__doc__)
    benchmark.add_perf_flags(parser, minutes=1.9, rounds=3)
    parser.add_argument("--ranks", default="2,4", help="numbers of ranks, by commas (2,4)")
    options = parser.parse_args()
    options.perf = benchmark.find_program(options, "oriel-perf")
    if options.backend == "cuda":
        options.grid_copy = benchmark.find_program(options, "grid_copy")
    return options


def copy_us(options, ranks, size):
    """Returns microseconds of a plain copy, by as many CTAs as the ranks have in all."""
    if options.backend == "cuda":
        command = [options.grid_copy, "--ranks", str(ranks), "--sizes", str(size)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        return json.loads(done.stdout)["median"]
    source, rounds = bytearray(size), []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        bytes(source)
        rounds.append((time.perf_counter() - begin) * 1e6)
    return statistics.median(rounds)


def run(options, collective, ranks, size, seconds):
    """Returns the only case of a run of oriel-perf; None if the run failed or timed out."""
    with tempfile.TemporaryDirectory(prefix="oriel-loopback-") as directory:
        path = pathlib.Path(directory) / "run.json"
        command = [options.perf, collective, "--threads", "-g", str(ranks), "--sizes", str(size),
                   "--out-of-place", "--rounds", str(options.rounds), "--register", "both",
                   "--backend", options.backend, "-T", "20", "-J", str(path)]
        if options.backend == "cuda":
            command += ["-n", "20", "-G", "5"] if size == SMALL else ["-n", "5", "-G", "2"]
        if options.lib:
            command += ["--lib", options.lib]
        # Makes all ranks share one GPU.
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        try:
            done = subprocess.run(command, check=False, timeout=seconds, capture_output=True,
                                  text=True, env=dict(os.environ, CUDA_VISIBLE_DEVICES=gpu))
        except subprocess.TimeoutExpired:
            return None
        if done.returncode != 0:
            print(f"# {collective}: status {done.returncode}\n{done.stderr[-1000:]}")
            return None
        return json.loads(path.read_text(encoding="utf-8"))["cases"][0]["out_of_place"]["ours"]


def copied_bytes(collective, ranks):
    """Returns the larger of the bytes that all ranks read and write, for buffers of 64 MiB."""
    return LARGE if collective in ("gather", "scatter") else LARGE * ranks


def main():
    options = parse_options()
    end = time.monotonic() + 60 * options.minutes
    rank_numbers = [int(ranks) for ranks in options.ranks.split(",")]
    results, missing, reference, wrong = [], [], {}, 0
    copies = {(ranks, size): copy_us(options, ranks, size)
              for ranks in rank_numbers for size in (LARGE, LARGE * ranks)}
    results += [benchmark.result("copy", {"ranks": ranks, "bytes": size}, "us", median=us)
                for (ranks, size), us in copies.items()]
    print(f"{'collective':>15} {'ranks':>5} {'bytes':>9} {'us':>10} {'beside us':>10} {'ratio':>6}")
    for size in (SMALL, LARGE):
        for ranks in rank_numbers:
            for collective in options.collectives.split(","):
                left = end - time.monotonic()
                found = run(options, collective, ranks, size, left) if left > 2 else None
                if found is None:
                    missing.append(f"{collective} of {ranks} ranks at {size} B")
                    continue
                us = found["median_us"]
                wrong += found["wrong"]
                if size == SMALL and collective == "all_reduce":
                    reference[ranks] = us
                beside = (reference.get(ranks) if size == SMALL else
                          copies[ranks, copied_bytes(collective, ranks)])
                ratio = us / beside if beside else None
                print(f"{collective:>15} {ranks:>5} {size:>9} {us:>10.2f} {beside or 0:>10.2f} "
                      f"{ratio or 0:>6.2f}"
                      + (f"  above {AIMS[size]}" if (ratio or 0) > AIMS[size] else ""),
                      flush=True)
                results.append(benchmark.result(
                    collective, {"ranks": ranks, "bytes": size, "registration": "both"}, "us",
                    samples=found["rounds_us"], median=us, ratio=ratio,
                    beside="all_reduce" if size == SMALL else "copy"))
    benchmark.write_results(options.out, results, missing=missing)
    print(f"# {wrong} wrong elements" + (f"; missing: {', '.join(missing)}" if missing else ""))
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
