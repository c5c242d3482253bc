# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the functions of a C++ header, and its macros, types, enum values and variables, with their
comments. Functions are found by braces, not by a parser: a parameter list that ends in a semicolon
or opens a block, outside any other function. Both branches of a preprocessor condition are read, so
each must have its own braces."""
import re

import lint

PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)
BRACKETED = r"<(?:[^<>{};]|<(?:[^<>{};]|<[^<>{};]*>)*>)*>"
NESTED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
# Matches what may stand before a name and has brackets of its own.
DECORATION = re.compile(
    rf"\btemplate\s*{BRACKETED}|\b(?:alignas|__attribute__)\s*{NESTED}|\[\[.*?\]\]")
TOKEN = re.compile(r"[(){};]|\b(?:public|private|protected)\s*:(?!:)")
NAME = re.compile(r"((?:~?\w+::)*(?:operator\s*(?:\(\)|[^\s(]+)|~?\w+))\s*\(")
NO_FUNCTION = re.compile(
    r"^(?:using|typedef|static_assert|friend|enum|asm)\b|=\s*(?:delete|default)$")
CLASS = re.compile(r"\b(class|struct|union)\s+(?:[A-Z][A-Z0-9_]+\s+)?(\w+)?")
ENUM = re.compile(r"\benum\b(?:\s+(?:class|struct)\b)?\s*(\w+)?")
MACRO = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)((?:[^\n]*\\\n)*[^\n]*)", re.M)
ALIAS = re.compile(r"^(?:template )?(?:using (\w+) =|typedef\b[^{}]*?(\w+)$)")
# Matches a statement that declares no variable.
NO_VARIABLE = re.compile(r"^(?:using|typedef|static_assert|friend|extern|enum|class|struct|union"
                         r"|asm|namespace|template class|template struct)\b|^\w*$")


class Function:
    """A function, or a function template.

    name: without its class. comment: its own, or "". outer: the comments of its classes, from the
    innermost. returned, parameters and body: code without comments and strings.
    """

    def __init__(self, found, line, comment, scopes, code):
        self.name, self.line, self.comment = found.group(1).split("::")[-1], line, comment
        self.is_definition = "::" in found.group(1)  # the class has its declaration and comment
        self.is_public = all(scope.is_public for scope in scopes)
        self.outer = [scope.comment for scope in reversed(scopes) if scope.kind == "class"]
        self.returned = found.string[:found.start()]
        end, depth = found.end(), 1
        while depth > 0:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        self.parameters, self.body = code[found.end():end - 1], code[end:]


class Symbol:
    """A macro, type, enum value or variable. comment: its own, or "". group_comment: that before
    the first of the adjacent lines in which it stands, or "". A type's comment holds for the
    members on its own line only."""

    def __init__(self, name, lines, before, behind, is_public, previous):
        self.name, (self.line, self.last_line) = name, lines
        self.is_public, self.comment, self.group_comment = is_public, before or behind, before
        if not before and previous and previous.last_line + 1 >= self.line:
            self.group_comment = previous.group_comment

    def end_group(self):
        self.last_line -= 1

    @property
    def has_comment(self):
        return bool(self.comment or self.group_comment)


class Scope:
    def __init__(self, kind, comment="", is_public=True):
        self.kind, self.comment, self.is_public = kind, comment, is_public


def blank(match):
    return re.sub(r"[^\n]", " ", match.group(0))


def comments_of(text):
    """Returns (begin, end, text) of each comment of ///, adjacent lines as one. The text of a
    comment behind code begins with "<"."""
    found = []
    for match in lint.NOT_CODE.finditer(text):
        if not match.group(0).startswith("///"):
            continue
        begin, end = match.span()
        line = text[text.rfind("\n", 0, begin) + 1:begin]
        words = match.group(0)[3:].strip()
        if found and not line.strip() and not text[found[-1][1]:begin].strip() and \
                text.count("\n", found[-1][1], begin) == 1 and not found[-1][2].startswith("<"):
            found[-1] = (found[-1][0], end, f"{found[-1][2]}\n{words}")
        else:
            found.append((begin, end, words))
    return found


class Reader:
    """Reads one header. functions: all its functions. symbols: its macros, types, enum values and
    variables. file_comment: its comments outside all braces that have an example or name the
    file."""

    def __init__(self, text):
        self.text = text
        directives = lint.NOT_CODE.sub(blank, text)
        self.code = PREPROCESSOR.sub(blank, directives)
        self.comments = comments_of(text)
        self.scopes, self.functions, self.symbols, self.classes = [], [], [], {}
        self.read_macros(directives)
        self.read()
        self.file_comment = "\n".join(
            words for begin, _, words in self.comments
            if re.search(r"```cpp|[@\\]file", words) and begin in self.outermost)

    def end_of_block(self, begin):
        """Returns the position behind the brace that closes the brace at `begin`."""
        depth = 0
        for match in re.compile(r"[{}]").finditer(self.code, begin):
            depth += 1 if match.group(0) == "{" else -1
            if depth == 0:
                return match.end()
        return len(self.code)

    def first_of(self, start, end):
        """Returns the position of the first code of the statement between `start` and `end`."""
        return end - len(self.code[start:end].lstrip())

    def comments_at(self, first, end, between=r"[ \t]*\n?[ \t]*"):
        """Returns the comments before and behind the declaration with its first code at `first`.
        between: matches what may stand between the first comment and the declaration."""
        before = [words for _, stop, words in self.comments
                  if stop <= first and not words.startswith("<")
                  and re.fullmatch(between, self.text[stop:first])]
        line_end = self.text.find("\n", end)
        behind = [words[1:] for begin, _, words in self.comments
                  if end <= begin < line_end and words.startswith("<")]
        return (before or [""])[-1].strip(), (behind or [""])[-1].strip()

    def comment_at(self, start, end):
        """Returns the comment before or behind the declaration between `start` and `end`."""
        before, behind = self.comments_at(self.first_of(start, end), end)
        return before or behind

    def add_symbol(self, name, first, end, *between):
        """Adds the symbol whose declaration has its first code at `first` and ends at `end`."""
        lines = [self.text.count("\n", 0, position) + 1 for position in (first, end)]
        before, behind = self.comments_at(first, end, *between)
        is_public = all(scope.is_public for scope in self.scopes)
        previous = self.symbols[-1] if self.symbols else None
        self.symbols.append(Symbol(name, lines, before, behind, is_public, previous))

    def read_macros(self, directives):
        """Adds the macros, but for include guards and those that are undefined in the same file.
        A comment also holds for the definitions in the branches of the condition that follows."""
        described = re.findall(r"[@\\]def (\w+)", "\n".join(words for *_, words in self.comments))
        for found in MACRO.finditer(directives):
            name, value = found.group(1), found.group(2).strip()
            is_guard = not value and re.search(
                rf"#[ \t]*ifndef[ \t]+{name}\s*$", directives[:found.start()])
            is_undefined = re.search(rf"#[ \t]*undef[ \t]+{name}\b", directives)
            if not is_guard and not is_undefined and name not in described:
                code_end = found.start() + len(found.group(0).rstrip())
                self.add_symbol(name, found.start(), code_end, r"\s?(?:[ \t]*#[^\n]*\n)*[ \t]*")

    def add_values(self, begin, end):
        """Adds the enum values between the braces at `begin` and `end`."""
        position = begin
        for piece in re.split(r",(?![^(]*\))", self.code[begin:end]):
            if name := re.search(r"\w+", piece):
                self.add_symbol(name.group(0), position + name.start(),
                                position + len(piece.rstrip()))
            position += len(piece) + 1

    def add_variable(self, start, end):
        """Adds the alias or variable that the statement declares, if it declares one."""
        first = self.first_of(start, end)
        head = " ".join(DECORATION.sub(" ", self.code[start:end]).split())
        if alias := ALIAS.search(head):
            self.add_symbol(alias.group(1) or alias.group(2), first, end)
            return
        name = re.search(r"(\w+)(?: ?\[[^\]]*\])*(?: ?<.*>)?$",
                         re.split(r"[={]| : ", head)[0].strip())
        if name and not NO_VARIABLE.search(head) and name.group(1) != "operator":
            self.add_symbol(name.group(1), first, end)

    def add_function(self, start, end, stop):
        """Adds the function and returns True, if it is one. Its declaration ends at `end`, its body
        at `stop`."""
        head, code = (" ".join(DECORATION.sub(" ", self.code[start:to]).split())
                      for to in (end, stop))
        found = NAME.search(head)
        if not found or NO_FUNCTION.search(head) or "=" in head[:found.start()] or \
                head[found.end():].startswith("*"):
            return False
        line = self.text.count("\n", 0, self.first_of(start, end)) + 1
        self.functions.append(
            Function(found, line, self.comment_at(start, stop), self.scopes, code))
        return True

    def note_class(self, start, end):
        """Keeps the comment of the class that is declared in the statement."""
        found = CLASS.search(DECORATION.sub(" ", self.code[start:end]))
        if found and (comment := self.comment_at(start, end)):
            self.classes[found.group(2)] = comment

    def open_scope(self, start, brace):
        """Handles a brace outside parentheses. Returns where to go on, and where a statement
        begins."""
        head = DECORATION.sub(blank, self.code[start:brace])
        comment = self.comment_at(start, brace)
        if re.search(r"\bnamespace\b", head):
            is_detail = head.split("::")[-1].split()[-1] == "detail"
            self.scopes.append(Scope("namespace", is_public=not is_detail))
        elif re.search(r"\bextern\s*$", head):
            self.scopes.append(Scope("extern"))
        elif "(" in head and not head.rstrip().endswith("="):
            end = self.end_of_block(brace)
            self.add_function(start, brace, end)
            return end, end
        elif CLASS.search(head) and not re.search(r"\benum\b|=\s*$", head):
            kind, name = CLASS.search(head).groups()
            if re.search(r"\babove\b", comment) and name in self.classes:
                comment += "\n" + self.classes[name]
            self.note_class(start, brace)
            self.add_symbol(name or kind, self.first_of(start, brace), brace)
            self.symbols[-1].end_group()
            self.scopes.append(Scope("class", comment, kind != "class"))
        else:
            end = self.end_of_block(brace)
            if enum := ENUM.search(head):
                self.add_symbol(enum.group(1) or "enum", self.first_of(start, brace), brace)
                self.symbols[-1].end_group()
                self.add_values(brace + 1, end - 1)
            return end, start
        return brace + 1, brace + 1

    def read(self):
        position = start = depth = 0
        self.outermost = set()
        while match := TOKEN.search(self.code, position):
            token, position = match.group(0), match.end()
            if not any(scope.kind != "extern" for scope in self.scopes):
                self.outermost |= {begin for begin, _, _ in self.comments
                                   if start <= begin < match.start()}
            if token in "()":
                depth += 1 if token == "(" else -1
            elif token == "{" and depth > 0:
                position = self.end_of_block(match.start())
            elif token == "{":
                position, start = self.open_scope(start, match.start())
            elif token == "}":
                self.scopes.pop()
                start = position
            elif token == ";" and depth == 0:
                if not self.add_function(start, match.start(), position):
                    self.add_variable(start, match.start())
                self.note_class(start, match.start())
                start = position
            elif token.endswith(":"):
                self.scopes[-1].is_public = token.startswith("public")
                start = position
