#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Compares Oriel with another libnccl-compatible library on the GPUs of this host.

Measures every collective, and sends and receives in a ring: f32, out of place, with both buffers
registered and with neither. The sizes are every second power of two from 8 B to 512 MiB, and 1 GiB.
Prints a table, and writes every round to a JSON file. Stops before --minutes have passed, and then
lists the missing cases.

Exit status: 0; 1 if a result was wrong, a run failed or something is missing.
"""
import json
import pathlib
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
import benchmark  # noqa: E402

SIZES = [8 << (2 * step) for step in range(14)] + [1 << 30]


def parse_options():
    parser = benchmark.make_parser(__doc__)
    benchmark.add_perf_flags(parser, minutes=9, rounds=7)
    parser.add_argument("--against", required=True, help="the other library")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--register", default="both,none", help="by commas")
    parser.add_argument("--max-ctas", type=int,
                        help="most CTAs of Oriel's kernels (ORIEL_MAX_CTAS; as Oriel chooses)")
    parser.add_argument("--graphs", type=int, default=0, metavar="N",
                        help="launches of a CUDA graph of 20 calls in a round, instead of plain "
                        "calls; the host's time does not count then")
    parser.add_argument("--most", type=benchmark.parse_size, default=1 << 30,
                        help="largest size (1G)")
    options = parser.parse_args()
    options.perf = benchmark.find_program(options, "oriel-perf")
    return options


def run(options, collective, registration, seconds):
    """Returns the JSON of one run of oriel-perf; None if it wrote none or timed out."""
    with tempfile.TemporaryDirectory(prefix="oriel-collectives-") as directory:
        path = pathlib.Path(directory) / "run.json"
        sizes = [str(size) for size in SIZES if size <= options.most]
        command = [options.perf, collective, "--backend", options.backend,
                   "--ranks", str(options.ranks), "--sizes", ",".join(sizes), "--out-of-place",
                   "--rounds", str(options.rounds), "--register", registration,
                   "--against", options.against, "-J", str(path)]
        if options.lib:
            command += ["--lib", options.lib]
        if options.graphs:
            command += ["--cudagraph", str(options.graphs), "--iters", "20"]
        if options.max_ctas:
            command += ["--env", f"ORIEL_MAX_CTAS={options.max_ctas}"]
        try:
            done = subprocess.run(command, check=False, timeout=seconds, capture_output=True,
                                  text=True)
        except subprocess.TimeoutExpired:
            print(f"# {collective}, registered {registration}: not done in {seconds:.0f} s")
            return None
        if done.returncode != 0:
            print(f"# {collective}, registered {registration}: status {done.returncode}\n"
                  f"{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def print_table(collective, registration, cases):
    print(f"\n{collective}, registered: {registration}\n"
          f"{'bytes':>12} {'ours us':>10} {'theirs us':>10} {'theirs/ours':>12} {'busbw GB/s':>11}")
    for case in cases:
        both = case["out_of_place"]
        ours, theirs = both["ours"], both["theirs"]
        print(f"{case['bytes']:>12} {ours['median_us']:>10.2f} {theirs['median_us']:>10.2f} "
              f"{1 / both['ratio']['median']:>12.2f} {ours['busbw_gb_per_s']:>11.2f}", flush=True)


def results_of(collective, registration, options, cases):
    return [benchmark.result(collective, {"library": whose, "bytes": case["bytes"],
                                          "ranks": options.ranks, "registration": registration,
                                          "max_ctas": options.max_ctas,
                                          "graphs": options.graphs},
                             "us", samples=case["out_of_place"][whose]["rounds_us"],
                             median=case["out_of_place"][whose]["median_us"])
            for case in cases for whose in ("ours", "theirs")]


def main():
    options = parse_options()
    end = time.monotonic() + 60 * options.minutes
    results, missing = [], []
    wrong = 0
    for collective in options.collectives.split(","):
        for registration in options.register.split(","):
            left = end - time.monotonic()
            document = run(options, collective, registration, left) if left > 5 else None
            if document is None or not document["cases"]:
                missing.append(f"{collective} registered {registration}")
                continue
            wrong += sum(case["out_of_place"][whose]["wrong"]
                         for case in document["cases"] for whose in ("ours", "theirs"))
            print_table(collective, registration, document["cases"])
            results += results_of(collective, registration, options, document["cases"])
    benchmark.write_results(options.out, results, missing=missing)
    print(f"\n# {len(results) // 2} comparisons, {wrong} wrong elements"
          + (f"; missing: {', '.join(missing)}" if missing else ""))
    return 1 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
