#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the Markdown tables of docs/notes/all-reduce.md from files that
benchmarks/gpu_peers/measure.py wrote. Measures nothing.

Each number of ranks, type and registration has a table, with the ratio and its 95 % interval. For
f32 the table has figures of another library too, which were recorded elsewhere.
"""
import json
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks" / "support"))
import benchmark  # noqa: E402

RECORDED = pathlib.Path(__file__).resolve().parent / "recorded.json"
NAMES = {"out_of_place": "out of place", "in_place": "in place"}


def size_text(size):
    for shift, unit in ((30, "Gi"), (20, "Mi"), (10, "Ki")):
        if size >= 1 << shift and size % (1 << shift) == 0:
            return f"{size >> shift} {unit}"
    return str(size)


def time_text(microseconds):
    return f"{microseconds:.2f}" if microseconds < 100 else f"{microseconds:.0f}"


def version_text(code):
    return f"{code // 10_000}.{code // 100 % 100}.{code % 100}"


def cells(result):
    ratio = result["ratio"]
    return [time_text(result["ours"]["median_us"]), time_text(result["theirs"]["median_us"]),
            f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"]


def collect(paths):
    """{(ranks, type, registration): {bytes: case}}, and one run as an example of each."""
    tables, examples = {}, {}
    for path in paths:
        for run in json.loads(pathlib.Path(path).read_text(encoding="utf-8"))["runs"]:
            for case in run["cases"]:
                key = (run["ranks"], case["type"], run["ours"]["registration"])
                tables.setdefault(key, {})[case["bytes"]] = case
                examples.setdefault(key, run)
    return tables, examples


def jitter_text(cases, run):
    """Returns the ratios in the one pass with late entries, as text; empty if there was none."""
    ratios = [(case[placement]["ours"]["jittered_us"] / case[placement]["theirs"]["jittered_us"],
               f"{size_text(size)} {name}")
              for size, case in sorted(cases.items()) for placement, name in NAMES.items()
              if placement in case and "jittered_us" in case[placement]["ours"]]
    if not ratios:
        return ""
    worst, where = max(ratios)
    return (f"\nEntered up to {run['jitter_us']:.0f} us late, one pass: ratios from "
            f"{min(ratios)[0]:.3f} to {worst:.3f} ({where}), "
            f"{sum(ratio > 1 for ratio, _ in ratios)} of {len(ratios)} above 1.")


def print_table(key, cases, run, recorded):
    ranks, kind, registration = key
    others = recorded.get(str(ranks), {}) if kind == "f32" else {}
    print(f"\n### {ranks} GPUs, {kind}, registered: {registration}\n")
    print(f"{run['ours']['devices'][0].split('] ')[-1]}; opponent: version "
          f"{version_text(run['theirs']['version'])}; {run['rounds']} alternating rounds. Times in "
          "microseconds, median over rounds of the slowest rank. Ratio ours / theirs with its 95 % "
          "interval.\n")
    head = ["bytes"]
    for name in NAMES.values():
        head += [f"ours, {name}", "theirs", "ratio"]
    if others:
        head.append("MSCCL++, recorded elsewhere")
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for size in sorted(cases):
        row = [size_text(size)]
        for placement in NAMES:
            row += cells(cases[size][placement]) if placement in cases[size] else ["", "", ""]
        if others:
            row.append(time_text(others[str(size)]) if str(size) in others else "")
        print("| " + " | ".join(row) + " |")
    if late := jitter_text(cases, run):
        print(late)


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="as measure.py --out wrote it")
    options = parser.parse_args()
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    tables, examples = collect(options.files)
    for key in sorted(tables):
        print_table(key, tables[key], examples[key], recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
