# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Lists the functions of a C++ header with their comments. Functions are found by braces, not by a
parser: a parameter list that ends in a semicolon or opens a block, outside any other function.
Both branches of a preprocessor condition are read, so each must have its own braces."""
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
    """Reads one header. functions: all its functions. file_comment: its comments outside all braces
    that have an example or name the file."""

    def __init__(self, text):
        self.text = text
        self.code = PREPROCESSOR.sub(blank, lint.NOT_CODE.sub(blank, text))
        self.comments = comments_of(text)
        self.scopes, self.functions, self.classes = [], [], {}
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

    def comment_at(self, start, end):
        """Returns the comment before or behind the declaration between `start` and `end`."""
        first = self.first_of(start, end)
        own = [words for begin, stop, words in self.comments
               if start <= begin and stop <= first and not words.startswith("<")
               and self.is_adjacent(stop, first)]
        line_end = self.text.find("\n", end)
        behind = [words[1:] for begin, _, words in self.comments
                  if end <= begin < line_end and words.startswith("<")]
        return (own or behind or [""])[-1].strip()

    def is_adjacent(self, begin, end):
        """Returns True if no empty line, directive or plain comment stands in between."""
        between = self.text[begin:end]
        return not re.search(r"\n[ \t]*(?:\n|#)|//", between)

    def add_function(self, start, end, stop):
        """Adds the function, if it is one. Its declaration ends at `end`, its body at `stop`."""
        head, code = (" ".join(DECORATION.sub(" ", self.code[start:to]).split())
                      for to in (end, stop))
        found = NAME.search(head)
        if not found or NO_FUNCTION.search(head) or "=" in head[:found.start()] or \
                head[found.end():].startswith("*"):
            return
        line = self.text.count("\n", 0, self.first_of(start, end)) + 1
        self.functions.append(
            Function(found, line, self.comment_at(start, stop), self.scopes, code))

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
            self.scopes.append(Scope("class", comment, kind != "class"))
        else:
            return self.end_of_block(brace), start
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
                self.add_function(start, match.start(), position)
                self.note_class(start, match.start())
                start = position
            elif token.endswith(":"):
                self.scopes[-1].is_public = token.startswith("public")
                start = position
