#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the Markdown tables of docs/notes/all-reduce.md from files that
benchmarks/gpu_peers/measure.py wrote. Measures nothing.

The first table says what was measured, and has the ratios where ranks entered late. Then each
number of ranks, type and registration has a table. It has times in microseconds (median over rounds
of the slowest rank), and the ratio ours / theirs with its 95 % interval. For f32 the table has
figures of another library too, which were recorded elsewhere.
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


def late_cells(cases):
    """Returns the cells of the ratios in the one pass with late entries; empty if none was made."""
    ratios = [(case[placement]["ours"]["jittered_us"] / case[placement]["theirs"]["jittered_us"],
               f"{size_text(size)} {name}")
              for size, case in sorted(cases.items()) for placement, name in NAMES.items()
              if placement in case and "jittered_us" in case[placement]["ours"]]
    if not ratios:
        return []
    most, where = max(ratios)
    return [f"{min(ratios)[0]:.3f}", f"{most:.3f}", where,
            f"{sum(ratio > 1 for ratio, _ in ratios)} of {len(ratios)}"]


def print_rows(head, rows):
    print("| " + " | ".join(head) + " |")
    print("|" + "---|" * len(head))
    for row in rows:
        print("| " + " | ".join(row) + " |")


def print_runs(tables, examples):
    """Prints what was measured in each table, and its ratios in the pass with late entries."""
    print_rows(["GPUs, type, registered", "device", "opponent", "rounds", "late by up to, us",
                "lowest ratio if late", "highest", "at", "above 1"],
               [[title(key), run["ours"]["devices"][0].split("] ")[-1],
                 version_text(run["theirs"]["version"]), str(run["rounds"]),
                 f"{run['jitter_us']:.0f}", *(late_cells(tables[key]) or [""] * 4)]
                for key, run in sorted(examples.items())])


def title(key):
    ranks, kind, registration = key
    return f"{ranks} GPUs, {kind}, registered: {registration}"


def print_table(key, cases, recorded):
    others = recorded.get(str(key[0]), {}) if key[1] == "f32" else {}
    print(f"\n### {title(key)}\n")
    head = ["bytes"]
    for name in NAMES.values():
        head += [f"ours, {name}", "theirs", "ratio"]
    if others:
        head.append("MSCCL++, recorded elsewhere")
    rows = []
    for size in sorted(cases):
        row = [size_text(size)]
        for placement in NAMES:
            row += cells(cases[size][placement]) if placement in cases[size] else ["", "", ""]
        if others:
            row.append(time_text(others[str(size)]) if str(size) in others else "")
        rows.append(row)
    print_rows(head, rows)


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="as measure.py --out wrote it")
    options = parser.parse_args()
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    tables, examples = collect(options.files)
    print_runs(tables, examples)
    for key in sorted(tables):
        print_table(key, tables[key], recorded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
