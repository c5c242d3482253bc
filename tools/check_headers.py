#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that each public header compiles alone: as C++20, as C99 if it is a C header, and with
nvcc if there is one. A .cuh header is for nvcc only.

Each header has an example in its comments, between "/// ```cpp" and "/// ```", which must compile
in the same languages. Doxygen must warn of nothing. It does not read all declarations: it skips
macros, enums and typedefs of nccl.h. So each macro, type, enum value, variable and field must also
have a comment of its own, or stand in adjacent lines below one.

The comment of each public function must say what its kind of header asks for (ASKED). That can be
whether it is local or collective, whether it blocks, and which threads call it. It can also be its
memory order, its errors, and the units of its sizes. Three places count:

- the function's own comment, or that of a function it refers to: "as put does", "see Memory::load";
- a default: a sentence of the class or the file about all functions, such as "All functions are
  local and do not block". It does not hold for functions that the sentence names as exceptions;
- an item "- name(): ..." in the comment of the file, for functions of that name.

The comment of a function with a size, such as `count`, names the size and the untyped buffers.
Where it names them it says how many elements or bytes each buffer has.

A device function from which wait_until() can be reached says itself whether it blocks: no default
covers it. The check finds words. It cannot see whether they are true."""
import concurrent.futures
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import declarations  # noqa: E402
import lint  # noqa: E402

WARNINGS = ["-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror"]
EXAMPLE = re.compile(r"^//+ ```cpp\n((?:^//.*\n)*?)^//+ ```$", re.M)
DOXYGEN = """
RECURSIVE = YES
FILE_PATTERNS = *.h *.hpp *.cuh
EXTENSION_MAPPING = cuh=C++
GENERATE_HTML = NO
GENERATE_LATEX = NO
GENERATE_XML = YES
JAVADOC_AUTOBRIEF = YES
EXTRACT_STATIC = YES
WARN_IF_UNDOCUMENTED = YES
MACRO_EXPANSION = YES
EXPAND_ONLY_PREDEF = YES
PREDEFINED = ORIEL_DEVICE_FN= ORIEL_DEVICE_SLOW= ORIEL_API= __device__= __host__= __forceinline__=
EXCLUDE_SYMBOLS = *detail*
QUIET = YES
"""
C_HEADERS = {"nccl.h"}

WHERE = "whether it is local or collective"
BLOCKS = "whether it blocks"
THREADS = "which threads call it"
ORDER = "its memory order"
ERRORS = "its errors"
UNITS = "the unit of its size"
# Words that state a fact. The patterns leave out nouns, such as thread blocks or rank order.
WORDS = {
    WHERE: r"\b(?:[Ll]ocal|[Cc]ollective|[Pp]oint-to-point)\b(?! memory| team)",
    BLOCKS: r"\b(?:[Nn]ot|do|does|never|[Mm]ay|nor|[Nn]o function) block(?:s|ing)?\b"
            r"|\b[Bb]locking\b|\b[Bb]locks (?:as|until|while|for|only|at|if|unless)\b"
            r"|\breturns? at once\b",
    THREADS: r"\b(?:[Oo]ne|[Aa]ny|[Ee]ach|[Ee]very|[Aa]ll|[Dd]istinct)(?: other)? threads?\b"
             r"|\b[Tt]hread-safe\b|\b[Tt]hread 0\b|\bof (?:them|which) call\b",
    ORDER: r"\b(?:[Ww]eak|[Rr]elaxed|[Aa]cquires?|[Rr]eleases?|acq_rel|visible)\b"
           r"|\b[Ss]equentially consistent\b"
           r"|\b[Oo]rders? (?:no|nothing|memory|the|this|their|earlier)\b"
           r"|\bhappens? before\b|\baccess(?:es)? no memory\b",
    ERRORS: r"\bErrors?: |\berror code\b",
    UNITS: r"\b(?:bytes|elements|packets|ranks|words|WQEBBs|receives|GiB|operands|units)\b",
}
NON_BLOCKING = re.compile(r"\bnon-blocking\b|\bblocking (?:and non-blocking )?communicators?\b")
# Lists the facts that each kind of header asks for; True: a default of the file or class counts.
ASKED = {
    "C": {WHERE: False, BLOCKS: False, THREADS: True, ERRORS: True, UNITS: True},
    "host": {WHERE: True, BLOCKS: True, THREADS: True, ERRORS: False, UNITS: True},
    "device": {BLOCKS: True, THREADS: True, ORDER: True, UNITS: True},
}
CAN_FAIL = re.compile(r"\b(?:ncclResult_t|Status|Result<)")
# Match the parameters of which a function's comment must give the shape.
SHAPED = re.compile(
    r"\b(?:size_t|u?int\d+_t|int)\s+(\w*(?:count|size|bytes|length|stride|wqebbs))\b")
BUFFER = re.compile(r"\b(?:void|unsigned char)\s*\*\s*(\w+)")
SIZE = re.compile(r"\b(?:size_t|u?int\d+_t|int)\s+\w*?(?:count|size|offset|stride|length)\b")
FUNCTIONS = r"(?:[Ff]unctions?|[Cc]alls?)\b"
# Matches a sentence that holds for all functions of a class or file, but for those that it names.
DEFAULT = re.compile(
    rf"^(?:(?:All|Every|Each|No|The|These)(?: other)? {FUNCTIONS}|.*\bother {FUNCTIONS}"
    rf"|(?:One|Any|Each|Every|All)\b.* (?:one|all|every|each|these|the) {FUNCTIONS}"
    r"|Distinct objects\b|Unless .*comment says otherwise)")
UNIT_DEFAULT = re.compile(r"^(?:Offsets|Sizes|Counts)\b.* in ")
EXCEPTED = {"~": "destructor", "operator=": "assignment"}
# A comment that refers to a function for all that it does not say itself.
REFERENCE = re.compile(
    r"\bas ([\w:]+)(?:\(\))? (?:does|is)\b|\b(?:[Aa]cts|[Bb]ehaves) as (?:the function )?([\w:]+)"
    r"|\b[Ss]ee ([\w:]+\w)(?=[.;)]|$)(?!\.\w)|\b(?:[Cc]alls|[Ee]xecutes) ([\w:]+)|\bas (above)\b")
WAITS = "wait_until"
# Calls, except of groups: threads of a group meet in sync(), which is no wait for another rank.
CALL = re.compile(r"(?<!group\.)(?<!group_\.)\b(\w+)(?:<[^;{}()]*>)?\(")


def find_nvcc():
    candidate = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return candidate if os.access(candidate, os.X_OK) else None


def compile_commands(path, include, nvcc):
    """Yields (language, command) for each way in which the header must compile, without the
    source."""
    if path.suffix != ".cuh":
        yield "C++20", ["c++", "-std=c++20", "-fsyntax-only", *WARNINGS, f"-I{include}", "-xc++"]
    if path.name in C_HEADERS:
        yield "C99", ["cc", "-std=c99", "-pedantic", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
                      f"-I{include}", "-xc"]
    if nvcc:
        # Compiles to PTX, so that the assembly in the header is generated too.
        yield "CUDA", [nvcc, "-std=c++20", "-arch=sm_90", "-ptx", "-o", "/dev/null", "-Werror",
                       "all-warnings", f"-I{include}", "-x", "cu"]


def example_of(path):
    """Returns the code of the header's examples, or None if it has none."""
    found = EXAMPLE.findall(path.read_text(encoding="utf-8"))
    code = "\n".join(re.sub(r"^//+ ?", "", one, flags=re.M) for one in found)
    return code if found else None


def compile_header(job):
    path, include, language, command, folder = job
    name = path.relative_to(include)
    source = pathlib.Path(folder) / (str(name).replace("/", "_") + "." + language + ".src")
    header = f"include/{name}"

    def compile_text(text, failure):
        source.write_text(text)
        done = subprocess.run([*command, str(source)], capture_output=True, text=True)
        if done.returncode == 0:
            return None
        lines = (done.stderr + done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line] or lines
        return f"{header}: {failure} {language}: {errors[0] if errors else '?'}"

    # Includes the header twice: it must have an include guard. The header stands first, so that it
    # compiles alone if it compiles with the example behind it.
    both = f'#include "{name}"\n#include "{name}"\n'
    example = example_of(path)
    if example is not None and compile_text(both + example, "") is None:
        return None
    finding = compile_text(both, "does not compile alone as")
    if finding is not None or example is None:
        return finding or f"{header}: has no example"
    return compile_text(both + example, "its example does not compile as")


def doxygen_findings(include):
    """Yields what Doxygen warns of in the public headers."""
    if not shutil.which("doxygen"):
        yield "headers: there is no doxygen; install the package doxygen"
        return
    with tempfile.TemporaryDirectory(prefix="oriel-doxygen-") as folder:
        options = f"INPUT={include}\nOUTPUT_DIRECTORY={folder}\n{DOXYGEN}"
        done = subprocess.run(["doxygen", "-"], input=options, capture_output=True, text=True)
    for line in done.stderr.splitlines():
        if ": warning: " in line or "error: " in line:
            yield line.replace(f"{include.parent}/", "")


def headers_of(root):
    return [path for path in lint.sources(root) if path.is_relative_to(root / "include")]


def check(root):
    include, headers = root / "include", headers_of(root)
    nvcc = find_nvcc()
    if not nvcc:
        print("headers: skipped with CUDA: there is no nvcc")
    with tempfile.TemporaryDirectory(prefix="oriel-headers-") as folder:
        jobs = [(path, include, language, command, folder) for path in headers
                for language, command in compile_commands(path, include, nvcc)]
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            findings = list(pool.map(compile_header, jobs))
    return [*dict.fromkeys(filter(None, findings)), *check_comments(root),
            *doxygen_findings(include)]


class Header:
    """A header, and what its comments say of its functions."""

    def __init__(self, path, include):
        self.name = str(path.relative_to(include))
        self.folder = path.parent
        reader = declarations.Reader(path.read_text(encoding="utf-8"))
        self.functions, self.symbols = reader.functions, reader.symbols
        for function in self.functions:
            function.header = self
        self.default = reader.file_comment
        parts = path.relative_to(include).parts
        self.kind = "C" if path.name in C_HEADERS else "device" if "device" in parts else "host"

    def item_of(self, function):
        """Returns the item of the file's comment that begins with the function's name, or ""."""
        found = re.search(rf"^- {re.escape(function.name)}\(.*?(?=^- |^$|\Z)", self.default,
                          re.M | re.S)
        return found.group(0) if found else ""


def sentences_of(comment):
    text = " ".join(re.sub(r"```.*?```", " ", comment, flags=re.S).split())
    return re.split(r"(?<=\.)\s+(?:- )?", NON_BLOCKING.sub("", text))


def is_default_for(function, sentence):
    """Returns whether a sentence is about all functions, without this one as an exception."""
    if UNIT_DEFAULT.search(sentence):
        return True
    if not DEFAULT.search(sentence):
        return False
    name = function.name[0] if function.name.startswith("~") else function.name
    exceptions = sentence if " other " in sentence else \
        "".join(re.findall(r"\b(?:but|except)\b.*", sentence))
    return not re.search(rf"\b{re.escape(EXCEPTED.get(name, name))}\b", exceptions)


class Comments:
    """The comments of all headers. says() tells whether they state a fact about a function."""

    def __init__(self, headers):
        self.named = {}  # the commented functions of each name
        for header in headers:
            for function in header.functions:
                if function.comment:
                    self.named.setdefault(function.name, []).append(function)
        self.waiting = self.waiting_names(headers)

    @staticmethod
    def waiting_names(headers):
        """Returns the names of the functions from which WAITS can be reached."""
        calls = {}
        for header in headers:
            for function in header.functions:
                calls.setdefault(function.name, set()).update(CALL.findall(function.body))
        waiting, before = {WAITS}, 0
        while len(waiting) != before:
            before = len(waiting)
            waiting |= {name for name, called in calls.items() if called & waiting}
        return waiting

    def waits(self, function):
        return function.name == WAITS or not self.waiting.isdisjoint(CALL.findall(function.body))

    def referred(self, function):
        """Yields the functions to which a comment refers, and for no comment the namesake."""
        names = ["".join(found).split("::")[-1]
                 for found in REFERENCE.findall(" ".join(function.comment.split()))]
        own = function.header.functions
        if "above" in names:
            before = reversed(own[:own.index(function)])
            yield next((one for one in before if one.comment), function)
        for name in names if function.comment else [function.name]:
            found = [one for one in self.named.get(name, ()) if one is not function]
            # The nearest: of this header, then of this folder.
            yield from sorted(found, key=lambda one: (
                one.header is not function.header,
                one.header.folder != function.header.folder))[:1]

    def says(self, function, words, default, seen=()):
        """Returns whether the comments about a function match `words`."""
        header = function.header
        own = sentences_of(function.comment) + sentences_of(header.item_of(function))
        if any(re.search(words, sentence) for sentence in own):
            return True
        for comment in (*function.outer, header.default) if default else ():
            for sentence in sentences_of(comment):
                if is_default_for(function, sentence) and re.search(words, sentence):
                    return True
        return any(self.says(one, words, default, (*seen, function))
                   for one in self.referred(function) if one not in (*seen, function))


def is_asked(fact, function):
    if fact == ERRORS:
        return CAN_FAIL.search(function.returned)
    return fact != UNITS or SIZE.search(function.parameters)


def shaped_parameters(function):
    """Returns the sizes of a function, and its untyped buffers if it has a size."""
    sizes = SHAPED.findall(function.parameters)
    return sizes and [*sizes, *BUFFER.findall(function.parameters)]


def check_symbols(headers):
    """Yields the public macros, types, enum values, variables and fields without a comment."""
    for header in headers:
        for symbol in header.symbols:
            if symbol.is_public and not symbol.has_comment:
                yield f"include/{header.name}:{symbol.line}: {symbol.name} has no comment"


def check_comments(root):
    """Yields public symbols without a comment, and functions whose comments leave a fact out."""
    headers = [Header(path, root / "include") for path in headers_of(root)]
    yield from check_symbols(headers)
    comments = Comments(headers)
    for header in headers:
        for function in header.functions:
            is_twin = function.name.startswith("pnccl")  # the file's comment says what it does
            if not function.is_public or function.is_definition or is_twin:
                continue
            place = f"include/{header.name}:{function.line}: {function.name}"
            if not function.comment and not list(comments.referred(function)):
                yield f"{place} has no comment"
                continue
            for fact, default in ASKED[header.kind].items():
                default = default and not (fact == BLOCKS and comments.waits(function))
                if is_asked(fact, function) and not comments.says(function, WORDS[fact], default):
                    yield f"{place}: its comment does not say {fact}"
            for name in shaped_parameters(function):
                if not comments.says(function, rf"`[^`]*\b{name}\b[^`]*`", False):
                    yield f"{place}: its comment does not say the shape of {name}"


SIMPLE = "/// A.\n/// ```cpp\n/// {example}\n/// ```\n/// @file\n#pragma once\n{text}\n"
A = SIMPLE.format(example="inline int twice = 2 * a;", text="inline int a = 1;  ///< one")
C = """/// C. Every call returns a size or an error code. Any thread may make every call.
/// ```cpp
/// size_t twice(void) { return 2 * f(); }
/// ```
/// @file
#ifndef N
#define N
#include <stddef.h>
/// Returns a size. Local; returns at once.
size_t f(void);
#endif
"""
HOST = SIMPLE.format(example="inline int one() { return Host().get(); }", text="""
using Status = int;  ///< outcome
/// Holds a number. All functions are local. No function blocks, except the destructor. Distinct
/// objects may be used by distinct threads.
class Host {
 public:
  ~Host() {}  ///< waits; local; blocks until the number is idle
  /// Returns the number.
  int get() const { return 1; }
  /// Reads `count` bytes. Errors: system.
  Status read(int count);

 private:
  int hidden();
};""")
USE = "inline bool two(const int* from) { return wait_for(from); }"
DEVICE = SIMPLE.format(example=USE, text="""
/// Polls `ready`. Blocking; each thread calls it for itself.
template <class Ready>
bool wait_until(const Ready& ready) {
  return ready();
}
/// Loads a word.
inline int load(const int* from) {
  return *from;
}
/// Waits as wait_until does.
inline bool wait_for(const int* from) {
  return wait_until([&] { return load(from) != 0; });
}""").replace("/// A.", """/// D. All functions but wait_until do not block. Any thread may call all
/// functions. No function orders memory.""")
SYMBOLS = """
/// Two numbers.
#define ONE 1
#define TWO(x) (x)

#if ONE
#define THREE \\
  3  ///< a number
#endif
typedef int T;  ///< a type
/// An enum.
typedef enum {
  A0 = 0,          ///< a value
  A1 = TWO(1, 2),  ///< another value
} A;
/// A structure.
typedef struct {
  int left;      ///< a field
  /// Two fields.
  int right[2];
  T last;
} P;
struct Declared;
"""
CLEAN = {"include/oriel/a.hpp": A, "include/nccl.h": C, "include/oriel/host.hpp": HOST,
         "include/oriel/device/d.hpp": DEVICE}
SAYS = "its comment does not say"
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"include/oriel/a.hpp": A + "inline std::vector<int> v;  ///< ints\n"}, "alone as C++20"),
    ({"include/oriel/a.hpp": A.replace("#pragma once\n", "struct A {};  ///< a\n")},
     "alone as C++20"),
    ({"include/nccl.h": C.replace("size_t f(void)", "bool f(int x = 1)")}, "alone as C99"),
    ({"include/oriel/a.hpp": A.replace("```cpp", "```text")}, "a.hpp: has no example"),
    ({"include/oriel/a.hpp": A.replace("2 * a", "2 * b")}, "its example does not compile as C++20"),
    ({"include/oriel/a.hpp": A.replace("  ///< one", "")}, "is not documented"))]
COMMENT_PLANTS = [({**CLEAN, name: text.replace(old, new)}, expected) for name, cases in (
    ("include/nccl.h", (
        (C, "Local; ", "", f"nccl.h:10: f: {SAYS} {WHERE}"),
        (C, "returns at once", "a non-blocking communicator", f"f: {SAYS} {BLOCKS}"),
        (C.replace("; returns at once", ""), "C. Every", "C. All functions do not block. Every",
         f"f: {SAYS} {BLOCKS}"),
        (C, "size_t f(void)", "size_t f(size_t count)", f"f: {SAYS} {UNITS}"),
        (C, "Any thread may make every call", "Threads call", f"f: {SAYS} {THREADS}"),
        (C.replace("size_t f", "ncclResult_t f"), "error code", "number", f"f: {SAYS} {ERRORS}"),
        (C, "/// Returns a size. Local; returns at once.\n", "", "f has no comment"),
        (SYMBOLS, "/// Two numbers.\n", "", "nccl.h:2: ONE has no comment"),
        (SYMBOLS, "#define TWO", "\n#define TWO", "TWO has no comment"),
        (SYMBOLS, "  ///< a number", "", "THREE has no comment"),
        (SYMBOLS, "  ///< a type", "", "T has no comment"),
        (SYMBOLS, "/// An enum.\n", "", "enum has no comment"),
        (SYMBOLS, "  ///< a value", "", "A0 has no comment"),
        (SYMBOLS, "  ///< another value", "", "A1 has no comment"),
        (SYMBOLS, "/// A structure.\n", "", "struct has no comment"),
        (SYMBOLS, "  ///< a field", "", "left has no comment"),
        (SYMBOLS, "  /// Two fields.\n", "", "last has no comment"))),
    ("include/oriel/host.hpp", (
        (HOST, "All functions are", "It is", f"get: {SAYS} {WHERE}"),
        (HOST, "; blocks until the number is idle", "", f"~Host: {SAYS} {BLOCKS}"),
        (HOST, "Distinct\n/// objects", "Two\n/// objects", f"get: {SAYS} {THREADS}"),
        (HOST, " Errors: system.", "", f"read: {SAYS} {ERRORS}"),
        (HOST, "` bytes", "`", f"read: {SAYS} {UNITS}"),
        (HOST, "`count`", "the", f"read: {SAYS} the shape of count"),
        (HOST, "int count", "void* to, int count", f"read: {SAYS} the shape of to"),
        (HOST, " private:\n", "", "hidden has no comment"))),
    ("include/oriel/device/d.hpp", (
        (DEVICE, "No function orders", "It orders", f"load: {SAYS} {ORDER}"),
        (DEVICE, "Blocking; each", "Each", f"wait_until: {SAYS} {BLOCKS}"),
        (DEVICE, " as wait_until does", "", f"wait_for: {SAYS} {BLOCKS}"),
        (DEVICE, "may call all\n/// functions", "may do it", f"load: {SAYS} {THREADS}"))))
    for text, old, new, expected in cases]
if find_nvcc():
    PLANTS.append(({**CLEAN, "include/oriel/b.cuh": SIMPLE.format(
        example="", text="/// F.\n__device__ int f() { return g(); }")}, "alone as CUDA"))

if __name__ == "__main__":
    lint.main("public headers", check, CLEAN, PLANTS,
              part=(check_comments, {**CLEAN, "include/nccl.h": C + SYMBOLS}, COMMENT_PLANTS))
