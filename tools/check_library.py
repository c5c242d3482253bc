#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks the shared libraries of a build, before users load them:

    liboriel.so.0      exports nccl*, pnccl*, oriel_nccl* (three names of one entry) and oriel::,
                       needs the C and C++ runtimes, and has at most 15 MB; its objects call no
                       public entry
    libnccl.so.2       has the same entries, needs liboriel.so.0 of the same build, finds it in its
                       own folder, and has no writable data
    liboriel-audit.so  exports la_* and needs the C runtime

check_library.py FOLDER"""
import collections
import os
import pathlib
import re
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "common"))
from command_line import make_parser  # noqa: E402

ORIEL, NCCL, AUDIT = "liboriel.so.0", "libnccl.so.2", "liboriel-audit.so"
LARGEST_BYTES = 15_000_000
C_RUNTIME = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1",
             "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
RUNTIMES = C_RUNTIME | {"libstdc++.so.6", "libgcc_s.so.1"}
EXPORTED = re.compile(r"^(p?nccl\w+|oriel_nccl\w+"
                      r"|(vtable for |typeinfo for |typeinfo name for )?oriel::.*)$")
# Matches symbols of the modules above base and of `detail` namespaces, which are internal.
INTERNAL = re.compile(r"^(\w+ for )?oriel::"
                      r"(boot|comm|kernels|net|shadow|topo|window|(\w+::)*detail)::")
# Names of the test wires and faults of test/net/support, and of pausing a NIC, which is theirs too.
TEST_TRACES = re.compile(rb"NicFaults|FaultWire|set_faults|StoppedNics|stop_nic|resume_nic"
                         rb"|NicCore4stopEv|NicCore6resumeEv")
PUBLIC_ENTRY = re.compile(r"^p?nccl[A-Z]\w*$")
BUILD = re.compile(r"\b(ORIEL_BUILD_[\w.]+)")
WRITABLE = re.compile(r"^\s*\[\s*\d+\]\s+(\S+)\s+\S+\s+\S+\s+\S+\s+(\S+)\s+\S+\s+WA", re.M)
# Sections that the loader writes and makes read-only (RELRO) before the program starts.
LOADER_SECTIONS = {".dynamic", ".got", ".got.plt", ".relro_padding"}


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def symbols_of(library):
    """Returns {name: (address, version)} of the symbols that a library exports."""
    found = {}
    for line in output_of("nm", "-D", "-C", "--defined-only", str(library)).splitlines():
        address, kind, name = line.split(" ", 2)
        if kind != "A":  # skips the version nodes
            bare, _, version = name.partition("@")
            found[bare] = address, version.lstrip("@")
    return found


def dynamic_section(library):
    """Returns the values by tag, such as {"NEEDED": ["libc.so.6"]}."""
    entries = collections.defaultdict(list)
    listed = output_of("readelf", "-dW", str(library))
    for tag, value in re.findall(r"\((\w+)\)\s+.*\[(.*)\]", listed):
        entries[tag].append(value)
    if "(TEXTREL)" in output_of("readelf", "-dW", str(library)):
        entries["TEXTREL"].append("")
    return entries


def check_dynamic(library, name, needed):
    section = dynamic_section(library)
    for other in section["NEEDED"]:
        if other not in needed:
            yield f"needs {other}, which is none of {', '.join(sorted(needed))}"
    if name and section["SONAME"] != [name]:
        yield f"has the name {(section['SONAME'] or [None])[0]}, not {name}"
    if section["TEXTREL"]:
        yield "has relocations in its code"


def check_twins(symbols):
    for name in sorted(symbols):
        entry = re.sub(r"^(oriel_|p)(?=nccl)", "", name)
        if not entry.startswith("nccl"):
            continue
        for twin in (entry, "p" + entry, "oriel_" + entry):
            if twin not in symbols:
                yield f"exports {name} without its twin {twin}"
            elif symbols[twin][0] != symbols[name][0]:
                yield f"has another body for {twin} than for {name}"


def check_oriel(library):
    if TEST_TRACES.search(library.read_bytes()):
        yield "can inject faults, which only tests may"
    symbols = symbols_of(library)
    for name in sorted(symbols):
        if not EXPORTED.match(name):
            yield f"exports {name}, which is neither nccl*, pnccl* nor oriel::"
        if INTERNAL.match(name):
            yield f"exports {name}, which is internal"
        if name.startswith("oriel_nccl") and not BUILD.match(symbols[name][1]):
            yield f"exports {name} without the number of the build"
    yield from check_twins(symbols)
    if not any(PUBLIC_ENTRY.match(name) for name in symbols):
        yield "exports no entry"
    yield from check_dynamic(library, ORIEL, RUNTIMES)
    size = os.stat(library).st_size
    if size > LARGEST_BYTES:
        yield f"has {size} bytes, more than {LARGEST_BYTES}"


def check_nccl(library, oriel):
    ours, theirs = set(symbols_of(library)), set(symbols_of(oriel))
    for name in sorted(ours):
        if not PUBLIC_ENTRY.match(name):
            yield f"exports {name}, which is no entry"
    for name in sorted(ours ^ {name for name in theirs if PUBLIC_ENTRY.match(name)}):
        yield f"and {ORIEL} do not both export {name}"
    yield from check_dynamic(library, NCCL, {ORIEL})
    section = dynamic_section(library)
    if section["NEEDED"] != [ORIEL]:
        yield f"does not need {ORIEL}"
    if section["RPATH"] != ["$ORIGIN"] or section["RUNPATH"]:
        yield (f"looks for {ORIEL} by RPATH {section['RPATH']} and RUNPATH {section['RUNPATH']}, "
               "not by RPATH $ORIGIN alone")
    wanted = set(BUILD.findall(output_of("readelf", "-VW", str(library))))
    built = set(BUILD.findall(output_of("readelf", "-VW", str(oriel))))
    if len(wanted) != 1 or wanted != built:
        yield f"wants the build {sorted(wanted)}, but {ORIEL} is {sorted(built)}"
    for name, size in WRITABLE.findall(output_of("readelf", "-SW", str(library))):
        if name not in LOADER_SECTIONS and int(size, 16) > 0:
            yield f"has state: section {name}"


def check_audit(library):
    symbols = symbols_of(library)
    for name in sorted({"la_version", "la_objsearch"} - set(symbols)):
        yield f"does not export {name}"
    for name in sorted(symbols):
        if not name.startswith("la_"):
            yield f"exports {name}, which the loader does not ask for"
    yield from check_dynamic(library, None, C_RUNTIME)


def check_calls(sources):
    """Finds calls of public entries in the objects below a folder."""
    for path in sorted(sources.rglob("*.o")):
        for name in output_of("nm", "-u", str(path)).split():
            if PUBLIC_ENTRY.match(name):
                yield f"{path}: calls {name}, which a profiler may replace; call the module instead"


def check(folder):
    paths = {name: folder / name for name in (ORIEL, NCCL, AUDIT)}
    missing = [f"{path}: is not there; build it first" for path in paths.values()
               if not path.exists()]
    if missing:
        return missing
    findings = [f"{paths[ORIEL]}: {finding}" for finding in check_oriel(paths[ORIEL])]
    findings += [f"{paths[NCCL]}: {finding}" for finding in check_nccl(paths[NCCL], paths[ORIEL])]
    findings += [f"{paths[AUDIT]}: {finding}" for finding in check_audit(paths[AUDIT])]
    return findings + list(check_calls(folder.parent / "src"))


def entry(name):
    return (f"void p{name}(void){{}} void {name}(void) __attribute__((alias(\"p{name}\")));"
            f"void oriel_{name}(void) __attribute__((alias(\"p{name}\")));")


def forward(name):
    return (f'__asm__(".text\\n.globl {name},p{name}\\n{name}:p{name}:'
            f'jmp *oriel_{name}@GOTPCREL(%rip)");')


CLEAN = {
    ORIEL: (entry("ncclA"), ["VERSIONS", f"-Wl,-soname,{ORIEL}"]),
    NCCL: (forward("ncclA"), ["-nostdlib", f"-Wl,-soname,{NCCL}", "-Wl,-z,now", ORIEL,
                              "-Wl,--disable-new-dtags,-rpath,$ORIGIN"]),
    AUDIT: ("int la_version(void){return 1;} SHOWN int la_objsearch(void){return 1;}",
            ["-DSHOWN="]),
    "calls.o": ("void ncclish(void); void f(void){ncclish();}", ["-c"]),
}
# Planted violations: (file, more source, more flags, finding). Source and flags follow the clean
# ones.
PLANTS = [
    (ORIEL, "void stray(void){}", [], "exports stray"),
    (ORIEL, "char FaultWire[8];", [], "can inject faults"),
    (ORIEL, "void _ZN5oriel3net7NicCore4stopEv(void){}", [], "can inject faults"),
    (ORIEL, "void ncclB(void){}", [], "exports ncclB without its twin pncclB"),
    (ORIEL, "void pncclB(void){}", [], "exports pncclB without its twin ncclB"),
    (ORIEL, entry("ncclB").replace(" __attribute__((alias(\"pncclB\")))", "{}"), [],
     "has another body for ncclB"),
    (ORIEL, "void _ZN5oriel7kernels1fEv(void){}", [], "which is internal"),
    (ORIEL, "", ["-Wl,-soname,libother.so"], "has the name libother.so"),
    (ORIEL, "char big[16000000] = {1};", [], "more than 15000000"),
    (ORIEL, "", ["-Wl,--no-as-needed", "OTHER"], "needs libother.so"),
    (ORIEL, entry("ncclB"), [], "do not both export ncclB"),
    (NCCL, "void stray(void){}", [], "exports stray"),
    (NCCL, "int counter = 3;", [], "has state: section .data"),
    (NCCL, "static int calls; int ncclB(void){return ++calls;} int pncclB(void){return calls;}", [],
     "has state: section .bss"),
    (NCCL, "", ["-Wl,--enable-new-dtags"], "RUNPATH ['$ORIGIN']"),
    (NCCL, "", ["-Wl,-rpath,/opt"], "looks for liboriel.so.0"),
    (NCCL, "", ["-Wl,--no-as-needed", "OTHER"], "needs libother.so"),
    (AUDIT, "void stray(void){}", [], "exports stray"),
    (AUDIT, "", ["-USHOWN", "-DSHOWN=static"], "does not export la_objsearch"),
    (AUDIT, "", ["-Wl,--no-as-needed", "OTHER"], "needs libother.so"),
    ("calls.o", "int pncclGetVersion(int*); int g(void){return pncclGetVersion(0);}", [],
     "calls pncclGetVersion"),
]


def build(root, name, more_source="", more_flags=(), build_number="1"):
    """Builds a planted file in the folders that check() reads."""
    source, flags = CLEAN[name]
    target = root / ("src" if name.endswith(".o") else "lib") / name
    target.parent.mkdir(exist_ok=True)
    (root / "source.c").write_text(source + more_source)
    versions = root / "versions.map"
    versions.write_text("NCCL_2 { global: *; };\n"
                        f"ORIEL_BUILD_{build_number} {{ global: oriel_nccl*; }};\n")
    place = {"VERSIONS": f"-Wl,--version-script={versions}", ORIEL: str(root / "lib" / ORIEL),
             "OTHER": str(root / "libother.so")}
    flags = [place.get(flag, flag) for flag in [*flags, *more_flags]]
    link = [] if "-c" in flags else ["-shared"]
    subprocess.run(["cc", *link, "-fPIC", str(root / "source.c"), "-o", str(target), *flags],
                   check=True)


def self_test():
    failures = []
    with tempfile.TemporaryDirectory(prefix="oriel-library-") as folder:
        root = pathlib.Path(folder)
        subprocess.run(["cc", "-shared", "-fPIC", "-xc", "/dev/null",
                        "-o", str(root / "libother.so"), "-Wl,-soname,libother.so"], check=True)
        for name in CLEAN:
            build(root, name)
        failures += check(root / "lib")
        for name, source, flags, expected in PLANTS:
            build(root, name, source, flags)
            findings = check(root / "lib")
            if not any(expected in finding for finding in findings):
                failures.append(f"not found: {expected!r}; found instead: {findings}")
            build(root, name)
        build(root, ORIEL, build_number="2")
        if not any("wants the build ['ORIEL_BUILD_1']" in finding
                   for finding in check(root / "lib")):
            failures.append("another build of liboriel.so.0 is not found")
        (root / "lib" / AUDIT).unlink()
        if not any("is not there" in finding for finding in check(root / "lib")):
            failures.append("a missing library is not found")
    return failures


def main():
    parser = make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    parser.add_argument("folder", nargs="?", type=pathlib.Path, help="of the libraries: build/lib")
    arguments = parser.parse_args()
    if not arguments.self_test and arguments.folder is None:
        parser.error("which folder?")
    findings = self_test() if arguments.self_test else check(arguments.folder)
    for finding in findings:
        print(finding)
    what = "shared libraries" + (": self-test" if arguments.self_test else "")
    print(f"{what}: {'ok' if not findings else f'{len(findings)} found'}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
