#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Stands in for oriel-perf under oriel-tune: reads the table as the library does, and reports times
of a model instead of a clock. FAKE_BACKEND and FAKE_RANKS set the simulated machine. FAKE_FAULT
(wrong, error, status) sets the failure of runs with a table. FAKE_LOG names the file that logs the
runs."""
import json
import os
import sys


def model_us(size, plan):
    """Returns the modelled time. Best for small sizes: eager on CPUs, one_shot on few CTAs; then
    two_shot; for large sizes: stream with chunks of 32 KiB, 4 deep."""
    algorithm, ctas, _, chunk, depth, _ = plan
    if algorithm == "eager":
        return 0.9 + size / 1000
    if algorithm == "one_shot":
        return 1 + ctas * 0.01 + size / 1000
    if algorithm == "two_shot":
        return 5 + ctas * 0.01 + size / 10_000
    return 20 + size / 100_000 + abs(chunk - 32768) / 1000 + abs(depth - 4)


def find(table, backend, ranks, size):
    """Returns the plan by the library's rule, but without its limit of CTAs. Takes the nearest
    number of ranks (the larger on a tie), and among its lines the first that is large enough."""
    lines = [line for line in table if line[0] == backend and size <= line[2]]
    lines.sort(key=lambda line: (abs(line[1] - ranks), -line[1], line[2]))
    return lines[0][3] if lines else None


def read_table(path):
    table = []
    with open(path, encoding="utf-8") as file:
        for line in file:
            words = line.partition("#")[0].split()
            if words:
                backend, ranks, most, algorithm, *numbers = words
                known = ("one_shot", "two_shot", "stream", "eager")
                known = known if backend == "host" else known[:3]
                assert len(numbers) == 5 and algorithm in known, line
                table.append((backend, int(ranks), float("inf") if most == "max" else int(most),
                              (algorithm, *map(int, numbers))))
    return table


def value_of(name, otherwise=None):
    arguments = sys.argv
    return arguments[arguments.index(name) + 1] if name in arguments else otherwise


def main():
    backend = os.environ.get("FAKE_BACKEND", "host")
    ranks = int(value_of("--ranks", os.environ.get("FAKE_RANKS", "2")))
    setting = value_of("--env", "")
    sizes = [int(size) for size in value_of("--sizes").split(",")]
    table = read_table(setting.partition("=")[2]) if setting.startswith("ORIEL_TABLE=") else None
    fault = os.environ.get("FAKE_FAULT") if table else None
    if len(set(sizes)) != len(sizes):
        return 3
    cases = []
    for size in sizes:
        us = 1000.0
        if table:
            plan = find(table, backend, ranks, size)
            if plan is None:
                return 4
            us = model_us(size, plan)
        cases.append({"bytes": size, "out_of_place": {
            "ours": {"rounds_us": [us] * int(value_of("--rounds"))}}})
    with open(os.environ["FAKE_LOG"], "a", encoding="utf-8") as log:
        log.write(json.dumps({"sizes": sizes, "checked": "--check" not in sys.argv,
                              "against": value_of("--against"), "table": table is not None}) + "\n")
    document = {"backend": backend, "ranks": ranks, "wrong": 1 if fault == "wrong" else 0,
                "ours": {"devices": ["Fake 1"] * ranks}, "cases": cases}
    if fault == "error":
        document["error"] = "rank 1 fell over"
    with open(value_of("-J"), "w", encoding="utf-8") as file:
        json.dump(document, file)
    return 5 if fault == "status" else 0


if __name__ == "__main__":
    sys.exit(main())
