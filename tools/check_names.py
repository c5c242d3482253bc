#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Refuses home-made terms in names: of files and folders, identifiers, settings and tests.

Reads identifiers of C, C++, CUDA, Python, CMake and shell files, and titles of Catch2 cases. A name
is split into words at underscores and capitals, so LaneBell and lane_bell have the same words.
Comments and texts of messages are not read.

Words that are standard in another meaning are allowed: block, cast, demand, entry, fetch, key,
lane, repeat, room and stage. Examples are fetch-and-add, the lanes of a warp and the stages of a
pipeline. Block, entry, key and repeat are refused in pairs that have the home-made meaning, such as
queue_entry. Cast, Stage and Board are refused as whole names of types of the tests.
"""
import io
import pathlib
import re
import sys
import tokenize

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

# Maps home-made terms, in all their forms, to the standard one. A term may have several words.
TERMS = {
    "house houses": "architecture or module",
    "front_door": "API entry",
    "tell tells telling told teller": "send",
    "hear hears hearing heard": "receive",
    "given_back gives_back give_back giving_back": "freed or deregistered",
    "begun": "started",
    "gathering gatherings": "all-gather",
    "mover movers": "copy engine",
    "lend lends lending lent lender": "rendezvous read",
    "byte_window byte_windows": "congestion window",
    "judge judges judged judging": "failure detector",
    "verdict verdicts": "vote result",
    "proof proofs": "authentication",
    "stranger strangers": "unauthenticated peer",
    "patience patient patiently": "timeout",
    "look_at looks_at looked_at looking_at": "poll",
    "greeting greetings greet greets": "handshake",
    "reckon reckons reckoned reckoning": "estimate",
    "player players": "rank",
    "bell bells": "futex, doorbell register or wake-up flag",
    "remote_key remote_keys": "rkey",
    "local_key local_keys": "lkey",
    "queue_entry queue_entries queue_block queue_blocks": "WQE or WQEBB",
    "repeat_message repeats_message repeated_message repeat_messages repeated_messages "
    "message_repeat message_repeats": "retransmit",
}
# Maps whole identifiers of tests to the standard term. Player and Players are refused anywhere.
TEST_TYPES = {"Cast": "launch mode", "Stage": "fixture", "Board": "fixture"}
STANDARD = {tuple(form.split("_")): standard
            for forms, standard in TERMS.items() for form in forms.split()}
LONGEST = max(len(form) for form in STANDARD)
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
LITERAL = r'"((?:[^"\\]|\\.)*)"'
CASE = re.compile(rf"\b(?:TEMPLATE_)?TEST_CASE(?:_METHOD|_SIG)?\s*\(\s*(?:[\w:<>]+,\s*)?"
                  rf"((?:{LITERAL}\s*)+)")
SETTING = re.compile(r"\bORIEL_\w+")
# Matches comments and literals of CMake and shell files, but for names in quoted expansions.
NO_NAMES = re.compile(r"(?<![$\\\w])#[^\n]*|'[^'\n]*'|\"(?:[^\"\\$\n]|\\.)*\"")


def blank(found):
    return re.sub(r"[^\n]", " ", found[0])


def names_in_c(text):
    """Yields (position, name) of each identifier, setting and title."""
    code = lint.NOT_CODE.sub(blank, text)
    no_comments = lint.NOT_CODE.sub(
        lambda found: blank(found) if found[0].startswith("/") else found[0], text)
    yield from ((found.start(), found[0]) for found in IDENTIFIER.finditer(code))
    yield from ((found.start(), found[0]) for found in SETTING.finditer(no_comments))
    yield from ((found.start(), "".join(re.findall(LITERAL, found[1])))
                for found in CASE.finditer(no_comments))


def names_in_python(text):
    begins = [0]
    for line in text.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield begins[token.start[0] - 1] + token.start[1], token.string


def names_in_script(text):
    code = NO_NAMES.sub(blank, text)
    yield from ((found.start(), found[0]) for found in IDENTIFIER.finditer(code))


def names_in(path):
    """Returns the names in a file, each with its position."""
    if path.suffix in lint.SOURCE_SUFFIXES:
        return names_in_c(path.read_text(errors="replace"))
    if lint.is_python(path, text := path.read_text(errors="replace")):
        return names_in_python(lint.python_of(text))
    is_script = path.suffix in (".sh", ".cmake") or path.name == "CMakeLists.txt" or (
        path.suffix == "" and path.read_bytes()[:2] == b"#!")
    return names_in_script(path.read_text(errors="replace")) if is_script else ()


def terms_in(name):
    """Yields (term, standard term) of each home-made term in a name."""
    words = [word.lower() for word in WORD.findall(name)]
    for begin in range(len(words)):
        for length in range(1, LONGEST + 1):
            form = tuple(words[begin:begin + length])
            if len(form) == length and form in STANDARD:
                yield " ".join(form), STANDARD[form]


def check(root):
    findings = []
    for path in lint.tracked_files(root):
        name = path.relative_to(root).as_posix()
        findings += [f'{name}: its name has "{term}"; the standard term is {standard}'
                     for term, standard in terms_in(name)]
        types = TEST_TYPES if name.startswith("test/") else {}
        for position, found in names_in(path):
            whole = [(found, types[found])] if found in types else []
            for term, standard in [*terms_in(found), *whole]:
                line = path.read_text(errors="replace").count("\n", 0, position) + 1
                findings.append(
                    f'{name}:{line}: "{term}" in {found}: the standard term is {standard}')
    return findings


CLEAN = {
    "src/doorbell.hpp": '// Tells a bell.\nint doorbell_ = tellg("bell");\nint hasRoom, kLanes;\n'
                        "int look_up(int key);  // begun\n",
    "test/a_test.cpp": 'TEST_CASE("a doorbell rings after a put", "[req:1.1]") { f("told"); }\n',
    "test/b_test.cpp": "PathStage stage; int cast_, kBoard;  // a Board\n",
    "src/stage.hpp": "enum class Stage { kLocal }; int key_of_remote, entry, queue_has_entry;\n",
    "tools/b.py": '"""Tells it."""\nlooked = {"verdict": 1}  # a judge\n',
    "tools/c": "#!/bin/sh\n# A bell.\necho 'no bell' \"a bell\"\n",
    "CMakeLists.txt": '# A greeting.\nadd_test(NAME x COMMAND "bell")\n',
}
PLANTS = [
    ({"src/ring_bell.hpp": ""}, 'src/ring_bell.hpp: its name has "bell"'),
    ({"src/verdict/a.hpp": ""}, 'has "verdict"'),
    ({"src/a.cpp": "int a;\nstruct SilenceJudge {};\n"}, 'src/a.cpp:2: "judge" in SilenceJudge'),
    ({"src/a.cpp": "int BELLRing, HTTPBell;\n"}, '"bell" in HTTPBell'),
    ({"src/a.cpp": "#define ORIEL_TOLD(x) x\n"}, '"told" in ORIEL_TOLD'),
    ({"src/a.cpp": "int front_door_;\n"}, '"front door" in front_door_'),
    ({"src/a.cpp": "bool look_at_ring();\n"}, '"look at"'),
    ({"src/a.cpp": 'Row{"ORIEL_PATIENCE", 1}\n'}, '"patience" in ORIEL_PATIENCE'),
    *(({"src/a.hpp": f"int {found};\n"}, f"the standard term is {term}") for found, term in (
        ("remote_key_", "rkey"), ("kLocalKeys", "lkey"), ("queue_entry_bytes", "WQE or WQEBB"),
        ("QueueEntry", "WQE or WQEBB"), ("repeat_message", "retransmit"))),
    *(({"test/a/a.hpp": f"struct {found} {{}};\n"}, f'test/a/a.hpp:1: "{found}" in {found}: the')
      for found in ("Cast", "Stage", "Board")),
    ({"test/a.hpp": "struct Player {};\n"}, '"player" in Player'),
    ({"test/a_test.cpp": 'TEST_CASE("a local key is sent", "[x]") {}\n'}, '"local key" in a local'),
    ({"test/a_test.cpp": 'TEST_CASE(\n    "a peer is "\n    "heard", "[x]") {}\n'},
     'a_test.cpp:1: "heard"'),
    ({"test/a_test.cpp": 'TEST_CASE_METHOD(F<int>, "the verdict is sent") {}\n'}, '"verdict"'),
    ({"tools/b.py": "x = 1\ndef tell(x):\n    pass\n"}, 'tools/b.py:2: "tell"'),
    ({"tools/d": "#!/usr/bin/env python3\n@CODE@\nx = 'a\"'\ntell = 1\n"}, 'tools/d:4: "tell"'),
    ({"tools/c": '#!/bin/sh\necho "$greeting"\n'}, '"greeting"'),
    ({"test/CMakeLists.txt": "add_test(NAME test_mover)\n"}, '"mover" in test_mover'),
]

if __name__ == "__main__":
    lint.main("names", check, CLEAN, PLANTS)
