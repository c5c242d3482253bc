#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks with clang-tidy 14 the C++ files of src/ and tools/ that a build folder compiles.

check_tidy.py BUILD_DIR. Reading headers takes most of clang-tidy's time. So clang-tidy gets files
that include up to 40 files of a folder with the same compiler flags. If files do not compile
together, because two of them share local names, each half of them is checked apart.
check_includes.py checks that each file includes what it needs.

A file that passed is checked again only after a change of the file, of a header of ours, of its
flags or of .clang-tidy. Marks of files that passed lie under BUILD_DIR/tidy."""
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

CHECKED = ("src", "tools")
FILES_TOGETHER = 40
# The compile commands are for gcc and may have warning options that clang does not know.
EXTRA_ARGUMENTS = ("--quiet", "--extra-arg=-Wno-unknown-warning-option")
DOES_NOT_COMPILE = "[clang-diagnostic-error]"


def clang_tidy():
    for name in ("clang-tidy-14", "clang-tidy"):
        path = shutil.which(name)
        if path and " 14." in subprocess.run([path, "--version"], capture_output=True,
                                             text=True).stdout:
            return path
    sys.exit("tidy: there is no clang-tidy 14")


def digest_of_headers(root):
    digest = hashlib.sha256((root / ".clang-tidy").read_bytes())
    for path in lint.sources(root):
        if path.suffix in (".h", ".hpp"):
            digest.update(str(path).encode() + path.read_bytes())
    return digest.digest()


def arguments_of(entry):
    """Returns a compile command's arguments without the compiler, the source and the output."""
    arguments = shlex.split(entry["command"])[1:]
    if "-o" in arguments:
        at = arguments.index("-o")
        del arguments[at:at + 2]
    return tuple(a for a in arguments if a not in ("-c", entry["file"]))


def compiled_files(entry):
    """Returns the source of a compile command. For a unity source of CMake, which includes several
    files, returns those files."""
    path = pathlib.Path(entry["directory"], entry["file"]).resolve()
    if path.parent.name != "Unity" or not path.exists():
        return [path]
    return [pathlib.Path(name) for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.M)]


def groups_of_files(root, build):
    """Returns {(folder, arguments): {path: digest}} of the files that the build compiles. The
    digest covers the file, its arguments, our headers and .clang-tidy. A file compiled more than
    once appears once."""
    headers = digest_of_headers(root)
    groups, seen = collections.defaultdict(dict), set()
    for entry in json.loads((build / "compile_commands.json").read_text()):
        for path in compiled_files(entry):
            inside = path.is_relative_to(root) and path.relative_to(root).parts[0] in CHECKED
            if inside and path.suffix == ".cpp" and path.exists() and path not in seen:
                seen.add(path)
                folder = pathlib.Path(*path.relative_to(root).parts[:2])
                arguments = arguments_of(entry)
                key = hashlib.sha256(headers + repr((path, arguments)).encode()
                                     + path.read_bytes())
                groups[folder, arguments][path] = key.hexdigest()
    return groups


def batches_of(paths):
    """Splits the paths into lists of nearly equal length, FILES_TOGETHER at most."""
    count = -(-len(paths) // FILES_TOGETHER)
    return [paths[i * len(paths) // count:(i + 1) * len(paths) // count] for i in range(count)]


class Tidy:
    def __init__(self, root, build):
        self.program = clang_tidy()
        self.config = root / ".clang-tidy"
        self.build = build

    def findings_in(self, batch, arguments):
        if len(batch) == 1:
            source = batch[0]
        else:
            name = hashlib.sha256(repr((batch, arguments)).encode()).hexdigest()
            source = self.build / "tidy" / f"{name}.cpp"
            source.write_text("".join(
                f'#include "{path}"  // NOLINT(bugprone-suspicious-include)\n' for path in batch))
        done = subprocess.run([self.program, *EXTRA_ARGUMENTS, f"--config-file={self.config}",
                               str(source), "--", *arguments],
                              capture_output=True, text=True, cwd=self.build)
        findings = sorted(set(re.findall(r"^.*(?:warning|error): .*$", done.stdout, re.M)))
        if len(batch) > 1 and any(DOES_NOT_COMPILE in finding for finding in findings):
            half = len(batch) // 2
            return (self.findings_in(batch[:half], arguments)
                    + self.findings_in(batch[half:], arguments))
        if done.returncode != 0 and not findings:
            findings = [f"{source}: clang-tidy failed: {done.stderr.strip()[-300:]}"]
        for finding in findings:  # prints at once, because a full run takes minutes
            print(finding, flush=True)
        return findings


def check(root, build):
    tidy = Tidy(root, build)
    notes = build / "tidy"
    notes.mkdir(exist_ok=True)
    total = checked = 0
    jobs = []
    for (_, arguments), keys in groups_of_files(root, build).items():
        total += len(keys)
        left = sorted(path for path in keys if not (notes / keys[path]).exists())
        checked += len(left)
        if left:
            jobs += [(batch, arguments, keys) for batch in batches_of(left)]

    def check_batch(job):
        batch, arguments, keys = job
        findings = tidy.findings_in(batch, arguments)
        if not findings:
            for path in batch:
                (notes / keys[path]).touch()
        return findings

    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(check_batch, jobs))
    print(f"tidy: {checked} of {total} files checked, the others have passed before")
    return sorted({finding for findings in results for finding in findings})


# The first two files share a local name.
CLEAN = [
    "namespace {\nconstexpr int kTwo = 2;\n}\nint twice(int x) { return kTwo * x; }\n",
    "namespace {\nconstexpr long kTwo = 2;\n}\nlong twice(long x) { return kTwo * x; }\n",
    "int thrice(int x) { return 3 * x; }\n",
]
PLANTS = [
    ("#include <string>\nint f(std::string text) { return static_cast<int>(text.size()); }\n",
     "performance-unnecessary-value-param"),
    ("#include <string>\n#include <utility>\nstd::size_t g(std::string a) {\n"
     "  std::string b = std::move(a);\n  return a.size() + b.size();\n}\n",
     "bugprone-use-after-move"),
    ("class Counter {\n public:\n  explicit Counter(int count) : count_(count) {}\n\n private:\n"
     "  int count_;\n};\n", "clang-diagnostic-unused-private-field"),
    ("struct Base {\n  virtual ~Base() = default;\n  virtual int h() { return 1; }\n};\n"
     "struct Derived : Base {\n  virtual int h() { return 2; }\n};\n", "modernize-use-override"),
    ("bool same(int x) { return x == x; }\n", "misc-redundant-expression"),
    ("int k(int x) {\n  int y = 0;\n  if (x > 0)\n    y = 1;\n    y = 2;\n  return y;\n}\n",
     "readability-misleading-indentation"),
    ("int broken() { return missing; }\n", DOES_NOT_COMPILE),
]


def findings_in_texts(texts):
    with tempfile.TemporaryDirectory(prefix="oriel-tidy-") as folder:
        root = pathlib.Path(folder)
        shutil.copy(lint.ROOT / ".clang-tidy", root / ".clang-tidy")
        (root / "build").mkdir()
        sources = [root / "src" / "module" / f"f{i}.cpp" for i in range(len(texts))]
        lint.write_tree(root, {str(path): text for path, text in zip(sources, texts)})
        commands = [{"directory": folder, "file": str(path),
                     "command": f"c++ -std=c++20 -Wall -Werror -Wno-restrict -c {path}"}
                    for path in sources]
        (root / "build" / "compile_commands.json").write_text(json.dumps(commands))
        return check(root, root / "build")


def self_test():
    """Checks that nothing is found in clean files and that planted violations are found. Files are
    checked together; the last violation makes this fail, so that files are checked apart."""
    failures = [f"found in clean files: {finding}" for finding in findings_in_texts(CLEAN)]
    for plants in PLANTS[:-1], PLANTS[-2:]:
        findings = findings_in_texts([CLEAN[0]] + [text for text, _ in plants] + [CLEAN[2]])
        failures += [f"not found: {expected}; found instead: {findings}" for _, expected in plants
                     if not any(expected in finding for finding in findings)]
    return failures


def main():
    parser = lint.make_parser(__doc__)
    parser.add_argument("--self-test", action="store_true", help="see that violations are found")
    parser.add_argument("build", nargs="?", type=pathlib.Path, default=lint.ROOT / "build")
    arguments = parser.parse_args()
    findings = self_test() if arguments.self_test else check(lint.ROOT, arguments.build.resolve())
    if arguments.self_test:
        for finding in findings:
            print(finding)
    what = "tidy" + (": self-test" if arguments.self_test else "")
    print(f"{what}: {'ok' if not findings else f'{len(findings)} found'}")
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
