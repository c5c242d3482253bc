#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/errors.md lists every error message and log line of the library.

The script reads them from the sources and writes the tables between the page's two marks; the rest
of the page is written by hand. To write the tables again:

    tools/check_errors.py --write

The script reads `Error(code, message)` with its `with_hint`, the calls of Log, and texts that are
kept in a member for a later error. In a message, `…` stands for a value. If a function, a
member or a local lambda passes its parameters on as code, message or hint, each of its calls gives
a message. Calls are followed through several helpers, and into all files that see a declaration of
the helper. Two tables have texts without their messages. One has hints that are set on an Error
made elsewhere, the other texts of three words or more that functions return. A log line may end
with "; hint: " and what to do.

The script also finds an Error whose code or message it cannot read. A message with the code
invalid_argument or invalid_usage has to have a hint. A line of the level alert or warn has to say
what to do.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402
from message_texts import (  # noqa: E402
    CODES_OF_MAKERS, CODES_OF_REASONS, HINT_OF_CALL, IS_KEPT, KEPT, VALUE, Program,
    split_arguments, without_comments)

PAGE = "docs/errors.md"
BEGIN, END = "<!-- written by tools/check_errors.py: begin -->", "<!-- end -->"
LEVELS = ("alert", "version", "warn", "info", "trace")
MADE = re.compile(rf"\bError(?: \w+)?\(|\bError\{{(?=\s*ErrorCode::)"
                  rf"|\b(?:emplace\w*|make_\w+<Error>)\((?=\s*ErrorCode::)"
                  rf"|\b(?P<maker>{'|'.join(CODES_OF_MAKERS)})\(")
PARAMETER = re.compile(r"(?:const )?[\w:<>]+(?: const)?\s*[&*]*\s+[&*]*\w+$")
# Matches what passes an error of another place on: its message or its code.
PASSED_ON = re.compile(r"(?:\.|->)(?:message|to_string|what|code)\(\)|static_cast<ErrorCode>")
# Codes and levels whose messages and lines say what to do.
CODES_WITH_HINT = {"invalid_argument", "invalid_usage"}
LEVELS_WITH_HINT = {"alert", "warn"}
LOG = re.compile(r"\b[Ll]og(?:_\b|\(|\b)")
LOG_CALL = re.compile(rf"\s*\.({'|'.join(LEVELS)})\(")
HINT_OF_LINE = "; hint: "


def clean(text):
    text = re.sub(rf"(?:{VALUE}\s*)+{VALUE}", VALUE, text.replace("\\n", " "))
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def log_texts(source):
    """Yields (level, text) of the calls of Log."""
    for found in LOG.finditer(source.text):
        end = found.end()
        if found[0].endswith("("):
            _, end = split_arguments(source.text, end - 1)
        if not (call := LOG_CALL.match(source.text, end)):
            continue
        arguments, _ = split_arguments(source.text, call.end() - 1)
        for texts in source.each_call(found.start(), [f"fmt::format({', '.join(arguments)})"]):
            yield call[1], texts[0]
        if arguments[0] == '"{}"':
            yield from ((call[1], one) for one in source.texts_of_loop(arguments[1], found.start()))


class Messages:
    """The messages of the library.

    `errors` is {(module, message, hint): codes}. `lines` is {(level, line, hint)} of the log.
    `later` is {(module, hint)} of errors made elsewhere. `reasons` is {(module, text)} of
    functions' texts.
    `unread` lists the findings about errors whose code or message the script cannot read.
    """

    def __init__(self):
        self.errors, self.lines, self.later, self.reasons = {}, set(), set(), set()
        self.unread = []

    def tables(self):
        return self.errors, self.lines, self.later, self.reasons - self.later

    def read(self, source):
        module = source.name.split("/")[1]
        for found in MADE.finditer(source.text):
            self.read_error(source, found, module)
        for found in KEPT.finditer(source.text):
            code = CODES_OF_REASONS.get(found[1])
            for texts in source.each_call(found.start(), [found[2]]) if code else ():
                if (message := clean(texts[0])).strip(f"{VALUE}: /"):
                    self.errors.setdefault((module, message, ""), set()).add(code)
        for level, text in log_texts(source):
            line, _, hint = clean(text).partition(HINT_OF_LINE)
            if line.strip(f"{VALUE}: "):
                self.lines.add((level, line, hint))
        self.reasons |= {(module, clean(one).partition(HINT_OF_LINE)[0])
                         for one in source.reasons()}
        self.later |= {(module, hint) for one in source.later_hints()
                       if (hint := clean(one)).strip(f"{VALUE} /")}

    def read_error(self, source, found, module):
        """Reads one place that makes an Error, or finds that it declares one or a function."""
        opening = found.end() - 1
        arguments, end = split_arguments(source.text, opening)
        if found["maker"]:
            if not arguments or source.is_declaration(arguments):
                return
            code, message = f"ErrorCode::{CODES_OF_MAKERS[found['maker']]}", arguments[0]
        elif len(arguments) < 2 or opening in source.definitions or PARAMETER.match(arguments[0]):
            return
        else:
            code, message = arguments[:2]
        is_passed_on = PASSED_ON.search(message) or PASSED_ON.search(code) or any(
            one.name in CODES_OF_MAKERS for one in source.around(opening))
        expressions = [message, source.chain(end) or HINT_OF_CALL, code]
        for texts in source.each_call(found.start(), expressions):
            codes = set(re.findall(r"ErrorCode::(\w+)", texts[2]))
            hint = clean(texts[1]) if texts[1].strip(f"{VALUE} /") else ""
            for one in map(clean, texts[0].split(" / ") if IS_KEPT.match(message) else texts[:1]):
                if codes and one.strip(f"{VALUE}: /"):
                    self.errors.setdefault((module, one, hint), set()).update(codes)
                elif is_passed_on:
                    self.later |= {(module, hint)} if hint else set()
                else:
                    line = source.text.count("\n", 0, found.start()) + 1
                    what = "message" if codes else "code"
                    self.unread.append(
                        f"{source.name}:{line}: the {what} of an Error cannot be read; give it as "
                        "a literal, or the message through a member of KEPT_MEMBERS")


def read_messages(root):
    texts = {}
    for path in lint.sources(root):
        name = path.relative_to(root).as_posix()
        if name.startswith("src/") and path.suffix in {".cpp", ".hpp"}:
            texts[name] = without_comments(path.read_text(encoding="utf-8"))
    messages = Messages()
    for source in Program(texts).sources.values():
        messages.read(source)
    return messages


def without_cure(messages):
    """Yields findings about misuse errors and warnings that do not say what to do."""
    for (module, message, hint), codes in sorted(messages.errors.items()):
        if not hint and codes & CODES_WITH_HINT:
            yield (f"src/{module}: the message \"{message}\" ({', '.join(sorted(codes))}) has no "
                   "hint; say what to do in with_hint")
    for level, line, hint in sorted(messages.lines):
        if not hint and level in LEVELS_WITH_HINT:
            yield (f"the log line \"{line}\" ({level}) has no hint; end it with \"{HINT_OF_LINE}\" "
                   "and what to do")


def make_tables(errors, lines, later, reasons=()):
    page = [BEGIN, "", "### Messages that say what to do", ""]
    for module in sorted({key[0] for key in errors if key[2]}):
        page += [f"#### `src/{module}`", "", "| message: the cause | what to do | code |",
                 "|---|---|---|"]
        page += [f"| {message} | {hint} | {', '.join(sorted(codes))} |"
                 for (where, message, hint), codes in sorted(errors.items())
                 if hint and where == module]
        page.append("")
    page += ["### Other messages", "",
             "The table of [codes](#codes) says what to do about these.", "",
             "| message: the cause | code |", "|---|---|"]
    others = {}
    for (_, message, hint), codes in errors.items():
        if not hint:
            others.setdefault(message, set()).update(codes)
    page += [f"| {message} | {', '.join(sorted(codes))} |"
             for message, codes in sorted(others.items())]
    page += ["", "### Hints that are added to some of the messages above", "",
             "| module | what to do |", "|---|---|"]
    page += [f"| `src/{module}` | {hint} |" for module, hint in sorted(later)]
    page += ["", "### Reasons and details that stand for … in some of the messages", "",
             "| module | text |", "|---|---|"]
    page += [f"| `src/{module}` | {text} |" for module, text in sorted(reasons)]
    page += ["", "### Log lines", "", "| level | line | what to do |", "|---|---|---|"]
    page += [f"| {level} | {line} | {hint} |"
             for level in LEVELS for one, line, hint in sorted(lines) if one == level]
    return page + ["", END]


def page_with_tables(root):
    """Returns the page as it is, as it should be (None if it has no marks), and the messages."""
    path = root / PAGE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    messages = read_messages(root)
    if BEGIN not in text or END not in text:
        return text, None, messages
    tables = "\n".join(make_tables(*messages.tables()))
    return text, text[:text.index(BEGIN)] + tables + text[text.index(END) + len(END):], messages


def check(root):
    text, wanted, messages = page_with_tables(root)
    if wanted is None:
        return [f"{PAGE}: has no tables of messages between '{BEGIN}' and '{END}'"]
    codes = re.search(r"enum class ErrorCode[^{]*\{(.*?)\};",
                      (root / "include/oriel/error.hpp").read_text(encoding="utf-8"), re.S)[1]
    findings = [f"{PAGE}: no row for the code {code}"
                for code in re.findall(r"^\s*(\w+) =", codes, re.M) if f"| `{code}` |" not in text]
    findings += sorted(set(messages.unread)) + list(without_cure(messages))
    if text != wanted:
        findings.append(f"{PAGE}: stale; tools/check_errors.py --write writes its tables anew")
    return findings


def write(root):
    text, wanted, _ = page_with_tables(root)
    if wanted is not None:
        (root / PAGE).write_text(wanted, encoding="utf-8")


CODES = "enum class ErrorCode : int {\n  system = 2,  ///< x\n};\n"
SOURCE = """constexpr const char* kHint = "unset " "it";
Error no(const char* why, const char* hint) {
  return Error(ErrorCode::system, fmt::format("port {}: {}", 1, why)).with_hint(hint);
}
Status f(int a) {
  if (a == 1) return no("down", "bring it up");
  if (a == 2) return Error(ErrorCode::system, fmt::format("{} is \\"x\\" {:.1f}", a, 2))
      .with_hint(kHint);
  Log(rank())
      .warn("lost {}; hint: look", a);  // log.warn("no line")
  if (a == 4) return Error(
      ErrorCode::system, "wrapped");
  if (a == 5) return system_error("reading").with_hint("wait");
  return Error(ErrorCode::system, a > 3 ? "large" : "small");
}
const char* hint_for(int a) { return "free " "it"; }
Error g(int a) {
  Error error = system_error("closing");
  if (a == 1) return std::move(error).with_hint(a > 3 ? "widen it" : kHint);
  const std::string hint = hint_for(a);
  std::string text = "open; ";
  text += "free";
  if (a == 2) return std::move(error).with_hint(hint);
  return Error(ErrorCode::system, text).with_hint(base::kHint);
}
"""
HELPERS = """struct Line {
  Error bad(const std::string& what) const {
    return Error(ErrorCode::system, fmt::format("line {}: {}", number, what));
  }
  Status count(int most) const { return bad(fmt::format("more than {}", most)); }
};
Status g(const Line& line, bool is_send) {
  const auto refuse = [&](std::string message) -> Error {
    return Error(ErrorCode::system, std::move(message));
  };
  if (is_send) return refuse(fmt::format("peer is {}", 1)).with_hint("name another");
  if (line.number == 1) return line.bad("too " + (is_send ? "wide" : "narrow"));
  return refuse("no peer");
}
Status h() {
  const auto refuse = [](const char* why) { log.info("refused: {}", why); };
  refuse("late; hint: come early");
}
void Path::finish(std::string reason) {
  reason_ = std::move(reason);
}
void Path::end(const std::string& nonsense) {
  finish("cannot be: " + nonsense);
}
void Path::receive(Reader& from) {
  from.finish("a statement");
  if (from.left() == 1) finish("no path");
  end("epoch 0");
}
"""
HEADER = """namespace base {
struct Line;
Error odd(const Line& line, const std::string& what);
struct Peers {
  void died(int rank, const std::string& how);
};
}
"""
OTHER = """#include "a/odd.hpp"
Error base::odd(const Line& line, const std::string& what) {
  return Error(ErrorCode::system, fmt::format("line {}: {}", line.number, what));
}
void base::Peers::died(int rank, const std::string& how) {
  fail(Error(ErrorCode::system, fmt::format("rank {} died: {}", rank, how)));
}
const char* reason(int why) {
  return why == 1 ? "the peer is gone" : "busy";
}
std::string unknown(int name) {
  return fmt::format("{} is no setting; hint: unset it", name);
}
void warn_all() {
  for (const std::string& warning : unknown(1)) Log().alert("{}", warning);
  Log(entry_of(*first)->rank())
      .info("raised to {}", 1);
}
"""
KEPT_HEADER = """struct Library {
  std::string missing;
};
Library load(const char* name);
"""
KEPT_SOURCE = """#include "a/kept.hpp"
Library load(const char* name) {
  Library library;
  if (name == nullptr) library.missing = fmt::format("no driver ({}); it is free", dlerror());
#define LOOK_UP(symbol)                                              \\
  if (library.symbol == nullptr) library.missing = "lacks " #symbol; \\
  return library;
}
Status pairs(int a) {
  const ErrorCode code = a > 1 ? ErrorCode::system : ErrorCode::invalid_usage;
  if (a == 1) return Error(a > 3 ? ErrorCode::system : ErrorCode::remote, "one of two");
  if (a == 2) return Error(code, "two codes").with_hint("pass 2");
  succeeds(a, [&] { return fmt::format("opening {}", a); });
  const Error cause = read(a);
  if (a == 3) return Error(ErrorCode::system, cause.message()).with_hint("pass 3");
  return Error(cause.code(), "again");
}
template <typename What>
bool succeeds(int status, const What& what) {
  complete_ = system_error(what(), status);
}
"""
KEPT_READER = """#include "a/kept.hpp"
Status open(const Library& library) {
  return Error(ErrorCode::invalid_usage, library.missing).with_hint("install it");
}
void Parser::stop(std::string why) { why_ = std::move(why); }
void Parser::begin() { stop("too deep"); }
Error refused(int line, const std::string& why) {
  return Error(ErrorCode::invalid_argument, fmt::format("line {}: {}", line, why))
      .with_hint("mend it");
}
Status Parser::end() { return refused(line_, why_); }
"""
CALLER = """#include "a/odd.hpp"
Status read(const Line& line, std::unique_ptr<base::Peers>& peers_) {
  if (line.number == 0) return base::odd(line, fmt::format("has {} words", 1));
  peers_->died(1, "its link has closed");
  others_->died(1, "no text of a message");
  return odd(line, "is empty");
}
"""
TABLES = "\n".join(make_tables(
    {("a", "port …: down", "bring it up"): {"system"}, ("a", '… is "x" …', "unset it"): {"system"},
     ("a", "wrapped", ""): {"system"}, ("a", "reading", "wait"): {"system"},
     ("a", "large / small", ""): {"system"}, ("a", "line …: more than …", ""): {"system"},
     ("a", "line …: too wide", ""): {"system"},
     ("a", "line …: too narrow", ""): {"system"},
     ("a", "closing", ""): {"system"},
     ("a", "open; / open; free", "unset it"): {"system"},
     ("a", "peer is …", "name another"): {"system"}, ("a", "no peer", ""): {"system"},
     ("a", "line …: has … words", ""): {"system"}, ("a", "line …: is empty", ""): {"system"},
     ("a", "rank … died: its link has closed", ""): {"system"},
     ("a", "no path", ""): {"remote"}, ("a", "cannot be: epoch 0", ""): {"remote"},
     ("a", "no driver (…); it is free", "install it"): {"invalid_usage"},
     ("a", "lacks …", "install it"): {"invalid_usage"},
     ("a", "one of two", ""): {"system", "remote"},
     ("a", "two codes", "pass 2"): {"system", "invalid_usage"},
     ("a", "opening …", ""): {"system"},
     ("a", "line …: too deep", "mend it"): {"invalid_argument"}},
    {("warn", "lost …", "look"), ("info", "refused: late", "come early"),
     ("info", "raised to …", ""), ("alert", "… is no setting", "unset it")},
    {("a", "widen it / unset it"), ("a", "free it"), ("a", "pass 3")},
    {("a", "the peer is gone"), ("a", "… is no setting")}))
CLEAN = {"include/oriel/error.hpp": CODES, "src/a/a.cpp": SOURCE, "src/a/helpers.cpp": HELPERS,
         "src/a/kept.hpp": KEPT_HEADER, "src/a/kept.cpp": KEPT_SOURCE,
         "src/a/reader.cpp": KEPT_READER,
         "src/a/odd.hpp": HEADER, "src/a/odd.cpp": OTHER, "src/b/caller.cpp": CALLER,
         PAGE: f"# Errors\n\n| `system` | why |\n\n{TABLES}\n"}
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"src/a/a.cpp": SOURCE.replace('"small"', '"tiny"')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"bring', '"take')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"unset "', '"set "')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('lost', 'lacks')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"wrapped', '"folded')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"reading', '"writing')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"widen', '"narrow')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"free "', '"close "')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"free";', '"shut";')}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("name another", "name one")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("come early", "wait")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("peer is", "rank is")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("no peer", "no rank")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("narrow", "thin")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("more than", "above")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace('"late', '"early')}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("no path", "no NIC")}, "stale"),
    ({"src/a/helpers.cpp": HELPERS.replace("epoch 0", "epoch 1")}, "stale"),
    ({"src/b/caller.cpp": CALLER.replace("words", "fields")}, "stale"),
    ({"src/b/caller.cpp": CALLER.replace("is empty", "is void")}, "stale"),
    ({"src/b/caller.cpp": CALLER.replace("its link", "its path")}, "stale"),
    ({"src/a/odd.cpp": OTHER.replace("is gone", "has gone")}, "stale"),
    ({"src/a/odd.cpp": OTHER.replace("is no setting", "is unknown")}, "stale"),
    ({"src/a/odd.cpp": OTHER.replace("raised to", "set to")}, "stale"),
    ({"src/b/b.hpp": 'Error g() { return Error(ErrorCode::system, "new"); }\n'}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("no driver", "no GPU")}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("lacks", "needs")}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("one of", "both of")}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("ErrorCode::remote", "ErrorCode::timeout")}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("ErrorCode::invalid_usage;", "ErrorCode::cuda;")},
     "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("opening", "closing")}, "stale"),
    ({"src/a/kept.cpp": KEPT_SOURCE.replace("pass 3", "pass 4")}, "stale"),
    ({"src/a/reader.cpp": KEPT_READER.replace("too deep", "too wide")}, "stale"),
    ({"src/a/reader.cpp": KEPT_READER.replace('.with_hint("install it")', "")}, "has no hint"),
    ({"src/a/reader.cpp": KEPT_READER.replace('.with_hint("mend it")', "")}, "has no hint"),
    ({"src/a/a.cpp": SOURCE.replace("; hint: look", "")}, '"lost …" (warn) has no hint'),
    ({"src/a/odd.cpp": OTHER.replace("; hint: unset it", "")}, "(alert) has no hint"),
    ({"src/b/b.cpp": "Status g(T t) { return Error(ErrorCode::system, t.text); }\n"},
     "src/b/b.cpp:1: the message of an Error cannot be read"),
    ({"src/b/b.cpp": "\nStatus g(T t) { e_.emplace(ErrorCode::system, t.text); }\n"},
     "src/b/b.cpp:2: the message of an Error cannot be read"),
    ({"src/b/b.cpp": 'Status g(T t) { return Error(t.kind, "new"); }\n'},
     "src/b/b.cpp:1: the code of an Error cannot be read"),
    ({"include/oriel/error.hpp": CODES.replace("system", "cuda")}, "no row for the code cuda"),
    ({PAGE: "# Errors\n"}, "has no tables"))]

if __name__ == "__main__":
    lint.main("errors", check, CLEAN, PLANTS, write)
