#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Draws docs/plots/modules.svg: the modules and folders of src, and the way of a call through them.
The modules, their order and their folders come from tools/check_modules.py."""
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "tools"))
from check_modules import FOLDERS, MODULES, lint  # noqa: E402

# Rows of modules, top first; a module may include modules of lower rows only.
ROWS = [["comm"], ["kernels", "net"], ["window"], ["shadow", "topo"], ["boot"], ["base"]]
# The way of a call: the folder of each step, and what happens there.
STEPS = [("comm", "abi", "ncclAllReduce: one guarded call finds the communicator"),
         ("comm", "group", "in a group: the call waits for ncclGroupEnd, which plans all calls"),
         ("comm", "communicator", "checks the arguments and asks for a plan"),
         ("kernels", "plan", "chooses algorithm, CTAs and threads from facts that all ranks share"),
         ("comm", "device", "orders the launch on the user's stream"),
         ("kernels", "cuda", "GPU: one kernel; CPU (kernels/host): the calling thread"),
         ("kernels", "algorithms",
          "loads and stores the windows of other ranks (NVLink, shared memory)"),
         ("net", "queue", "other nodes: the kernel fills a queue, a NIC executes its WQEs")]
WIDTH, LEFT, BOX_TOP, ROW_GAP, LINE = 1000, 20, 20, 16, 19
FONT = 'font-family="sans-serif"'


def folders_of(module):
    return FOLDERS.get(module, [])


def box(module, x, y, width, height):
    lines = [f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="6" fill="#eef2f7" '
             f'stroke="#56687f"/>',
             f'<text x="{x + 12}" y="{y + 22}" font-size="16" font-weight="bold" {FONT}>'
             f"src/{module}</text>"]
    columns = 3 if len(folders_of(module)) > 5 else 2
    per_column = -(-len(folders_of(module)) // columns) if folders_of(module) else 0
    for index, folder in enumerate(folders_of(module)):
        at_x = x + 12 + (index // per_column) * (width - 20) // columns
        at_y = y + 44 + (index % per_column) * LINE
        steps = [str(n) for n, (of, where, _) in enumerate(STEPS, 1)
                 if (of, where) == (module, folder)]
        lines.append(f'<text x="{at_x + 24}" y="{at_y}" font-size="13" {FONT}>{folder}</text>')
        for step in steps:
            lines += [f'<circle cx="{at_x + 10}" cy="{at_y - 5}" r="8.5" fill="#b3441e"/>',
                      f'<text x="{at_x + 10}" y="{at_y - 1}" font-size="11" fill="#ffffff" '
                      f'text-anchor="middle" {FONT}>{step}</text>']
    return lines


def height_of(module):
    count = len(folders_of(module))
    columns = 3 if count > 5 else 2
    return 34 + (-(-count // columns) * LINE + 8 if count else 0)


def arrow(x, y, end):
    return [f'<path d="M{x} {y} V{end - 5}" stroke="#56687f" stroke-width="1.5"/>',
            f'<path d="M{x - 4} {end - 7} L{x} {end} L{x + 4} {end - 7} Z" fill="#56687f"/>']


def draw():
    body, y, width = [], BOX_TOP, 560
    for row, modules in enumerate(ROWS):
        height = max(map(height_of, modules))
        each = (width - ROW_GAP * (len(modules) - 1)) // len(modules)
        for index, module in enumerate(modules):
            body += box(module, LEFT + index * (each + ROW_GAP), y, each, height)
        if row + 1 < len(ROWS):
            body += arrow(LEFT + width // 2, y + height, y + height + ROW_GAP)
        y += height + ROW_GAP
    x = LEFT + width + 30
    body.append(f'<text x="{x}" y="{BOX_TOP + 22}" font-size="16" font-weight="bold" {FONT}>'
                "The way of a call</text>")
    at = BOX_TOP + 50
    for number, (module, folder, text) in enumerate(STEPS, 1):
        body += [f'<circle cx="{x + 9}" cy="{at - 5}" r="8.5" fill="#b3441e"/>',
                 f'<text x="{x + 9}" y="{at - 1}" font-size="11" fill="#ffffff" '
                 f'text-anchor="middle" {FONT}>{number}</text>',
                 f'<text x="{x + 26}" y="{at}" font-size="13" font-weight="bold" {FONT}>'
                 f"{module}/{folder}</text>"]
        words, line = text.split(), ""
        for word in [*words, None]:
            if word is None or len(line) + len(word) > 46:
                at += 17
                body.append(f'<text x="{x + 26}" y="{at}" font-size="13" {FONT}>'
                            f"{line.strip()}</text>")
                line = ""
            line += f" {word}" if word else ""
        at += 26
    height = max(y, at)
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}">\n'
            f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>\n'
            + "\n".join(body) + "\n</svg>\n")


def check_rows():
    """Fails if a module is missing, or may include a module of its own row or above."""
    row_of = {module: row for row, modules in enumerate(ROWS) for module in modules}
    for module, lower in MODULES.items():
        if lower and any(row_of[module] >= row_of[one] for one in lower):
            raise SystemExit(f"modules.py: the row of {module} is wrong")
    missing = set(MODULES) - set(row_of) - {"preload"}
    for module, folder, _ in STEPS:
        if folder not in folders_of(module):
            raise SystemExit(f"modules.py: there is no folder {module}/{folder}")
    if missing:
        raise SystemExit(f"modules.py: no row for {missing}")


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--check", action="store_true",
                        help="write nothing; exit with 1 if the picture differs from the drawing")
    is_check = parser.parse_args().check
    check_rows()
    path = HERE / "modules.svg"
    if is_check:
        same = path.exists() and path.read_text(encoding="utf-8") == draw()
        print("modules.svg: ok" if same
              else "modules.svg: stale; docs/plots/modules.py draws it anew")
        sys.exit(0 if same else 1)
    path.write_text(draw(), encoding="utf-8")


if __name__ == "__main__":
    main()
