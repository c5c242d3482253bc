#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Knowledge runs downward: a room includes what stands below it, and public headers include none of
src. Also: assembly only where it belongs, and the same order in the rooms' CMakeLists."""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

# Each room and what it may know; docs/architecture.md says why.
ROOMS = {
    "base": set(),
    "boot": {"base"},
    "shadow": {"base"},
    "topo": {"boot", "base"},
    "window": {"shadow", "topo", "boot", "base"},
    "net": {"window", "shadow", "topo", "boot", "base"},
    "kernels": {"window", "shadow", "base"},
    "comm": {"kernels", "net", "window", "shadow", "topo", "boot", "base"},
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
ROOM_LIST = re.compile(r"oriel_add_room\(\s*(\w+)(.*?)\)", re.S)
# An empty statement is a barrier for the compiler and no assembly.
ASSEMBLY = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile|__volatile__)?\s*\((?!\s*\"\")")


def place_of(path, root):
    """("src", room), ("public", ...), ("device", ...) or ("other", ...)."""
    parts = path.relative_to(root).parts
    if parts[0] == "src" and len(parts) > 2:
        return "src", parts[1]
    if parts[0] == "include":
        return ("device" if "device" in parts else "public"), ""
    return "other", parts[0]


def room_of(include, path, root):
    """The room that an include names, or None for anything outside src."""
    if (path.parent / include).exists():
        target = (path.parent / include).resolve()
        parts = target.relative_to(root).parts if target.is_relative_to(root) else ()
        return parts[1] if len(parts) > 2 and parts[0] == "src" else None
    first = include.split("/")[0]
    return first if first in ROOMS and "/" in include else None


def check_include(path, root, number, include):
    place, room = place_of(path, root)
    target = room_of(include, path, root)
    where = f"{path.relative_to(root)}:{number}"
    if target is None:
        return None
    if place in ("public", "device"):
        return f"{where}: a public header includes \"{include}\" of src"
    if place == "src" and room not in ROOMS:
        return f"{where}: src/{room} is not a room of the table in tools/check_rooms.py"
    if place == "src" and target != room and target not in ROOMS[room]:
        return f"{where}: room {room} may not include \"{include}\" of room {target}"
    return None


def check_assembly(path, root, number, line):
    inside = path.relative_to(root).parts
    allowed = inside[:4] == ("include", "oriel", "device", "arch")
    device_code = (path.suffix in (".cu", ".cuh") or inside[:3] == ("include", "oriel", "device")
                   or inside[:2] == ("src", "kernels") and not {"host", "loops"} & set(inside))
    if device_code and not allowed and ASSEMBLY.search(line):
        return (f"{path.relative_to(root)}:{number}: assembly belongs in "
                "include/oriel/device/arch")
    return None


def check_cmake(path, root):
    findings = []
    for room, body in ROOM_LIST.findall(path.read_text()):
        words = body.split()
        named = words[words.index("ROOMS") + 1:] if "ROOMS" in words else []
        for other in named:
            if other.isupper():
                break
            if other not in ROOMS.get(room, set()):
                findings.append(f"{path.relative_to(root)}: room {room} may not link to {other}")
    return findings


def check(root):
    findings = []
    for path in lint.sources(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            include = INCLUDE.match(line)
            if include and include.group(1) == '"':
                findings.append(check_include(path, root, number, include.group(2)))
            findings.append(check_assembly(path, root, number, line))
    for path in lint.tracked_files(root):
        if path.name == "CMakeLists.txt" and path.parent.parent == root / "src":
            findings += check_cmake(path, root)
    return [finding for finding in findings if finding]


CLEAN = {
    "src/base/fd.hpp": '#include <vector>\n#include "base/try.hpp"\n#include "oriel/error.hpp"\n',
    "src/boot/a.cpp": '#include <net/if.h>\n',
    "src/kernels/host/a.hpp": 'asm volatile("stmxcsr %0" : "=m"(x));\n',
    "include/oriel/device/keep.hpp": 'asm("" : "+x"(product));\n',
    "src/comm/comm.cpp": '#include "window/registration/registry.hpp"\n#include "comm/comm.hpp"\n',
    "src/comm/CMakeLists.txt": "oriel_add_room(comm SOURCES comm.cpp ROOMS window base)\n",
    "include/oriel/device/arch/cuda.cuh": 'asm volatile("nanosleep.u32 1;");\n',
    "test/comm/comm_test.cpp": '#include "comm/comm.hpp"\n',
}
PLANTS = [
    ({"src/base/fd.hpp": '#include "boot/link/rank_group.hpp"\n'}, "room base may not include"),
    ({"src/window/w.cpp": '#include "comm/comm.hpp"\n'}, "room window may not include"),
    ({"src/kernels/k.cu": '#include "boot/link/rank_group.hpp"\n'}, "room kernels may not include"),
    ({"src/base/a.cpp": '#include "../boot/b.hpp"\n', "src/boot/b.hpp": ""},
     "room base may not include"),
    ({"include/oriel/window.hpp": '#include "window/registration/registry.hpp"\n'}, "a public header includes"),
    ({"src/attic/a.cpp": '#include "base/fd.hpp"\n'}, "src/attic is not a room"),
    ({"src/kernels/k.cuh": 'asm volatile ("ld.acquire");\n'}, "assembly belongs in"),
    ({"src/shadow/CMakeLists.txt": "oriel_add_room(shadow SOURCES a.cpp ROOMS base window)\n"},
     "room shadow may not link to window"),
]

if __name__ == "__main__":
    lint.main("direction of includes", check, CLEAN, PLANTS)
