#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that each C++ file of src/ and tools/ includes what it uses, directly or through headers.
A file needs a header for every standard name in the table below. It also needs a declaration of
every type, function and macro of ours that it uses.

Some presets compile several files of a module together (ORIEL_UNITY), so a file that forgets an
include may profit from the file before it. This check compares names and does not parse C++. Only a
build without ORIEL_UNITY finds a missing header of a rarer standard name or of an overload."""
import functools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

CHECKED = ("src", "tools")
# Folders in which #include "..." is searched, besides the file's own folder.
FOLDERS = ("include", "src", "tools")
# Checked standard names, by the header that each one requires.
NAMES = {
    "algorithm": "sort stable_sort find_if any_of all_of none_of count_if min_element max_element "
                 "clamp lower_bound upper_bound copy_if remove_if binary_search nth_element",
    "array": "array",
    "atomic": "atomic atomic_ref atomic_thread_fence",
    "bit": "bit_cast countr_zero countl_zero has_single_bit bit_ceil bit_width popcount",
    "cctype": "isdigit isspace isalnum tolower toupper",
    "charconv": "from_chars to_chars",
    "chrono": "chrono",
    "condition_variable": "condition_variable",
    "coroutine": "coroutine_handle suspend_always suspend_never",
    "cstring": "memcpy memcmp memset memmove strlen strcmp",
    "cstdlib": "getenv strtoull strtol strtod",
    "deque": "deque",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream",
    "functional": "function",
    "future": "future promise async",
    "iostream": "cout cerr cin",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this",
    "mutex": "mutex lock_guard unique_lock scoped_lock call_once once_flag",
    "numeric": "accumulate iota gcd lcm",
    "optional": "optional nullopt make_optional",
    "random": "random_device mt19937 mt19937_64",
    "set": "set multiset",
    "shared_mutex": "shared_mutex shared_lock",
    "span": "span as_bytes as_writable_bytes",
    "sstream": "ostringstream istringstream stringstream",
    "string": "string to_string stoi",
    "string_view": "string_view",
    "thread": "thread jthread this_thread",
    "tuple": "tuple tie make_tuple",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "variant": "variant get_if holds_alternative monostate",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}
# Headers that also provide the names of other headers, in libstdc++, fmt, nlohmann_json and CLI11.
BRINGS = {
    "condition_variable": ("chrono",),
    "filesystem": ("string", "string_view", "chrono", "memory"),
    "fstream": ("string", "string_view"),
    "functional": ("tuple", "array", "vector", "unordered_map"),
    "future": ("mutex", "memory", "chrono"),
    "iostream": ("string", "string_view"),
    "map": ("tuple",),
    "memory": ("tuple",),
    "mutex": ("chrono", "tuple"),
    "random": ("string", "vector", "numeric"),
    "shared_mutex": ("chrono",),
    "span": ("array",),
    "sstream": ("string", "string_view"),
    "string": ("string_view",),
    "thread": ("chrono", "tuple"),
    "unordered_map": ("tuple",),
    "fmt/format.h": ("string", "string_view", "memory"),
    "nlohmann/json.hpp": ("algorithm", "array", "functional", "map", "memory", "numeric", "string",
                          "string_view", "tuple", "vector", "cstring", "optional", "filesystem"),
    "CLI/CLI.hpp": ("algorithm", "functional", "fstream", "iostream", "map", "memory", "set",
                    "sstream", "string", "tuple", "vector", "cstring", "optional"),
}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+(["<])([^">]+)[">]', re.M)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.S)
STANDARD = re.compile(r"\bstd::(\w+)")
FORMAT = re.compile(r"\bfmt::\w+")
# TYPE matches types of two or more words, SHORT_TYPE types of one word. The latter are checked only
# if a single file defines them.
TYPE = re.compile(r"\b[A-Z][a-z0-9]+(?:[A-Z][A-Za-z0-9]*)+\b")
SHORT_TYPE = re.compile(r"(?<![.>\w])(?<!->)[A-Z][a-z0-9]+\b(?!::)")
DEFINED = re.compile(r"\b(?:class|struct|enum class|enum|union|using|concept)\s+"
                     r"(?:\[\[\w+\]\]\s+|alignas\([^)]*\)\s+|ORIEL_\w+\s+)*([A-Z]\w+)")
# Matches definitions at the start of a line: code in namespaces is not indented.
SHORT_DEFINED = re.compile(r"^(?:template\s*<[^>]*>\s*)?"
                           r"(?:class|struct|enum class|enum|union|using)\s+"
                           r"(?:\[\[\w+\]\]\s+|alignas\([^)]*\)\s+)*([A-Z][a-z0-9]+)\b", re.M)
# Also matches nested types, forward declarations and template parameters.
ANY_SHORT = re.compile(r"\b(?:class|struct|enum|union|using|typename)\s+([A-Z][a-z0-9]+)\b")
FUNCTION = re.compile(r"^(?![#}/])(?!return\b)[\w:<>,&* \[\]]*[\w>&*] [&*]?(\w+)\(", re.M)
# Matches calls of functions with two or more words, and of the short sys(), log() and cuda().
CALL = re.compile(r"(?<![\w.>:])(?:(?!std::|fmt::)[a-z]\w*::)*(\w+_\w+|sys|log|cuda)\(")
MACRO = re.compile(r"\bORIEL_\w+\b")
MACRO_DEFINED = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(ORIEL_\w+)", re.M)


class Tree:
    def __init__(self, root):
        self.root = root
        self.files = [path for path in lint.sources(root)
                      if path.relative_to(root).parts[0] in CHECKED + ("include",)]
        self.code = {}
        self.headers = {}  # file -> (our headers, other headers) that it includes
        for path in self.files:
            text = path.read_text()
            ours, others = set(), set()
            for kind, name in INCLUDE.findall(text):
                found = next((folder / name for folder in
                              [path.parent, *(root / folder for folder in FOLDERS)]
                              if (folder / name).is_file()), None)
                if kind == '"' and found:
                    ours.add(found.resolve())
                else:
                    others.add(name)
            self.headers[path.resolve()] = ours, others
            code = COMMENT_OR_TEXT.sub(" ", INCLUDE.sub(" ", text))
            self.code[path.resolve()] = code
        self.types = self.where(DEFINED)
        every = self.where(ANY_SHORT)
        self.short_types = {name: places for name, places in self.where(SHORT_DEFINED).items()
                            if len(every.get(name, places)) == 1}
        self.functions = self.where(FUNCTION)
        self.macros = self.where(MACRO_DEFINED)
        self.calls = {path: set(CALL.findall(code)) for path, code in self.code.items()}

    def where(self, pattern):
        """Returns {name that the pattern finds: files with that name}."""
        found = {}
        for path, code in self.code.items():
            for name in set(pattern.findall(code)):
                found.setdefault(name, set()).add(path)
        return found

    @functools.lru_cache(maxsize=None)
    def reached(self, path):
        """Returns (our files, other headers) that `path` includes directly or not; `path` too."""
        ours, others, left = {path}, set(), [path]
        while left:
            mine, theirs = self.headers.get(left.pop(), (set(), set()))
            others |= theirs
            left += mine - ours
            ours |= mine
        return ours, others


def check(root):
    tree = Tree(root.resolve())
    findings = []
    for path, code in tree.code.items():
        name = path.relative_to(tree.root)
        if path.suffix not in (".cpp", ".hpp") or name.parts[0] not in CHECKED:
            continue
        ours, others = tree.reached(path)
        brought = set(others)
        for header in others:
            brought.update(BRINGS.get(header, ()))
        if FORMAT.search(code) and not any(header.startswith("fmt/") for header in others):
            findings.append(f"{name}: fmt:: without <fmt/format.h>")
        for word in sorted(set(STANDARD.findall(code))):
            header = HEADER_OF.get(word)
            if header and header not in brought:
                findings.append(f"{name}: std::{word} without <{header}>")
        here = set().union(*(tree.calls.get(file, ()) for file in ours - {path}))
        for words, known in ((set(TYPE.findall(code)), tree.types),
                             (set(SHORT_TYPE.findall(code)), tree.short_types),
                             (set(MACRO.findall(code)), tree.macros),
                             (tree.calls[path] - here, tree.functions)):
            for word in sorted(words):
                places = known.get(word, set())
                headers = sorted(place for place in places if place.suffix == ".hpp")
                if known is tree.functions and re.search(rf"\b{word}\b(?!\()", code):
                    continue  # skips variables that are called
                if headers and not places & ours:
                    findings.append(f"{name}: {word} without {headers[0].relative_to(tree.root)}")
    return sorted(findings)


CLEAN = {
    "src/base/bag.hpp": "#pragma once\n#include <vector>\nstruct BagOfThings {\n"
                        "  std::vector<int> things;\n};\n",
    "src/base/bag.cpp": '#include "base/bag.hpp"\n// std::map, OtherBag\n'
                        'std::vector<int> f(BagOfThings bag) { return bag.things; }\n',
    "src/base/other.hpp": "#pragma once\nstruct OtherBag {};\n",
}
PLANTS = [
    ({**CLEAN, "src/base/a.cpp": "int f(std::vector<int> v) { return v[0]; }\n"},
     "src/base/a.cpp: std::vector without <vector>"),
    ({**CLEAN, "src/base/a.cpp": '#include "base/bag.hpp"\nint f(OtherBag) { return 1; }\n'},
     "src/base/a.cpp: OtherBag without src/base/other.hpp"),
    ({**CLEAN, "src/base/fruit.hpp": "enum class Fruit : int { apple };\n",
      "src/base/a.hpp": "int price_of(Fruit fruit);\n"},
     "src/base/a.hpp: Fruit without src/base/fruit.hpp"),
    ({**CLEAN, "src/base/try.hpp": "#define ORIEL_TRY(x) x\n",
      "src/base/a.cpp": "int f(int x) { return ORIEL_TRY(x); }\n"},
     "src/base/a.cpp: ORIEL_TRY without src/base/try.hpp"),
    ({**CLEAN, "src/base/add.hpp": "int add_all(int a, int b);\n",
      "src/base/a.cpp": "int twice(int x) { return add_all(x, x); }\n"},
     "src/base/a.cpp: add_all without src/base/add.hpp"),
]

if __name__ == "__main__":
    lint.main("includes", check, CLEAN, PLANTS)
