#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the layout of the sources.

- Includes point downward between modules and between the folders of a module.
- Public headers include nothing of src.
- No two headers share a name, except the two sides of one public concept.
- Folders stay small.
- Tests and fuzz targets lie in the folders of what they test.
- Assembly, threads, reads of environment variables and the arithmetic of rounding stand only where
  they belong."""
import collections
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

# Each module and the modules that it may include; docs/architecture.md says what they hold.
MODULES = {
    "base": set(),
    "boot": {"base"},
    "shadow": {"base"},
    "topo": {"base"},
    "window": {"topo", "boot", "base"},
    "net": {"boot", "base"},
    "kernels": {"base"},
    "comm": {"kernels", "net", "window", "shadow", "topo", "boot", "base"},
    "preload": set(),  # builds separate files, outside the library
}
# The folders of each module, top first: a folder may include the folders after it. Modules that are
# not listed are flat. docs/notes/choices.md says why some folders are not in the design.
FOLDERS = {
    "boot": ["session", "link", "auth"],
    "topo": ["choice", "machine", "sources", "xml", "model"],
    "window": ["registration", "mapping", "memory", "exchange"],
    "net": ["mlx5", "failover", "process", "soft", "fabric", "wire", "copy", "queue"],
    "kernels": ["cuda", "host", "algorithms", "plan", "loops"],
    "comm": ["abi", "group", "communicator", "request", "network", "keys", "paths", "device",
             "monitor"],
}
# Allowed folders below test/<module> that the module itself does not have. Those of DATA_FOLDERS
# have a folder for each machine.
TEST_FOLDERS = {"support", "fixtures", "captured"}
DATA_FOLDERS = {"fixtures", "captured"}
# Folders of test that belong to no module, and their folders.
OTHER_TESTS = {
    "abi": set(), "api": set(), "consumer": {"project"}, "device": set(), "examples": set(),
    "frameworks": set(), "gpu": set(), "info": set(), "nccl_tests": set(), "planted": set(),
    "support": {"catch_v3/catch2", "cuda"}, "tools": set(),
}
MOST_FILES = 30
EXEMPT_FROM_MOST_FILES = {"src/base"}  # holds many unrelated small files

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')
MODULE_LIST = re.compile(r"oriel_add_module\(\s*(\w+)(.*?)\)", re.S)
# Does not match an empty statement, which is a compiler barrier.
ASSEMBLY = re.compile(r"\b(?:asm|__asm__|__asm)\b\s*(?:volatile|__volatile__)?\s*\((?!\s*\"\")")
GETENV = re.compile(r"(?<!secure_)\bgetenv\s*\(")
# Matches starting or detaching a thread. Does not match std::thread::id and the like.
THREAD = re.compile(r"\bstd::j?thread\b(?!::)|\bstd::async\b|\bpthread_(?:create|detach)\s*\("
                    r"|\b\w*thread\w*(?:\.|->)detach\s*\(")
THREADS_START = {"owned_thread.cpp", "system_table.cpp", "system_table.hpp"}  # in src/base
# Matches `(x + unit - 1) / unit` and, with a number, `(x + 127) / 128`.
ROUNDING = re.compile(r"\+\s*(?P<unit>[\w:.>()-]+?)\s*-\s*1\s*\)\s*/\s*(?P=unit)(?!\w)"
                      r"|\+\s*(?P<less>\d+)[uUlL]*\s*\)\s*/\s*(?P<number>\d+)")
ROUNDS = "include/oriel/device/rounding.hpp"
HEADERS = {".h", ".hpp", ".cuh"}


def place_of(parts):
    """Returns (module, folder) for the parts of a path below src; the folder is "" in flat
    modules."""
    if parts[0] != "src" or len(parts) < 3:
        return None
    return parts[1], parts[2] if len(parts) > 3 else ""


def is_of_system(bracket, include):
    """Returns True for <net/if.h> and the like: the C library has a folder net, too."""
    return bracket == "<" and include.startswith("net/") and include.endswith(".h")


def target_of(include, path, root):
    """Returns (module, folder) of an included file, or None for a file outside src."""
    beside = (path.parent / include).resolve()
    if beside.exists() and beside.is_relative_to(root):
        return place_of(beside.relative_to(root).parts)
    parts = include.split("/")
    return place_of(["src", *parts]) if parts[0] in MODULES and len(parts) > 1 else None


def check_include(path, root, number, bracket, include):
    parts = path.relative_to(root).parts
    where = f"{path.relative_to(root)}:{number}"
    if parts[0] in ("src", "include") and ".." in include.split("/")[bracket == '"':]:
        return f'{where}: "{include}" leads out of a folder that it names'
    target = target_of(include, path, root)
    if target is None:
        return None
    if parts[0] == "include":
        return f'{where}: a public header includes "{include}" of src'
    place = place_of(parts)
    if place is None:
        return None
    (module, folder), (other_module, other_folder) = place, target
    if module not in MODULES:
        return None  # check_folders() reports unknown modules
    if other_module != module:
        if other_module in MODULES[module]:
            return None
        return f'{where}: module {module} may not include "{include}" of module {other_module}'
    order = FOLDERS.get(module, [""])
    places = [order.index(one) for one in (folder, other_folder) if one in order]
    if len(places) == 2 and places[0] > places[1]:
        return (f'{where}: folder {module}/{folder} may not include "{include}" of the folder '
                "above it")
    return None


def check_assembly(path, root, number, line):
    inside = path.relative_to(root).parts
    allowed = inside[:4] == ("include", "oriel", "device", "arch")
    for_cpus = inside[:2] == ("src", "kernels") and bool({"host", "loops"} & set(inside))
    device_code = (path.suffix in (".cu", ".cuh") or inside[:3] == ("include", "oriel", "device")
                   or inside[:2] == ("src", "kernels") and not for_cpus)
    if device_code and not allowed and ASSEMBLY.search(line):
        return (f"{path.relative_to(root)}:{number}: assembly belongs in "
                "include/oriel/device/arch")
    return None


def check_environment(path, root, number, line):
    """Finds getenv() in src. A variable may name a program or a file. A process with more rights
    than its user must not take these from the user, and secure_getenv() ignores them there."""
    if path.relative_to(root).parts[0] == "src" and GETENV.search(line):
        return f"{path.relative_to(root)}:{number}: the library reads variables by secure_getenv"
    return None


def check_threads(path, root, number, line):
    """Finds threads in src that are not owned threads (base/owned_thread.hpp). An owned thread has
    a name, blocked signals, and an owner that joins it before unloading."""
    name = path.relative_to(root)
    if name.parts[0] != "src" or name.parts[1] == "base" and name.name in THREADS_START:
        return None
    if THREAD.search(line.split("//")[0]):
        return f"{name}:{number}: the library starts threads by base/owned_thread.hpp"
    return None


def check_rounding(path, root, number, line):
    """Finds roundings up that are written out. A mistake in one is hard to see."""
    name = path.relative_to(root)
    if name.parts[0] not in ("src", "include", "tools") or str(name) == ROUNDS:
        return None
    found = ROUNDING.search(line.split("//")[0])
    if found and (found["unit"] or int(found["less"]) + 1 == int(found["number"])):
        return (f"{name}:{number}: round by base/alignment.hpp, in device code by "
                "device/rounding.hpp")
    return None


def check_cmake(path, root):
    findings = []
    for module, body in MODULE_LIST.findall(path.read_text()):
        words = body.split()
        named = words[words.index("MODULES") + 1:] if "MODULES" in words else []
        for other in named:
            if other.isupper():
                break
            if other not in MODULES.get(module, set()):
                findings.append(
                    f"{path.relative_to(root)}: module {module} may not link to {other}")
    return findings


def check_test_folder(name):
    """Returns a finding if a file of test lies in a folder that nothing of src has."""
    folders = list(name.parts[1:-1])
    is_fuzz = folders[:1] == ["fuzz"]
    if is_fuzz:
        folders = folders[1:]
        if not folders or folders[0] == "corpus" and len(folders) == 2:
            return None
    if not folders:
        return f"{name} lies in no folder of test"
    first, below = folders[0], folders[1:]
    if first not in MODULES:
        if is_fuzz or first not in OTHER_TESTS:
            return f"{name}: {first} is no module and not in the tables of tools/check_modules.py"
        if below and "/".join(below) not in OTHER_TESTS[first]:
            return f"{name}: test/{first} has no folder '{'/'.join(below)}'"
        return None
    folder = below[0] if below else ""
    if folder not in FOLDERS.get(first, [""]) and (is_fuzz or folder not in TEST_FOLDERS):
        return f"{name}: src/{first} has no folder '{folder}'"
    if len(below) > (2 if folder in DATA_FOLDERS else 1):
        return f"{name}: the folder lies too deep"
    return None


def check_folders(names):
    """Finds files in folders missing from the tables, and folders with too many files."""
    findings = set()
    count = collections.Counter(str(name.parent) for name in names)
    for name in names:
        parts = name.parts
        if parts[0] not in ("src", "test") or parts[-1] == "CMakeLists.txt":
            continue
        if len(parts) == 2 and parts[0] == "src":
            if name.suffix in lint.SOURCE_SUFFIXES:
                findings.add(f"{name} lies in no module")
        elif parts[0] == "src":
            module, folder = place_of(parts)
            if module not in MODULES:
                findings.add(f"src/{module} is not a module of the table in tools/check_modules.py")
            elif folder not in FOLDERS.get(module, [""]) or len(parts) > 4:
                findings.add(f"{name.parent} is not a folder of the table in "
                             "tools/check_modules.py")
        else:
            findings.add(check_test_folder(name))
    for folder, files in count.items():
        if folder.split("/")[0] in ("src", "test") and files > MOST_FILES:
            if folder not in EXEMPT_FROM_MOST_FILES:
                findings.add(f"{folder} holds {files} files, more than {MOST_FILES}")
    return sorted(finding for finding in findings if finding)


def are_siblings(one, other):
    """Returns True if two headers of one name are two sides of one public concept. Examples are
    `window.hpp` for the host and `device/window.hpp` for kernels, or a concept of `device` and its
    instructions in `device/arch`."""
    public = one.parts[0] == "include" and other.parts[0] == "include"
    return public and (one.parent == other.parent.parent or other.parent == one.parent.parent)


def check_names(names):
    findings = []
    named = collections.defaultdict(list)
    for name in names:
        # catch_v3 replaces a header of Catch2 under the same name.
        if name.suffix in HEADERS and "catch_v3" not in name.parts:
            named[name.name].append(name)
    for name, places in sorted(named.items()):
        for index, place in enumerate(places):
            findings += [f"{place}: {other} has the same name" for other in places[:index]
                         if not are_siblings(place, other)]
    return findings


def check(root):
    findings = []
    for path in lint.sources(root):
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
            include = INCLUDE.match(line)
            if include and not is_of_system(*include.groups()):
                findings.append(check_include(path, root, number, *include.groups()))
            findings.append(check_assembly(path, root, number, line))
            findings.append(check_environment(path, root, number, line))
            findings.append(check_threads(path, root, number, line))
            findings.append(check_rounding(path, root, number, line))
    files = lint.tracked_files(root)
    for path in files:
        if path.name == "CMakeLists.txt" and path.parent.parent == root / "src":
            findings += check_cmake(path, root)
    names = [path.relative_to(root) for path in files]
    findings += check_folders(names) + check_names(names)
    return [finding for finding in findings if finding]


CLEAN = {
    "src/base/fd.hpp": '#include <vector>\n#include "base/try.hpp"\n#include "oriel/error.hpp"\n',
    "src/boot/link/a.cpp": '#include <net/if.h>\n#include "boot/auth/secret.hpp"\n',
    "src/kernels/host/a.hpp": 'asm volatile("stmxcsr %0" : "=m"(x));\n',
    "include/oriel/device/keep.hpp": 'asm("" : "+x"(product));\n',
    "include/oriel/keep.hpp": "",
    "tools/perf/a.cpp": 'const char* value = std::getenv("HOME");\n',
    "src/base/s.cpp": 'const char* value = ::secure_getenv("ORIEL_NIC_PROGRAM");\n',
    "src/comm/group/run.cpp": '#include "window/memory/m.hpp"\n#include "comm/device/d.hpp"\n',
    "src/comm/CMakeLists.txt": "oriel_add_module(comm SOURCES run.cpp MODULES window base)\n",
    "include/oriel/device/arch/cuda.cuh": 'asm volatile("nanosleep.u32 1;");\n',
    "test/comm/group/comm_test.cpp": '#include "comm/abi/comm.hpp"\n',
    "test/comm/support/held.hpp": "",
    "test/fuzz/net/wire/wire_fuzz.cpp": "",
    "test/fuzz/input.hpp": "",
    "test/fuzz/corpus/nic_ring/1": "",
    "test/CMakeLists.txt": "",
    "test/topo/fixtures/hgx-8/a.xml": "",
    "test/support/catch_v3/catch2/catch.hpp": "",
    "test/shadow/s_test.cpp": "#include <net/if.h>\n#include <comm/abi/comm.hpp>\n",
    "src/exports.cmake": "",
    "src/base/owned_thread.cpp": "sys().pthread_create(&thread, nullptr, enter, argument);\n",
    "src/comm/group/processors.cpp": "n = std::thread::hardware_concurrency();  // std::thread\n",
    "test/base/t_test.cpp": "std::thread([] {}).join();\n",
    "include/oriel/device/rounding.hpp": "return (value + unit - 1) / unit;\n",
    "src/base/half.hpp": "x = (ranks + 1) / 3;  // (x + unit - 1) / unit\ny = (a - 1) / a;\n",
    "test/base/r_test.cpp": "CHECK(divide_up(a, b) == (a + b - 1) / b);\n",
    **{f"src/base/b{i}.hpp": "" for i in range(31)},
}
PLANTS = [
    ({"src/base/fd.hpp": '#include "boot/link/group.hpp"\n'}, "module base may not include"),
    ({"src/window/memory/w.cpp": '#include "comm/abi/comm.hpp"\n'},
     "module window may not include"),
    ({"src/kernels/plan/k.cu": '#include "boot/link/group.hpp"\n'},
     "module kernels may not include"),
    ({"src/base/a.cpp": '#include "../boot/link/b.hpp"\n', "src/boot/link/b.hpp": ""},
     "module base may not include"),
    ({"src/boot/auth/a.cpp": '#include "boot/link/b.hpp"\n'}, "folder boot/auth may not include"),
    ({"src/net/wire/a.cpp": '#include "../soft/b.hpp"\n', "src/net/soft/b.hpp": ""},
     "folder net/wire may not include"),
    ({"include/oriel/window.hpp": '#include "window/memory/m.hpp"\n'}, "a public header includes"),
    ({"src/net/wire/a.cpp": "#include <comm/abi/config.hpp>\n"}, "module net may not include"),
    ({"src/base/a.cpp": "#include <boot/link/group.hpp>\n"}, "module base may not include"),
    ({"src/base/a.cpp": "#include <net/wire/wire.hpp>\n"}, "module base may not include"),
    ({"src/boot/auth/a.cpp": "#include <boot/link/b.hpp>\n"}, "folder boot/auth may not include"),
    ({"include/oriel/window.hpp": "#include <window/memory/m.hpp>\n"}, "a public header includes"),
    ({"src/base/a.cpp": '#include "base/../comm/abi/abi_entry.hpp"\n'}, "leads out of a folder"),
    ({"src/base/a.cpp": "#include <../src/comm/abi/comm.hpp>\n"}, "leads out of a folder"),
    ({"src/a.cpp": '#include "comm/abi/comm.hpp"\n'}, "src/a.cpp lies in no module"),
    ({"src/attic/a.cpp": '#include "base/fd.hpp"\n'}, "src/attic is not a module"),
    ({"src/net/attic/a.cpp": ""}, "src/net/attic is not a folder"),
    ({"src/net/a.cpp": ""}, "src/net is not a folder"),
    ({"src/net/wire/deep/a.cpp": ""}, "src/net/wire/deep is not a folder"),
    ({"test/net/a_test.cpp": ""}, "src/net has no folder ''"),
    ({"test/net/attic/a_test.cpp": ""}, "src/net has no folder 'attic'"),
    ({"test/fuzz/net/a_fuzz.cpp": ""}, "src/net has no folder ''"),
    ({"test/fuzz/net/attic/a_fuzz.cpp": ""}, "src/net has no folder 'attic'"),
    ({"test/fuzz/net/wire/deep/a_fuzz.cpp": ""}, "lies too deep"),
    ({"test/fuzz/attic/a_fuzz.cpp": ""}, "attic is no module"),
    ({"test/fuzz/shadow/attic/a_fuzz.cpp": ""}, "src/shadow has no folder 'attic'"),
    ({"test/attic/a_test.cpp": ""}, "attic is no module"),
    ({"test/a_test.cpp": ""}, "test/a_test.cpp lies in no folder"),
    ({"test/shadow/attic/a_test.cpp": ""}, "src/shadow has no folder 'attic'"),
    ({"test/net/soft/deep/a_test.cpp": ""}, "lies too deep"),
    ({"test/comm/support/deep/held.hpp": ""}, "lies too deep"),
    ({"test/topo/fixtures/hgx-8/deep/a.xml": ""}, "lies too deep"),
    ({"test/gpu/deep/a_test.cpp": ""}, "test/gpu has no folder 'deep'"),
    ({f"test/gpu/t{i}.cpp": "" for i in range(31)}, "test/gpu holds 31 files"),
    ({"src/net/wire/queue.hpp": "", "src/net/soft/queue.hpp": ""}, "has the same name"),
    ({"include/oriel/window.hpp": "", "src/window/memory/window.hpp": ""}, "has the same name"),
    ({"include/oriel/wait.hpp": "", "include/oriel/device/arch/wait.hpp": ""}, "has the same name"),
    ({"src/kernels/cuda/k.cuh": 'asm volatile ("ld.acquire");\n'}, "assembly belongs in"),
    ({"src/base/s.cpp": 'const char* value = ::getenv("ORIEL_NIC_PROGRAM");\n'},
     "by secure_getenv"),
    ({"src/base/a.cpp": "std::thread thread(run);\n"}, "by base/owned_thread"),
    ({"src/comm/monitor/m.hpp": "  std::jthread thread_;\n"}, "by base/owned_thread"),
    ({"src/net/soft/a.cpp": "if (pthread_create(&t, 0, run, 0) != 0) return;\n"},
     "by base/owned_thread"),
    ({"src/net/soft/a.cpp": "thread_.detach();\n"}, "by base/owned_thread"),
    ({"src/kernels/plan/p.cpp": "x = (bytes + cut.piece - 1) / cut.piece;\n"}, "round by"),
    ({"tools/perf/k.cu": "x = (count + kThreads - 1) / kThreads;\n"}, "round by"),
    ({"src/kernels/cuda/k.cuh": "x = (count + Buffer::kElements-1)/Buffer::kElements;\n"},
     "round by"),
    ({"src/net/wire/w.cpp": "x = (bytes + 127) / 128 * 128;\n"}, "round by"),
    ({"include/oriel/device/b.hpp": "x = (lines + size() - 1) / size() + 1;\n"}, "round by"),
    ({"src/shadow/CMakeLists.txt": "oriel_add_module(shadow SOURCES a.cpp MODULES base window)\n"},
     "module shadow may not link to window"),
]

if __name__ == "__main__":
    lint.main("layout of the sources", check, CLEAN, PLANTS)
