# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Reads from C++ sources the texts that reach a message, through local variables and through the
parameters of functions, members and lambdas. Calls are followed into all files that see a
declaration of the function. See tools/check_errors.py.
"""
import itertools
import re

import lint

VALUE = "…"
# Functions that make an Error of a failed system or driver call; their first argument is the text.
CODES_OF_MAKERS = {"system_error": "system", "cuda_error": "cuda", "cuda_status": "cuda"}
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
PATH = re.compile(r"^/\S+$")  # an absolute path, for which a message has a value
# Matches the type in the head of a function that returns a text.
RETURNS_TEXT = re.compile(r"^(?:const char\*|std::string|std::optional<std::string>) [\w:]+$")
# Matches sentences of reports, names of files and attributes.
NO_REASON = re.compile(r"[.](?: …)?$|^[/#;]|^…?/|=\"")
LEAST_WORDS = 3  # a returned text with fewer is a name
INCLUDE = re.compile(r'^#include "([^"]+)"', re.M)
# Matches the head of a class, or of a namespace without a name.
BLOCK = re.compile(r"(?:\b(?:class|struct)(?: alignas\([^()]*\))? (\w+)[^;{}()]*|\bnamespace )\{")
NO_FUNCTIONS = {"if", "for", "while", "switch", "catch", "constexpr"}
# Members that keep the text of a later error. In the message, their texts stand for them.
KEPT_MEMBERS = {"why_", "missing"}
# Members that keep the reason of a later error, whose message has … for it: {member: code}.
CODES_OF_REASONS = {"reason_": "remote"}
KEPT = re.compile(rf"(?:\b|\.)({'|'.join(sorted(KEPT_MEMBERS | set(CODES_OF_REASONS)))}) = "
                  rf"((?:{LITERAL}|[^;\"])+);")
IS_KEPT = re.compile(rf"(?:.*(?:\.|->))?({'|'.join(sorted(KEPT_MEMBERS))})$", re.S)
CODE = re.compile(r"(?:oriel::)?(ErrorCode::\w+)$")
LAMBDA = re.compile(r"\[[^\[\]]*\]\s*(?:\(\)\s*)?\{\s*return ([^;]*);\s*\}$")
MOST_HELPERS = 4
MOST_ADDITIONS = 2  # `text += ...` that give alternatives of a text


class Scope:
    """A function or a lambda: its name, the names of its parameters, and the place of its body.

    `whole` is the range of the text in which its calls stand. `owner` is the class of a member, or
    "". `is_local` says that no other file can call it.
    """

    def __init__(self, name, parameters, begin, end, whole):
        self.name, self.parameters = name, parameters
        self.begin, self.end, self.whole = begin, end, whole
        self.owner, self.is_local = "", False


def name_of(parameter):
    words = re.findall(r"\w+", re.sub(r"\s*=.*", "", parameter, flags=re.S))
    return words[-1] if words else ""


def partners(code):
    """Returns {place: place of the other one} of the parentheses and braces."""
    opened, partner = [], {}
    for mark in re.finditer(r"[(){}]", code):
        if mark[0] in "({":
            opened.append(mark.start())
        elif opened:
            partner[mark.start()] = opened[-1]
            partner[opened.pop()] = mark.start()
    return partner


def is_declared(text, at):
    """Returns whether a type stands before the name at `at`, as in a declaration."""
    before = re.search(r"([\w>&*]+)\s+$", text[max(0, at - 100):at])
    return before is not None and before[1] not in {"return", "co_return", "co_await", "else", "&&"}


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

    def __init__(self, name, text, program):
        self.name, self.text, self.program = name, text, program
        self.constants = program.constants
        self.placed_hints = set()  # places of with_hint in chains that were read
        self.scopes = self.read_scopes()
        self.definitions = {scope.opening for scope in self.scopes}

    def read_scopes(self):
        """Returns the functions and lambdas of the file, outer ones first."""
        code = lint.NOT_CODE.sub(lambda found: " " * len(found[0]), self.text)
        partner = partners(code)
        blocks = [(found[1] or "", found.end() - 1, partner.get(found.end() - 1, 0))
                  for found in BLOCK.finditer(code)]
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
            around = [one for one, first, last in blocks if first < opening < last]
            owners = around + [one for one in (found["name"] or "").split("::")[:-1]
                               if one in self.program.classes]
            scope.owner = owners[-1] if owners else ""
            scope.is_local = (bool(found["captures"]) or "" in around
                              or self.name.endswith(".cpp") and bool(around)
                              or "static " in code[code.rfind("\n", 0, opening):opening])
            scopes.append(scope)
        return scopes

    def around(self, at):
        """Returns the functions and lambdas around `at`, inner ones first."""
        return [one for one in reversed(self.scopes) if one.begin < at < one.end]

    def value_of(self, name, at):
        """Returns (expression of the local variable `name`, begin of its scope), or (None, at)."""
        for scope in self.around(at) if name.isidentifier() else ():
            if value := self.local(name, scope.begin, at):
                return value, scope.begin
            if name in scope.parameters:
                break
        return None, at

    def local(self, name, begin, at):
        """Returns the expression that a local variable gets between `begin` and `at`, or None."""
        types = r"std::string|std::string_view|char\* const|char\*|auto|ErrorCode"
        found = re.search(rf"\b(?:{types}) {name}(?:\s=\s+|\()", self.text[begin:at])
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
        expression = re.sub(r'(?<=")\s*#\w+', f' "{VALUE}"', expression.strip())  # in a macro
        if found := CODE.match(expression):
            return found[1]
        if found := LAMBDA.match(expression):
            return self.render(found[1], at, values)
        if (expression.startswith("(")
                and (inner := split_arguments(expression, 0))[1] == len(expression)):
            return self.render(", ".join(inner[0]), at, values)
        if (found := re.match(r"std::move\(|std::string\(|fmt::format\(|to_string\(", expression)):
            arguments, end = split_arguments(expression, found.end() - 1)
            if end == len(expression):
                if found[0].startswith("to_"):
                    return VALUE
                text = self.render(arguments[0] if arguments else '""', at, values)
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
        called = expression.removesuffix("()")
        if values and called in values:
            return values[called]
        if (found := IS_KEPT.match(expression)) and (kept := self.program.kept(found[1], self)):
            return " / ".join(kept)
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

    def returned(self, scope):
        """Yields the texts that a function returns, or adds to the list that it returns."""
        for found in re.compile(r"\b(?:return |\w+\.push_back\()").finditer(
                self.text, scope.begin, scope.end):
            expression = (top_level(self.text[found.end():scope.end], ";")[0]
                          if found[0] == "return "
                          else ", ".join(split_arguments(self.text, found.end() - 1)[0]))
            call = re.match(r"(\w+)\(", expression)
            inner = [one for one in self.scopes
                     if call and one.name == call[1] and one is not scope]
            for one in inner:
                yield from self.returned(one)
            if not inner:
                yield from self.render(expression, found.start()).split(" / ")

    def texts_of_loop(self, name, at):
        """Yields the texts that the variable of a loop over a function's result can have."""
        found = re.search(rf"[ &]{name} : (\w+)\(", self.text[:at]) if name.isidentifier() else None
        for home in self.program.sources.values() if found else ():
            for scope in home.scopes:
                if scope.name == found[1]:
                    yield from home.returned(scope)

    def reasons(self):
        """Yields the texts that functions return to be a part of a message."""
        for scope in self.scopes:
            head = self.text[self.text.rfind("\n", 0, scope.opening) + 1:scope.opening]
            if RETURNS_TEXT.match(head):
                yield from (one for one in self.returned(scope)
                            if len(re.findall(r"[A-Za-z]+", one)) >= LEAST_WORDS
                            and not NO_REASON.search(one))

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
        """Returns the list of find_calls, which it keeps."""
        if scope not in self.program.calls:
            self.program.calls[scope] = list(self.find_calls(scope))
        return self.program.calls[scope]

    def find_calls(self, scope):
        """Yields (source, place, arguments, hint) of each call of a function, member or lambda."""
        # In the file that defines A::f, `x.f(` is mostly a member of another class.
        receiver = "::" if scope.is_member_outside else r"::|\.|->"
        name = re.compile(rf"(?:(?<=\*>)\(\w+\)->|(?<![\w:.>])(?:\w+(?:{receiver}))*)"
                          rf"{re.escape(scope.name)}\(")
        for found in name.finditer(self.text, *scope.whole):
            if found.end() - 1 in self.definitions:
                continue
            given, end = split_arguments(self.text, found.end() - 1)
            if len(given) == len(scope.parameters) and not self.is_declaration(given):
                yield self, found.start(), given, self.chain(end)
        for other in () if scope.is_local else self.program.callers_of(scope, self):
            yield from other.calls_from_outside(scope)

    def calls_from_outside(self, scope):
        """Yields the same for a function or member that another file defines."""
        own = [one for one in self.scopes if one.name == scope.name
               and len(one.parameters) == len(scope.parameters)]
        for found in re.finditer(rf"(?<!\w)(?:(?P<receiver>\w+)(?:\([^()]*\))?(?:\.|->)|(?:\w+::)*)"
                                 rf"{scope.name}\(", self.text):
            if found.end() - 1 in self.definitions or is_declared(self.text, found.start()):
                continue
            around = {one.owner for one in self.around(found.start())}
            if found["receiver"]:
                fits = scope.owner and self.program.is_of(found["receiver"], scope.owner, self)
            else:
                fits = scope.owner in around if scope.owner else not own
            given, end = split_arguments(self.text, found.end() - 1)
            if fits and len(given) == len(scope.parameters) and not self.is_declaration(given):
                yield self, found.start(), given, self.chain(end)

    def each_call(self, at, expressions, helpers=0):
        """Yields the texts of the expressions at `at`. If they name parameters of a function or
        lambda around them, yields them for each call of the function."""
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
            calls = [{**dict(zip(scope.parameters, (PATH.sub(VALUE, one) for one in choice))),
                      **({HINT_OF_CALL: caller.render(hint, place)} if hint else {})}
                     for caller, place, given, hint in self.calls_of(scope)
                     for texts in caller.each_call(place, given, helpers + 1)
                     for choice in itertools.product(*(text.split(" / ") for text in texts))]
            bindings = [{**outer, **inner} for outer in calls or [{}] for inner in bindings]
        for values in bindings:
            yield [self.render(one, at, values) for one in expressions]


class Program:
    """The files of src, and which of them see which functions and members."""

    def __init__(self, texts):
        self.constants, self.includes, self.sources = {}, {}, {}
        for name, text in texts.items():
            self.includes[name] = {"src/" + one for one in INCLUDE.findall(text)} & set(texts)
            for found in CONSTANT.finditer(text):
                literals = re.findall(LITERAL, found[2])
                self.constants[found[1]] = "".join(one[1:-1] for one in literals)
        self.classes = {one[1] for text in texts.values() for one in BLOCK.finditer(text)} - {None}
        self.seen = {name: self.closure(name) for name in texts}
        for name, text in texts.items():
            self.sources[name] = Source(name, text, self)
        self.types, self.calls, self.kept_texts = {}, {}, {}

    def kept(self, member, reader):
        """Returns the texts of a member of KEPT_MEMBERS, of each assignment in `reader` and in the
        files of its module whose header it sees."""
        key = member, reader.name
        if key not in self.kept_texts:
            self.kept_texts[key] = []  # ends recursion
            module = "/".join(reader.name.split("/")[:2]) + "/"
            seen = self.seen[reader.name]
            homes = [one for name, one in self.sources.items() if one is reader or
                     name.startswith(module) and re.sub(r"\.cpp$", ".hpp", name) in seen]
            self.kept_texts[key] = sorted({
                text for one in homes for found in KEPT.finditer(one.text) if found[1] == member
                for texts in one.each_call(found.start(), [found[2]])
                for text in texts[0].split(" / ")
                if text.strip(f"{VALUE}: ")})
        return self.kept_texts[key]

    def closure(self, name):
        """Returns the file and all that it includes, also through others."""
        seen, left = set(), [name]
        while left:
            if (one := left.pop()) not in seen:
                seen.add(one)
                left += self.includes[one]
        return seen

    def callers_of(self, scope, home):
        """Returns the other files that name a function and see a declaration of it."""
        named = [one for one in self.sources.values() if f"{scope.name}(" in one.text]
        declaring = {one.name for one in named
                     if one.name in self.seen[home.name] and one.name.endswith(".hpp")}
        return [one for one in named
                if one is not home and not declaring.isdisjoint(self.seen[one.name])]

    def is_of(self, receiver, owner, source):
        """Returns whether a file sees a variable or function `receiver` whose type has `owner`."""
        key = receiver, owner, source.name
        if key not in self.types:
            name = re.compile(rf"\b{owner}\b[\w<>:,\s]*?[>&*\s]+(?:const\s+)?{receiver}\b")
            self.types[key] = receiver == owner or any(
                owner in self.sources[one].text and name.search(self.sources[one].text)
                for one in self.seen[source.name])
        return self.types[key]
