#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""What the shared library shows the world: only nccl*, pnccl* (always both) and oriel:: symbols, a
dependency on the C and C++ runtimes and nothing else, its name, and a size of at most 15 MB.

check_library.py LIBRARY"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

LARGEST_BYTES = 15_000_000
RUNTIMES = {"libstdc++.so.6", "libgcc_s.so.1", "libc.so.6", "libm.so.6", "libpthread.so.0",
            "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
SONAME = "libnccl.so.2"
EXPORTED = re.compile(r"^(p?nccl\w+|(vtable for |typeinfo for |typeinfo name for )?oriel::.*)$")
# The rooms, which are nobody else's business, and what is nobody's outside its header.
INTERNAL = re.compile(r"^(\w+ for )?oriel::"
                      r"(boot|comm|kernels|net|shadow|topo|window|(\w+::)*detail)::")


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exported_symbols(library):
    for line in output_of("nm", "-D", "-C", "--defined-only", str(library)).splitlines():
        _, kind, name = line.split(" ", 2)
        if kind != "A":  # the version nodes themselves
            yield name.split("@")[0]


def check_symbols(library):
    names = set(exported_symbols(library))
    for name in sorted(names):
        if not EXPORTED.match(name):
            yield f"exports {name}, which is neither nccl*, pnccl* nor oriel::"
        if INTERNAL.match(name):
            yield f"exports {name}, which is internal"
        if name.startswith("nccl") and "p" + name not in names:
            yield f"exports {name} without its twin p{name}"
        if name.startswith("pnccl") and name[1:] not in names:
            yield f"exports {name} without {name[1:]}"
    if not names:
        yield "exports nothing"


def check_dynamic_section(library):
    section = output_of("readelf", "-dW", str(library))
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", section):
        if name not in RUNTIMES:
            yield f"needs {name}, which is neither the C nor the C++ runtime"
    soname = re.search(r"\(SONAME\).*\[(.+)\]", section)
    if not soname or soname.group(1) != SONAME:
        yield f"has the name {soname.group(1) if soname else None}, not {SONAME}"
    if "(TEXTREL)" in section:
        yield "has relocations in its code"


def check(library):
    if not library.exists():
        return [f"{library}: is not there; build it first"]
    findings = [*check_symbols(library), *check_dynamic_section(library)]
    size = os.stat(library).st_size
    if size > LARGEST_BYTES:
        findings.append(f"has {size} bytes, more than {LARGEST_BYTES}")
    return [f"{library}: {finding}" for finding in findings]


def build(folder, source, *flags):
    path = pathlib.Path(folder) / "library.c"
    path.write_text(source)
    library = pathlib.Path(folder) / "libnccl.so.2"
    subprocess.run(["cc", "-shared", "-fPIC", str(path), "-o", str(library),
                    "-Wl,-soname,libnccl.so.2", *flags], check=True)
    return library


def self_test():
    pair = "void ncclA(void){} void pncclA(void){} "
    plants = [
        (pair + "void stray(void){}", [], "exports stray"),
        (pair + "void ncclB(void){}", [], "exports ncclB without"),
        (pair + "void _ZN5oriel7kernels1fEv(void){}", [], "which is internal"),
        (pair + "void pncclB(void){}", [], "exports pncclB without"),
        (pair, ["-Wl,-soname,libother.so"], "has the name"),
        (pair + "char ncclC[16000000] = {1}; char pncclC;", [], "more than 15000000"),
        ("static int hidden;", ["-nostartfiles"], "exports nothing"),
        (pair, ["-Wl,--no-as-needed", "OTHER"], "needs libother.so"),
    ]
    failures = []
    with tempfile.TemporaryDirectory(prefix="oriel-library-") as folder:
        other = pathlib.Path(folder) / "libother.so"
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "/dev/null", "-o", str(other),
                        "-Wl,-soname,libother.so"], check=True)
        failures += check(build(folder, pair))
        for source, flags, expected in plants:
            flags = [str(other) if flag == "OTHER" else flag for flag in flags]
            findings = check(build(folder, source, *flags))
            if not any(expected in finding for finding in findings):
                failures.append(f"not found: {expected!r}; found instead: {findings}")
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    parser.add_argument("library", nargs="?", type=pathlib.Path)
    arguments = parser.parse_args()
    if not arguments.self_test and arguments.library is None:
        parser.error("which library?")
    findings = self_test() if arguments.self_test else check(arguments.library)
    for finding in findings:
        print(finding)
    what = "shared library" + (": self-test" if arguments.self_test else "")
    print(f"{what}: {'ok' if not findings else f'{len(findings)} found'}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
