#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws pictures of times and bus bandwidths among 4 H200, Oriel beside NCCL: f32, registered
buffers, out of place.

docs/plots/all_reduce.svg shows the all-reduce, from docs/performance/h200-x4.json.
docs/plots/collectives.svg shows the other collectives, from
docs/performance/collectives-graphs-h200-x4.json.
"""
import json
import math
import pathlib
import sys

DOCS = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(DOCS.parent / "benchmarks" / "support"))
import benchmark  # noqa: E402

SERIES = (("theirs", "NCCL 2.28.9", "n"), ("ours", "Oriel", "o"))
RANKS = 4
# Collectives whose larger buffer has a block for each rank: a rank's own block crosses no link.
BLOCKS = ("all_gather", "reduce_scatter", "alltoall", "gather", "scatter")
COLLECTIVES = ("all_gather", "reduce_scatter", "alltoall", "broadcast",
               "reduce", "gather", "scatter", "sendrecv")
# Colours that can be read on white; those for a dark page follow. A reader of SVG that knows no
# media queries shows the first on either.
STYLE = """text{font:13px sans-serif;fill:#6e7681}.t{font-weight:bold}\
.g{stroke:#8b949e;stroke-opacity:.3}
polyline{fill:none;stroke-width:2.5}.o{stroke:#2f81f7;fill:#2f81f7}.n{stroke:#d2762b;fill:#d2762b}
polyline.o,polyline.n{fill:none}text.o,text.n{stroke:none;font-weight:bold}
@media (prefers-color-scheme:dark){text{fill:#9ea7b3}}"""


def read(name):
    return json.loads((DOCS / "performance" / name).read_text(encoding="utf-8"))


def by_size(points):
    return {key: [one[size] for size in sorted(one)] for key, one in points.items()}


def all_reduce_points():
    """series -> [(bytes, us, bus GB/s)], sizes ascending."""
    points = {key: {} for key, _, _ in SERIES}
    for run in read("h200-x4.json")["runs"]:
        if run["ours"]["registration"] != "both":
            continue
        for case in run["cases"]:
            size = case["bytes"]
            if case["type"] == "f32" and size & (size - 1) == 0:
                for key, one in points.items():
                    timed = case["out_of_place"][key]
                    one[size] = (size, timed["median_us"], timed["busbw_gb_per_s"])
    return by_size(points)


def collective_points(name):
    """Returns series -> [(bytes, us, bus GB/s)], with sizes ascending. Bus bandwidth is computed as
    oriel-perf does it."""
    points = {key: {} for key, _, _ in SERIES}
    share = (RANKS - 1) / RANKS if name in BLOCKS else 1
    for result in read("collectives-graphs-h200-x4.json")["results"]:
        case = result["parameters"]
        if result["name"] == name and case["registration"] == "both" and case["ranks"] == RANKS:
            size, us = case["bytes"], result["median"]
            points[case["library"]][size] = (size, us, size / us / 1e3 * share)
    return by_size(points)


def size_text(size):
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size // factor} {unit}"
    return f"{size} B"


class Panel:
    """Axes at a place of the picture. `spans` has left, right, top and bottom; `domain` the least
    and the greatest size. `height_of` maps a number to 0 (bottom) to 1 (top)."""

    def __init__(self, title, spans, domain, height_of):
        self.title, self.domain, self.height_of = title, domain, height_of
        self.left, self.right, self.top, self.bottom = spans

    def x(self, size):
        low, high = map(math.log2, self.domain)
        return self.left + (self.right - self.left) * (math.log2(size) - low) / (high - low)

    def y(self, number):
        return self.bottom - (self.bottom - self.top) * self.height_of(number)

    def axes(self, sizes, ticks):
        out = [f'<text class="t" x="{self.left}" y="{self.top - 18}">{self.title}</text>']
        for tick in ticks:
            at = self.y(tick)
            out.append(
                f'<line class="g" x1="{self.left}" x2="{self.right}" y1="{at:.1f}" y2="{at:.1f}"/>'
                f'<text x="{self.left - 8}" y="{at + 4:.1f}" text-anchor="end">{tick}</text>')
        for size in sizes:
            out.append(f'<text x="{self.x(size):.1f}" y="{self.bottom + 20}" text-anchor="middle">'
                       f"{size_text(size)}</text>")
        return out

    def line(self, css, points, column):
        """The line of a series; `column` is the index of the number in a point."""
        at = " ".join(f"{self.x(point[0]):.1f},{self.y(point[column]):.1f}" for point in points
                      if self.domain[0] <= point[0] <= self.domain[1])
        return f'<polyline class="{css}" points="{at}"/>'


def name_of_series(css, name, x, y):
    return f'<text class="{css}" x="{x}" y="{y}">{name}</text>'


def picture(title, width, height, body):
    head = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
            f'width="{width}" height="{height}" role="img">', f"<title>{title}</title>",
            f"<style>{STYLE}</style>"]
    return "\n".join(head + body) + "</svg>\n"


def draw_all_reduce():
    points, height = all_reduce_points(), 320
    sizes = ([8, 256, 8 << 10, 256 << 10], [1 << 20, 16 << 20, 128 << 20, 1 << 30])
    time = Panel("time, us (less is better)", (62, 412, 52, 262), (sizes[0][0], sizes[0][-1]),
                 lambda us: math.log(us) / math.log(20))
    rate = Panel("bus bandwidth, GB/s (more is better)", (492, 842, 52, 262),
                 (sizes[1][0], sizes[1][-1]), lambda number: number / 400)
    body = []
    for column, panel, labels, ticks, names_at in (
            (1, time, sizes[0], [1, 2, 5, 10, 20], ((230, 120), (330, 226))),
            (2, rate, sizes[1], [0, 100, 200, 300, 400], ((640, 190), (530, 90)))):
        body += panel.axes(labels, ticks)
        for (key, name, css), (x, y) in zip(SERIES, names_at):
            body.append(panel.line(css, points[key], column) + name_of_series(css, name, x, y))
    body.append(f'<text x="62" y="{height - 10}">f32, 4 H200, registered buffers, '
                "ORIEL_MAX_CTAS=128; medians of 9 rounds in alternation; NVLink multicast off for "
                "both</text>")
    return picture("All-reduce among 4 H200: time and bus bandwidth, Oriel beside NCCL", 880,
                   height, body)


def draw_collectives():
    """Two bands of four collectives, each with a row of times above a row of bus bandwidths."""
    height, row = 846, 194
    body = [name_of_series(css, name, x, 20) for (_, name, css), x in zip(SERIES, (110, 56))]
    for index, collective in enumerate(COLLECTIVES):
        left, top = 56 + 212 * (index % 4), 62 + 2 * row * (index // 4)
        points = collective_points(collective)
        time = Panel(f"{collective}, us", (left, left + 166, top, top + 130), (8, 512 << 10),
                     lambda us: math.log(us / 2) / math.log(10))
        rate = Panel(f"{collective}, GB/s", (left, left + 166, top + row, top + row + 130),
                     (512 << 10, 32 << 20), lambda number: number / 350)
        body += time.axes([8, 1 << 10, 128 << 10], [2, 5, 10, 20])
        body += rate.axes([1 << 20, 4 << 20, 16 << 20], [0, 100, 200, 300])
        body += [panel.line(css, points[key], column) for key, _, css in SERIES
                 for column, panel in ((1, time), (2, rate))]
    body += [f'<text x="56" y="{height - 28}">Time (less is better) and bus bandwidth (more is '
             "better) by the bytes of the larger buffer. f32, 4 H200, registered buffers,</text>",
             f'<text x="56" y="{height - 10}">out of place, at most 32 CTAs, graphs of 20 calls, '
             "medians of 7 rounds in alternation</text>"]
    return picture("Eight collectives among 4 H200: time and bus bandwidth, Oriel beside NCCL", 880,
                   height, body)


PICTURES = {"all_reduce.svg": draw_all_reduce, "collectives.svg": draw_collectives}


def main():
    parser = benchmark.make_parser(__doc__)
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit with 1 if a picture is not what the raw file "
                        "gives")
    is_check, status = parser.parse_args().check, 0
    for name, draw in PICTURES.items():
        path = DOCS / "plots" / name
        if not is_check:
            path.write_text(draw(), encoding="utf-8")
            continue
        same = path.exists() and path.read_text(encoding="utf-8") == draw()
        print(f"docs/plots/{name}: " + ("ok" if same else "stale; docs/plots/beside_nccl.py"))
        status = status if same else 1
    return status


if __name__ == "__main__":
    sys.exit(main())
