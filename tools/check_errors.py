#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that docs/errors.md lists every error message and log line of the library. The script reads
them from the sources and writes the tables between the page's two marks; the rest of the page is
written by hand. To write the tables again:

    tools/check_errors.py --write

The script reads `Error(ErrorCode::x, message)` with its `with_hint`, and the calls of Log. In a
message, `…` stands for a value. If a function passes its parameters on as message or hint, each of
its calls gives a message.
"""
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
LITERAL = r'"(?:[^"\\\n]|\\.)*"'
TOKEN = re.compile(LITERAL + r"|\w+|[^\w\s]")
CONSTANT = re.compile(rf"\bconstexpr (?:const char\*|std::string_view)(?: const)? (k\w+) ?=\s*"
                      rf"((?:{LITERAL}\s*)+);")
DEFINITION = re.compile(r"^(?!namespace|using|struct|class|enum|#)[A-Za-z_][^;{}()=]*?\b([\w:~]+)\(",
                        re.M)


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


class Source:
    """A file without comments, and what it takes to turn its expressions into text."""

    def __init__(self, name, text, constants):
        self.name, self.text, self.constants = name, text, constants

    def enclosing(self, at):
        """Returns (name, parameters, index of the body) of the function around `at`, or None."""
        last = None
        for found in DEFINITION.finditer(self.text, 0, at):
            last = found
        if not last:
            return None
        parameters, body = split_arguments(self.text, last.end() - 1)
        names = [re.sub(r"\s*=.*", "", one).split()[-1].lstrip("&*") for one in parameters]
        return last[1].split("::")[-1], names, body

    def local(self, name, begin, at):
        """Returns the expression that a local variable gets between `begin` and `at`, or None."""
        found = re.search(rf"\b(?:std::string|std::string_view|char\* const|char\*|auto) {name}"
                          rf"(?: = |\()", self.text[begin:at])
        if not found:
            return None
        first = begin + found.end()
        if found[0].endswith("("):
            return ", ".join(split_arguments(self.text, first - 1)[0])
        return self.text[first:self.text.index(";", first)]

    def render(self, expression, at, values=None):
        """Turns an expression into the text of a message. values: {parameter: text}."""
        expression = expression.strip()
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
            return "".join(self.render(one, at, values) for one in terms)
        if re.fullmatch(rf"(?:{LITERAL}\s*)+", expression):
            return "".join(one[1:-1] for one in re.findall(LITERAL, expression)).replace('\\"', '"')
        if expression in self.constants:
            return self.constants[expression]
        if values and expression in values:
            return values[expression]
        around = self.enclosing(at)
        value = self.local(expression, around[2], at) if around and expression.isidentifier() else None
        return self.render(value, around[2], values) if value else VALUE

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
        return re.match(r"(?:const |std::|CUresult |int )", arguments[0]) is not None \
            and not arguments[0].startswith(("std::string(", "std::move("))

    def chain(self, at):
        """Returns the argument of `.with_hint(...)` behind `at`, if the chain of calls has it."""
        while found := re.compile(r"\s*\)*\s*\.(\w+)\(").match(self.text, at):
            arguments, at = split_arguments(self.text, found.end() - 1)
            if found[1] == "with_hint":
                return ", ".join(arguments)
        return None

    def each_call(self, at, message, hint):
        """Yields (message, hint) of the expressions at `at`. If they name parameters of the
        function around them, yields one pair for each call of the function in the file."""
        around = self.enclosing(at)
        name, parameters, _ = around or (None, [], 0)
        words = set(re.findall(r"\b[a-z]\w*\b", f"{message} {hint or ''}"))
        calls = []
        if any(one in words for one in parameters):
            for found in re.finditer(rf"(?<![\w:.>])(?:\w+::)*{re.escape(name)}\(", self.text):
                given, end = split_arguments(self.text, found.end() - 1)
                is_definition = re.match(r"\s*(?:const\s*)?\{", self.text[end:])
                if not is_definition and len(given) == len(parameters):
                    calls.append({p: self.render(g, found.start())
                                  for p, g in zip(parameters, given)})
        for values in calls or [{}]:
            yield (self.render(message, at, values),
                   self.render(hint, at, values) if hint is not None else "")


def clean(text):
    text = re.sub(rf"(?:{VALUE}\s*)+{VALUE}", VALUE, text.replace("\\n", " "))
    return re.sub(r"\s+", " ", text).strip().replace("|", "\\|")


def read_messages(root):
    """Returns {(module, message, hint): codes}, and {(level, line)} of the log."""
    texts, constants = {}, {}
    for path in lint.sources(root):
        name = path.relative_to(root).as_posix()
        if name.startswith("src/") and path.suffix in {".cpp", ".hpp"}:
            texts[name] = without_comments(path.read_text(encoding="utf-8"))
            for found in CONSTANT.finditer(texts[name]):
                constants[found[1]] = "".join(one[1:-1] for one in re.findall(LITERAL, found[2]))
    errors, lines = {}, set()
    for name, text in texts.items():
        source = Source(name, text, constants)
        for found in MADE.finditer(text):
            arguments, end = split_arguments(text, text.index("(", found.start()))
            code = found["code"] or CODES_OF_MAKERS[found["maker"]]
            if not found["code"] and (not arguments or source.is_declaration(arguments)):
                continue
            expression = arguments[1 if found["code"] else 0]
            for message, hint in source.each_call(found.start(), expression, source.chain(end)):
                message, hint = clean(message), clean(hint)
                if message.strip(f"{VALUE}: /"):
                    hint = hint if hint.strip(f"{VALUE} /") else ""
                    errors.setdefault((name.split("/")[1], message, hint), set()).add(code)
        for found in re.finditer(rf"\b[Ll]og(?:_|\((?:[^()]|\(\))*\))?\s*\.({'|'.join(LEVELS)})\(", text):
            arguments, _ = split_arguments(text, found.end() - 1)
            line = clean(source.fill(source.render(arguments[0], found.start()), arguments[1:],
                                     found.start(), None))
            if line.strip(f"{VALUE}: "):
                lines.add((found[1], line))
    return errors, lines


def make_tables(errors, lines):
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
    page += ["", "### Log lines", "", "| level | line |", "|---|---|"]
    page += [f"| {level} | {line} |" for level in LEVELS for one, line in sorted(lines) if one == level]
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
"""
TABLES = "\n".join(make_tables(
    {("a", "port …: down", "bring it up"): {"system"}, ("a", '… is "x" …', "unset it"): {"system"},
     ("a", "wrapped", ""): {"system"}, ("a", "reading", "wait"): {"system"},
     ("a", "large / small", ""): {"system"}}, {("warn", "lost …")}))
CLEAN = {"include/oriel/error.hpp": CODES, "src/a/a.cpp": SOURCE,
         PAGE: f"# Errors\n\n| `system` | why |\n\n{TABLES}\n"}
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"src/a/a.cpp": SOURCE.replace('"small"', '"tiny"')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"bring', '"take')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"unset "', '"set "')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('lost', 'lacks')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"wrapped', '"folded')}, "stale"),
    ({"src/a/a.cpp": SOURCE.replace('"reading', '"writing')}, "stale"),
    ({"src/b/b.hpp": 'Error g() { return Error(ErrorCode::system, "new"); }\n'}, "stale"),
    ({"include/oriel/error.hpp": CODES.replace("system", "cuda")}, "no row for the code cuda"),
    ({PAGE: "# Errors\n"}, "has no tables"))]

if __name__ == "__main__":
    lint.main("errors", check, CLEAN, PLANTS, write)
