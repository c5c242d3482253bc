#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Prints the tables of docs/performance.md from the raw output of oriel-perf in docs/performance/.

For each number of GPUs, type and registration: size, our time and the opponent's (median over the
rounds, out of place), and the median ratio with its 95 % interval, out of place and in place.
"""
import json
import pathlib
import sys


def rows(paths):
    for path in paths:
        for case in json.loads(path.read_text())["cases"]:
            yield case["bytes"], case


def size_name(size):
    for unit, factor in (("Gi", 2**30), ("Mi", 2**20), ("Ki", 2**10)):
        if size % factor == 0:
            return f"{size // factor} {unit}B"
    return f"{size} B"


def interval(ratio):
    return f"{ratio['median']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]"


def main(folder):
    groups = {}
    for path in sorted(folder.glob("*.json")):
        if "jitter" not in path.stem:
            groups.setdefault(path.stem.rsplit("-", 1)[0], []).append(path)
    worst = (0.0, "")
    for name, paths in groups.items():
        print(f"\n### {name}\n")
        print("| size | Oriel us | NCCL us | ratio out of place | ratio in place |")
        print("|---:|---:|---:|---|---|")
        for size, case in sorted(rows(paths), key=lambda row: row[0]):
            out, inside = case["out_of_place"], case["in_place"]
            for part in (out, inside):
                worst = max(worst, (part["ratio"]["high"], f"{name} {size_name(size)}"))
            print(f"| {size_name(size)} | {out['ours']['median_us']:.2f} | {out['theirs']['median_us']:.2f}"
                  f" | {interval(out['ratio'])} | {interval(inside['ratio'])} |")
    print(f"\nHighest upper bound of a ratio: {worst[0]:.4f} ({worst[1]}).")


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "h200"))
