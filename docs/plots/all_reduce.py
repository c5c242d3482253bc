#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/all_reduce.svg from docs/performance/h200-x4.json: time and bus bandwidth of an
all-reduce of f32 in registered buffers among 4 H200, Oriel beside NCCL.
"""
import json
import math
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "benchmarks" / "support"))
import benchmark  # noqa: E402

SOURCE, PICTURE = DOCS / "performance/h200-x4.json", DOCS / "plots/all_reduce.svg"
WIDTH, HEIGHT, TOP, BOTTOM = 880, 320, 52, 262
LEFT, RIGHT = (62, 412), (492, 842)  # x of the two panels
SERIES = (("theirs", "NCCL 2.28.9", "n"), ("ours", "Oriel", "o"))
# Colours that can be read on white; those for a dark page follow. A reader of SVG that knows no
# media queries shows the first on either.
STYLE = """text{font:13px sans-serif;fill:#6e7681}.t{font-weight:bold}.g{stroke:#8b949e;stroke-opacity:.3}
polyline{fill:none;stroke-width:2.5}.o{stroke:#2f81f7;fill:#2f81f7}.n{stroke:#d2762b;fill:#d2762b}
polyline.o,polyline.n{fill:none}text.o,text.n{stroke:none;font-weight:bold}
@media (prefers-color-scheme:dark){text{fill:#9ea7b3}}"""


def measured():
    """series -> [(bytes, us, bus GB/s)], sizes ascending."""
    points = {key: {} for key, _, _ in SERIES}
    for run in json.loads(SOURCE.read_text(encoding="utf-8"))["runs"]:
        if run["ours"]["registration"] != "both":
            continue
        for case in run["cases"]:
            size = case["bytes"]
            if case["type"] == "f32" and size & (size - 1) == 0:
                for key, one in points.items():
                    timed = case["out_of_place"][key]
                    one[size] = (size, timed["median_us"], timed["busbw_gb_per_s"])
    return {key: [one[size] for size in sorted(one)] for key, one in points.items()}


def size_text(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


def panel(title, span, sizes, ticks, height_of, value, points, labels_at):
    """One set of axes with a line for each series. `value` takes the number out of a point."""
    low, high = math.log2(sizes[0]), math.log2(sizes[-1])

    def x(size):
        return span[0] + (span[1] - span[0]) * (math.log2(size) - low) / (high - low)

    def y(number):
        return BOTTOM - (BOTTOM - TOP) * height_of(number)

    out = [f'<text class="t" x="{span[0]}" y="34">{title}</text>']
    for tick in ticks:
        out.append(f'<line class="g" x1="{span[0]}" x2="{span[1]}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
                   f'<text x="{span[0] - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{tick}</text>')
    for size in sizes:
        out.append(f'<text x="{x(size):.1f}" y="{BOTTOM + 20}" text-anchor="middle">{size_text(size)}</text>')
    for (key, name, css), (at_x, at_y) in zip(SERIES, labels_at):
        line = " ".join(f"{x(point[0]):.1f},{y(value(point)):.1f}" for point in points[key]
                        if sizes[0] <= point[0] <= sizes[-1])
        out.append(f'<polyline class="{css}" points="{line}"/>'
                   f'<text class="{css}" x="{at_x}" y="{at_y}">{name}</text>')
    return out


def draw():
    points = measured()
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
           f'height="{HEIGHT}" role="img">',
           "<title>All-reduce among 4 H200: time and bus bandwidth, Oriel beside NCCL</title>",
           f"<style>{STYLE}</style>"]
    out += panel("time, us (less is better)", LEFT, [8, 256, 8 << 10, 256 << 10], [1, 2, 5, 10, 20],
                 lambda us: math.log(us) / math.log(20), lambda point: point[1], points,
                 ((230, 120), (330, 226)))
    out += panel("bus bandwidth, GB/s (more is better)", RIGHT, [1 << 20, 16 << 20, 128 << 20, 1 << 30],
                 [0, 100, 200, 300, 400], lambda rate: rate / 400, lambda point: point[2], points,
                 ((640, 190), (530, 90)))
    out.append(f'<text x="{LEFT[0]}" y="{HEIGHT - 10}">All-reduce of f32, 4 H200, registered buffers, '
               "medians of 9 rounds in alternation; NVLink multicast off for both</text></svg>")
    return "\n".join(out) + "\n"


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit with 1 if the picture is not what the raw file gives")
    if parser.parse_args().check:
        same = PICTURE.exists() and PICTURE.read_text(encoding="utf-8") == draw()
        print("docs/plots/all_reduce.svg: " + ("ok" if same else "stale; docs/plots/all_reduce.py"))
        return 0 if same else 1
    PICTURE.write_text(draw(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
