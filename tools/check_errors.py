#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/errors.md lists every error message and log line of the library. The script
reads them from the sources and writes the tables between the page's two marks; the rest of the page
is written by hand. To write the tables again:

    tools/check_errors.py --write

The script reads `Error(ErrorCode::x, message)` with its `with_hint`, the calls of Log, and reasons
that are kept in a member for a later error. In a message, `…` stands for a value. If a function, a
member or a local lambda passes its parameters on as message or hint, each of its calls gives a
message. Calls are followed through several helpers, and into all files that see a declaration of
the helper. Two tables have texts without their messages. One has hints that are set on an Error
made elsewhere, the other texts of three words or more that functions return. A log line may end
with "; hint: " and what to do.
"""
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402
from message_texts import (  # noqa: E402
    CODES_OF_MAKERS, HINT_OF_CALL, VALUE, Program, split_arguments, without_comments)

PAGE = "docs/errors.md"
BEGIN, END = "<!-- written by tools/check_errors.py: begin -->", "<!-- end -->"
LEVELS = ("alert", "version", "warn", "info", "trace")
MADE = re.compile(rf"\bError(?: \w+)?\(\s*ErrorCode::(?P<code>\w+),"
                  rf"|\b(?P<maker>{'|'.join(CODES_OF_MAKERS)})\(")
# Members that keep the reason of a later error; the value is the code of this error.
CODES_OF_MEMBERS = {"reason_": "remote", "why_": "invalid_argument"}
KEPT = re.compile(rf"\b({'|'.join(CODES_OF_MEMBERS)}) = ([^;]+);")
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


def read_messages(root):
    """Returns {(module, message, hint): codes}, {(level, line, hint)} of the log, and two sets.
    They are {(module, hint)} of errors made elsewhere, and {(module, text)} of functions' texts."""
    texts = {}
    for path in lint.sources(root):
        name = path.relative_to(root).as_posix()
        if name.startswith("src/") and path.suffix in {".cpp", ".hpp"}:
            texts[name] = without_comments(path.read_text(encoding="utf-8"))
    errors, lines, later, reasons = {}, set(), set(), set()
    for name, source in Program(texts).sources.items():
        text, module = source.text, name.split("/")[1]
        for found in MADE.finditer(text):
            arguments, end = split_arguments(text, text.index("(", found.start()))
            code = found["code"] or CODES_OF_MAKERS[found["maker"]]
            if not found["code"] and (not arguments or source.is_declaration(arguments)):
                continue
            expression = arguments[1 if found["code"] else 0]
            for texts in source.each_call(found.start(),
                                          [expression, source.chain(end) or HINT_OF_CALL]):
                message, hint = clean(texts[0]), clean(texts[1])
                if message.strip(f"{VALUE}: /"):
                    hint = hint if hint.strip(f"{VALUE} /") else ""
                    errors.setdefault((module, message, hint), set()).add(code)
        for found in KEPT.finditer(text):
            for texts in source.each_call(found.start(), [found[2]]):
                if (message := clean(texts[0])).strip(f"{VALUE}: /"):
                    errors.setdefault((module, message, ""), set()).add(CODES_OF_MEMBERS[found[1]])
        for level, text in log_texts(source):
            line, _, hint = clean(text).partition(HINT_OF_LINE)
            if line.strip(f"{VALUE}: "):
                lines.add((level, line, hint))
        reasons |= {(module, clean(one)) for one in source.reasons()}
        later |= {(module, hint) for one in source.later_hints()
                  if (hint := clean(one)).strip(f"{VALUE} /")}
    return errors, lines, later, reasons - later


def make_tables(errors, lines, later, reasons=()):
    page = [BEGIN, "", "### Messages that say what to do", ""]
    for module in sorted({key[0] for key in errors if key[2]}):
        page += [f"#### `src/{module}`", "", "| message: the cause | what to do | code |",
                 "|---|---|---|"]
        page += [f"| {message} | {hint} | {', '.join(sorted(codes))} |"
                 for (where, message, hint), codes in sorted(errors.items())
                 if hint and where == module]
        page.append("")
    page += ["### Other messages", "", "| message: the cause | code |", "|---|---|"]
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
    """Returns (the page as it is, as it should be); None if the page has no marks."""
    path = root / PAGE
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if BEGIN not in text or END not in text:
        return text, None
    tables = "\n".join(make_tables(*read_messages(root)))
    return text, text[:text.index(BEGIN)] + tables + text[text.index(END) + len(END):]


def check(root):
    text, wanted = page_with_tables(root)
    if wanted is None:
        return [f"{PAGE}: has no tables of messages between '{BEGIN}' and '{END}'"]
    codes = re.search(r"enum class ErrorCode[^{]*\{(.*?)\};",
                      (root / "include/oriel/error.hpp").read_text(encoding="utf-8"), re.S)[1]
    findings = [f"{PAGE}: no row for the code {code}"
                for code in re.findall(r"^\s*(\w+) =", codes, re.M) if f"| `{code}` |" not in text]
    if text != wanted:
        findings.append(f"{PAGE}: stale; tools/check_errors.py --write writes its tables anew")
    return findings


def write(root):
    text, wanted = page_with_tables(root)
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
      .warn("lost {}", a);  // log.warn("no line")
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
  return fmt::format("{} is no setting", name);
}
void warn_all() {
  for (const std::string& warning : unknown(1)) Log().alert("{}", warning);
  Log(entry_of(*first)->rank())
      .info("raised to {}", 1);
}
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
     ("a", "no path", ""): {"remote"}, ("a", "cannot be: epoch 0", ""): {"remote"}},
    {("warn", "lost …", ""), ("info", "refused: late", "come early"), ("info", "raised to …", ""),
     ("alert", "… is no setting", "")},
    {("a", "widen it / unset it"), ("a", "free it")},
    {("a", "the peer is gone"), ("a", "… is no setting")}))
CLEAN = {"include/oriel/error.hpp": CODES, "src/a/a.cpp": SOURCE, "src/a/helpers.cpp": HELPERS,
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
    ({"include/oriel/error.hpp": CODES.replace("system", "cuda")}, "no row for the code cuda"),
    ({PAGE: "# Errors\n"}, "has no tables"))]

if __name__ == "__main__":
    lint.main("errors", check, CLEAN, PLANTS, write)
