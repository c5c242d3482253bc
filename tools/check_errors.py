#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/errors.md lists every error message and log line of the library. The script reads
them from the sources and writes the tables between the page's two marks; the rest of the page is
written by hand. To write the tables again:

    tools/check_errors.py --write

The script reads `Error(ErrorCode::x, message)` with its `with_hint`, the calls of Log, and reasons
that are kept in a member for a later error. In a message, `…` stands for a value. If a function, a
member or a local lambda passes its parameters on as message or hint, each of its calls gives a
message. Calls are followed within a file, through several helpers. A hint that is set on an Error
made elsewhere stands in a table of its own. A log line may end with "; hint: " and what to do.
"""
import itertools
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

PAGE = "docs/errors.md"
BEGIN, END = "<!-- written by tools/check_errors.py: begin -->", "<!-- end -->"
VALUE = "…"
LEVELS = ("alert", "version", "warn", "info", "trace")
# Functions that make an Error of a failed system or driver call; their first argument is the text.
CODES_OF_MAKERS = {"system_error": "system", "cuda_error": "cuda", "cuda_status": "cuda"}
MADE = re.compile(rf"\bError(?: \w+)?\(\s*ErrorCode::(?P<code>\w+),"
                  rf"|\b(?P<maker>{'|'.join(CODES_OF_MAKERS)})\(")
# Members that keep the reason of a later error; the value is the code of this error.
CODES_OF_MEMBERS = {"reason_": "remote"}
KEPT = re.compile(rf"\b({'|'.join(CODES_OF_MEMBERS)}) = ([^;]+);")
HINT_OF_LINE = "; hint: "
# Name that stands for the hint of a helper's call, among the parameters of the helper.
HINT_OF_CALL = "with_hint"
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TOKEN = re.compile(LITERAL + r"|\w+|[^\w\s]")
CONSTANT = re.compile(rf"\bconstexpr (?:const char\*|std::string_view)(?: const)? (k\w+) ?=\s*"
                      rf"((?:{LITERAL}\s*)+);")
# Matches what may stand between the parameters of a function or lambda and its body.
BEHIND_PARAMETERS = re.compile(r"(?:\s|const\b|noexcept\b|override\b|final\b|mutable\b|&)*"
                               r"(?:->[\w:<>\s*&]+)?$")
BEFORE_PARAMETERS = re.compile(r"(?:\b(?P<lambda>\w+)\s*=\s*)?(?P<captures>\[[^\[\]]*\])\s*$"
                               r"|(?P<name>[\w:~]+)\s*$")
NO_FUNCTIONS = {"if", "for", "while", "switch", "catch", "constexpr"}
MOST_HELPERS = 4
MOST_ADDITIONS = 2  # `text += ...` that give alternatives of a text


class Scope:
    """A function or a lambda: its name, the names of its parameters, and the place of its body.

    `whole` is the range of the text in which its calls stand.
    """

    def __init__(self, name, parameters, begin, end, whole):
        self.name, self.parameters = name, parameters
        self.begin, self.end, self.whole = begin, end, whole


def name_of(parameter):
    words = re.findall(r"\w+", re.sub(r"\s*=.*", "", parameter, flags=re.S))
    return words[-1] if words else ""


def without_comments(text):
    """Blanks comments; lines keep their numbers."""
    return lint.NOT_CODE.sub(
        lambda found: re.sub(r"[^\n]", " ", found[0]) if found[0].startswith("/") else found[0],
        text)


def split_arguments(text, at):
    """Returns (arguments, index behind the closing parenthesis) of the list that opens at `at`."""
    depth, begin, arguments, i = 0, at + 1, [], at
    while i < len(text):
        if text[i] in "\"'" and (literal := lint.NOT_CODE.match(text, i)):
            i = literal.end()
            continue
        if text[i] in "([{":
            depth += 1
        elif text[i] in ")]}":
            depth -= 1
            if depth == 0:
                arguments.append(text[begin:i].strip())
                return [one for one in arguments if one], i + 1
        elif text[i] == "," and depth == 1:
            arguments.append(text[begin:i].strip())
            begin = i + 1
        i += 1
    raise ValueError("a parenthesis is not closed")


def top_level(expression, mark):
    """Splits an expression at an operator that stands in no parentheses and no literal."""
    parts, depth, begin = [], 0, 0
    for token in TOKEN.finditer(expression):
        text = token[0]
        depth += (text in "([{") - (text in ")]}")
        if text == mark and depth == 0 and expression[token.start() - 1:token.end() + 1] != "::" \
                and ":" not in (expression[token.start() - 1], expression[token.end():][:1]):
            parts.append(expression[begin:token.start()].strip())
            begin = token.end()
    return parts + [expression[begin:].strip()]


def alternatives(text):
    """Returns the alternatives of a part of a text; leaves out a mere value that may be missing."""
    found = text.split(" / ")
    return [one for one in found if one.strip(VALUE) or one == "" or "" not in found]


class Source:
    """A file without comments, and what it takes to turn its expressions into text."""

    def __init__(self, name, text, constants):
        self.name, self.text, self.constants = name, text, constants

        self.placed_hints = set()  # places of with_hint in chains that were read
        self.scopes = self.read_scopes()
        self.definitions = {scope.opening for scope in self.scopes}

    def read_scopes(self):
        """Returns the functions and lambdas of the file, outer ones first."""
        code = lint.NOT_CODE.sub(lambda found: " " * len(found[0]), self.text)
        opened, partner = [], {}
        for mark in re.finditer(r"[(){}]", code):
            if mark[0] in "({":
                opened.append(mark.start())
            elif opened:
                partner[mark.start()] = opened[-1]
                partner[opened.pop()] = mark.start()
        scopes = []
        for begin in (mark.start() for mark in re.finditer(r"\{", code) if mark.start() in partner):
            closing = code.rfind(")", 0, begin)
            if closing not in partner or not BEHIND_PARAMETERS.match(code[closing + 1:begin]):
                continue
            opening = partner[closing]
            found = BEFORE_PARAMETERS.search(code, max(0, opening - 200), opening)
            if not found or found["name"] in NO_FUNCTIONS:
                continue
            name = found["lambda"] or (found["name"] or "").split("::")[-1]
            arguments, _ = split_arguments(self.text, opening)
            whole = (0, len(code))
            if found["captures"]:
                outer = [one for one in scopes if one.begin < begin < one.end]
                whole = (begin, outer[-1].end if outer else len(code))
            scope = Scope(name, [name_of(one) for one in arguments], begin, partner[begin], whole)
            scope.opening, scope.is_member_outside = opening, "::" in (found["name"] or "")
            scopes.append(scope)
        return scopes

    def around(self, at):
        """Returns the functions and lambdas around `at`, inner ones first."""
        return [one for one in reversed(self.scopes) if one.begin < at < one.end]

    def value_of(self, name, at):
        """Returns (expression of the local variable `name`, its place), or (None, at)."""
        for scope in self.around(at) if name.isidentifier() else ():
            if value := self.local(name, scope.begin, at):
                return value, scope.begin
            if name in scope.parameters:
                break
        return None, at

    def local(self, name, begin, at):
        """Returns the expression that a local variable gets between `begin` and `at`, or None."""
        found = re.search(rf"\b(?:std::string|std::string_view|char\* const|char\*|auto) {name}"
                          rf"(?:\s=\s+|\()", self.text[begin:at])
        if not found:
            return None
        first = begin + found.end()
        if found[0].endswith("("):
            return ", ".join(split_arguments(self.text, first - 1)[0])
        value = top_level(self.text[first:at], ";")[0]
        added = [top_level(self.text[more.end():at], ";")[0]
                 for more in re.compile(rf"\b{name} \+= ").finditer(self.text, first, at)]
        if len(added) <= MOST_ADDITIONS:
            value = " + ".join([value] + [f'(0 ? "" : {one})' for one in added])
        return value

    def render(self, expression, at, values=None):
        """Turns an expression into the text of a message. values: {parameter: text}."""
        expression = expression.strip()
        if expression.startswith("(") and (inner := split_arguments(expression, 0))[1] == len(expression):
            return self.render(", ".join(inner[0]), at, values)
        if (found := re.match(r"std::move\(|std::string\(|fmt::format\(|to_string\(", expression)):
            arguments, end = split_arguments(expression, found.end() - 1)
            if end == len(expression):
                if found[0].startswith("to_"):
                    return VALUE
                text = self.render(arguments[0], at, values)
                if found[0].startswith("fmt"):
                    text = self.fill(text, arguments[1:], at, values)
                return text
        if len(branches := top_level(expression, "?")) == 2:
            return " / ".join(self.render(one, at, values) for one in top_level(branches[1], ":"))
        if len(terms := top_level(expression, "+")) > 1:
            texts = [self.render(one, at, values) for one in terms]
            choices = [[text] if term.startswith('"') else alternatives(text)
                       for term, text in zip(terms, texts)]
            return " / ".join("".join(one) for one in itertools.product(*choices))
        if re.fullmatch(rf"(?:{LITERAL}\s*)+", expression):
            return "".join(one[1:-1] for one in re.findall(LITERAL, expression)).replace('\\"', '"')
        if (constant := expression.split("::")[-1]) in self.constants:
            return self.constants[constant]
        if values and expression in values:
            return values[expression]
        value, begin = self.value_of(expression, at)
        return self.render(value, begin, values) if value else VALUE

    def fill(self, text, arguments, at, values):
        """Replaces the places of a format by the texts of their arguments."""
        rest = iter(arguments)

        def one(found):
            if found[0] in ("{{", "}}"):
                return found[0][0]
            text = self.render(next(rest, ""), at, values)
            return VALUE if found[0] != "{}" or " / " in text else text
        return re.sub(r"\{\{|\}\}|\{[^{}]*\}", one, text)

    @staticmethod
    def is_declaration(arguments):
        """Returns whether the arguments are parameters of a declaration."""
        return re.match(r"const |std::[\w:<>]+[\s&]+\w+$|CUresult |int ", arguments[0]) is not None

    def chain(self, at):
        """Returns the argument of `.with_hint(...)` behind `at`, if the chain of calls has it."""
        while found := re.compile(r"\s*\)*\s*\.(\w+)\(").match(self.text, at):
            arguments, at = split_arguments(self.text, found.end() - 1)
            if found[1] == "with_hint":
                self.placed_hints.add(found.start(1))
                return ", ".join(arguments)
        return None

    def later_hints(self):
        """Yields the texts of the hints that belong to no chain which was read."""
        for found in re.finditer(r"(?<=\.)with_hint\(", self.text):
            if found.start() in self.placed_hints:
                continue
            expression = ", ".join(split_arguments(self.text, found.end() - 1)[0])
            yield self.render(expression, found.start())
            for name in re.findall(r"\w+", expression):
                call = re.match(r"(\w+)\(", self.value_of(name, found.start())[0] or "")
                for scope in self.scopes if call else ():
                    if scope.name == call[1]:
                        body = self.text[scope.begin:scope.end]
                        yield from (self.render(one, scope.begin) for one in
                                    re.findall(rf"return ((?:{LITERAL}\s*)+);", body))

    def calls_of(self, scope):
        """Yields (place, arguments, hint) of each call of a function, member or lambda in the file."""
        # In the file that defines A::f, `x.f(` is mostly a member of another class.
        receiver = "::" if scope.is_member_outside else r"::|\.|->"
        name = re.compile(rf"(?<![\w:.>])(?:\w+(?:{receiver}))*{re.escape(scope.name)}\(")
        for found in name.finditer(self.text, *scope.whole):
            if found.end() - 1 in self.definitions:
                continue
            given, end = split_arguments(self.text, found.end() - 1)
            if len(given) == len(scope.parameters) and not self.is_declaration(given):
                yield found.start(), given, self.chain(end)

    def each_call(self, at, expressions, helpers=0):
        """Yields the texts of the expressions at `at`. If they name parameters of a function or
        lambda around them, yields them for each call of the function in the file."""
        words, names = set(), set(re.findall(r"\b[a-z]\w*\b", " ".join(expressions)))
        while names:
            words |= names
            values = [self.value_of(one, at)[0] or "" for one in names]
            names = set(re.findall(r"\b[a-z]\w*\b", " ".join(values))) - words
        bindings = [{}]
        for scope in self.around(at):
            if not scope.name or scope.name in CODES_OF_MAKERS or helpers == MOST_HELPERS:
                continue
            if words.isdisjoint(scope.parameters):
                continue
            calls = [{**dict(zip(scope.parameters, choice)),
                      **({HINT_OF_CALL: self.render(hint, place)} if hint else {})}
                     for place, given, hint in self.calls_of(scope)
                     for texts in self.each_call(place, given, helpers + 1)
                     for choice in itertools.product(*(text.split(" / ") for text in texts))]
            bindings = [{**outer, **inner} for outer in calls or [{}] for inner in bindings]
        for values in bindings:
            yield [self.render(one, at, values) for one in expressions]


def clean(text):
    text = re.sub(rf"(?:{VALUE}\s*)+{VALUE}", VALUE, text.replace("\\n", " "))
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def read_messages(root):
    """Returns {(module, message, hint): codes}, {(level, line, hint)} of the log, and {(module, hint)}
    of hints that are set on an error made elsewhere."""
    texts, constants = {}, {}
    for path in lint.sources(root):
        name = path.relative_to(root).as_posix()
        if name.startswith("src/") and path.suffix in {".cpp", ".hpp"}:
            texts[name] = without_comments(path.read_text(encoding="utf-8"))
            for found in CONSTANT.finditer(texts[name]):
                constants[found[1]] = "".join(one[1:-1] for one in re.findall(LITERAL, found[2]))
    errors, lines, later = {}, set(), set()
    for name, text in texts.items():
        source, module = Source(name, text, constants), name.split("/")[1]
        for found in MADE.finditer(text):
            arguments, end = split_arguments(text, text.index("(", found.start()))
            code = found["code"] or CODES_OF_MAKERS[found["maker"]]
            if not found["code"] and (not arguments or source.is_declaration(arguments)):
                continue
            expression = arguments[1 if found["code"] else 0]
            for texts in source.each_call(found.start(), [expression, source.chain(end) or HINT_OF_CALL]):
                message, hint = clean(texts[0]), clean(texts[1])
                if message.strip(f"{VALUE}: /"):
                    hint = hint if hint.strip(f"{VALUE} /") else ""
                    errors.setdefault((module, message, hint), set()).add(code)
        for found in KEPT.finditer(text):
            for texts in source.each_call(found.start(), [found[2]]):
                if (message := clean(texts[0])).strip(f"{VALUE}: /"):
                    errors.setdefault((module, message, ""), set()).add(CODES_OF_MEMBERS[found[1]])
        for found in re.finditer(rf"\b[Ll]og(?:_|\((?:[^()]|\(\))*\))?\s*\.({'|'.join(LEVELS)})\(", text):
            arguments, _ = split_arguments(text, found.end() - 1)
            for texts in source.each_call(found.start(), [f"fmt::format({', '.join(arguments)})"]):
                line, _, hint = clean(texts[0]).partition(HINT_OF_LINE)
                if line.strip(f"{VALUE}: "):
                    lines.add((found[1], line, hint))
        later |= {(module, hint) for one in source.later_hints()
                  if (hint := clean(one)).strip(f"{VALUE} /")}
    return errors, lines, later


def make_tables(errors, lines, later):
    page = [BEGIN, "", "### Messages that say what to do", ""]
    for module in sorted({key[0] for key in errors if key[2]}):
        page += [f"#### `src/{module}`", "", "| message: the cause | what to do | code |", "|---|---|---|"]
        page += [f"| {message} | {hint} | {', '.join(sorted(codes))} |"
                 for (where, message, hint), codes in sorted(errors.items()) if hint and where == module]
        page.append("")
    page += ["### Other messages", "", "| message: the cause | code |", "|---|---|"]
    others = {}
    for (_, message, hint), codes in errors.items():
        if not hint:
            others.setdefault(message, set()).update(codes)
    page += [f"| {message} | {', '.join(sorted(codes))} |" for message, codes in sorted(others.items())]
    page += ["", "### Hints that are added to some of the messages above", "", "| module | what to do |",
             "|---|---|"]
    page += [f"| `src/{module}` | {hint} |" for module, hint in sorted(later)]
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
    codes = re.search(r"enum class ErrorCode[^{]*\{(.*?)\};", (root / "include/oriel/error.hpp").read_text(
        encoding="utf-8"), re.S)[1]
    findings = [f"{PAGE}: no row for the code {code}" for code in re.findall(r"^\s*(\w+) =", codes, re.M)
                if f"| `{code}` |" not in text]
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
  if (a == 2) return Error(ErrorCode::system, fmt::format("{} is \\"x\\" {:.1f}", a, 2)).with_hint(kHint);
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
TABLES = "\n".join(make_tables(
    {("a", "port …: down", "bring it up"): {"system"}, ("a", '… is "x" …', "unset it"): {"system"},
     ("a", "wrapped", ""): {"system"}, ("a", "reading", "wait"): {"system"},
     ("a", "large / small", ""): {"system"}, ("a", "line …: more than …", ""): {"system"},
     ("a", "line …: too wide", ""): {"system"},
     ("a", "line …: too narrow", ""): {"system"},
     ("a", "closing", ""): {"system"},
     ("a", "open; / open; free", "unset it"): {"system"},
     ("a", "peer is …", "name another"): {"system"}, ("a", "no peer", ""): {"system"},
     ("a", "no path", ""): {"remote"}, ("a", "cannot be: epoch 0", ""): {"remote"}},
    {("warn", "lost …", ""), ("info", "refused: late", "come early")},
    {("a", "widen it / unset it"), ("a", "free it")}))
CLEAN = {"include/oriel/error.hpp": CODES, "src/a/a.cpp": SOURCE, "src/a/helpers.cpp": HELPERS,
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
    ({"src/b/b.hpp": 'Error g() { return Error(ErrorCode::system, "new"); }\n'}, "stale"),
    ({"include/oriel/error.hpp": CODES.replace("system", "cuda")}, "no row for the code cuda"),
    ({PAGE: "# Errors\n"}, "has no tables"))]

if __name__ == "__main__":
    lint.main("errors", check, CLEAN, PLANTS, write)
