#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Checks that MkDocs builds the site of all pages. Every page of the repository must stand in the
navigation of mkdocs.yml, and every link must lead to a page, a file or a heading. To build the site
in build/site:

    tools/check_site.py --write

The pages keep the paths that they have in the repository, so that a link works in both. Files to
which pages link are copied beside them.
"""
import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "lib"))
import lint  # noqa: E402

CONFIG = "mkdocs.yml"
LINK = re.compile(r"\]\(([^)\s#]+)")
LEFT_OUT = {"docs/requirements.in.md"}  # the source of docs/requirements.md
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
# Matches what MkDocs prints about a page that it cannot publish as it is.
WARNING = re.compile(r"^(?:WARNING|ERROR) *-? *(.*)$", re.M)


def pages_of(root):
    return [path for path in lint.tracked_files(root)
            if path.suffix == ".md" and path.relative_to(root).as_posix() not in LEFT_OUT]


def lay_out(root, folder):
    """Copies the pages, and the files to which they link, to `folder`. Returns findings."""
    findings = []
    config = (root / CONFIG).read_text(encoding="utf-8")
    for page in pages_of(root):
        name = page.relative_to(root).as_posix()
        if not re.search(rf"(?<![\w/.-]){re.escape(name)}\s*$", config, re.M):
            findings.append(f"{name}: is not in the navigation of {CONFIG}")
        for link in ["", *LINK.findall(page.read_text(encoding="utf-8"))]:
            target = (page.parent / link).resolve() if link else page
            if "://" in link or not target.is_file() or not target.is_relative_to(root.resolve()):
                continue
            copy = folder / target.relative_to(root.resolve())
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(target, copy)
    return findings


class Page(html.parser.HTMLParser):
    """The identifiers and the links of a page of the site."""

    def __init__(self, text):
        super().__init__()
        self.identifiers, self.links = set(), []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.identifiers.update(filter(None, [attributes.get("id"), attributes.get("name")]))
        if tag == "a" and attributes.get("href"):
            self.links.append(attributes["href"])


def lost_headings(site):
    """Yields a finding for each link to a heading that its page does not have."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8"))
             for path in site.rglob("*.html") if path.name != "404.html"}
    for path, page in pages.items():
        for link in page.links:
            address, _, heading = link.partition("#")
            if "://" in address or not heading:
                continue
            target = (path.parent / address).resolve() if address else path
            target = target / "index.html" if target.is_dir() else target
            if target in pages and heading not in pages[target].identifiers:
                page = path.parent.relative_to(site.resolve()).as_posix()
                yield f"{page}: no heading for the link {link}"


def build(root, site):
    """Builds the site; returns findings."""
    with tempfile.TemporaryDirectory(prefix="oriel-site-") as name:
        folder = pathlib.Path(name)
        findings = lay_out(root.resolve(), folder / "pages")
        shutil.copyfile(root / CONFIG, folder / CONFIG)
        (folder / "build.yml").write_text(
            f"INHERIT: {CONFIG}\ndocs_dir: pages\nsite_dir: {site.resolve()}\n", encoding="utf-8")
        done = subprocess.run(["mkdocs", "build", "--strict", "-f", "build.yml"], cwd=folder,
                              check=False, capture_output=True, text=True)
    output = COLOUR.sub("", done.stderr + done.stdout)
    warnings = WARNING.findall(output)
    if done.returncode != 0 and not warnings:
        findings.append(f"mkdocs has failed: {output.strip()}")
    findings += warnings
    return findings + sorted(set(lost_headings(site)))


def check(root):
    with tempfile.TemporaryDirectory(prefix="oriel-site-") as site:
        return build(root, pathlib.Path(site))


def write(root):
    site = root / "build" / "site"
    build(root, site)
    print(f"site: {site.relative_to(root)}/index.html")


CONFIG_TEXT = "site_name: x\nplugins: []\nnav:\n  - README.md\n  - docs/a.md\n"
CLEAN = {CONFIG: CONFIG_TEXT, "README.md": "# X\n\n[a](docs/a.md#part) [s](src/s.cpp)\n",
         "docs/a.md": "# A\n\n## Part\n\n[x](../README.md)\n", "src/s.cpp": "int s;\n"}
PLANTS = [({**CLEAN, **files}, expected) for files, expected in (
    ({"docs/b.md": "# B\n"}, "docs/b.md: is not in the navigation"),
    ({CONFIG: CONFIG_TEXT + "  - docs/c.md\n"}, "docs/c.md"),
    ({"docs/a.md": "# A\n\n## Part\n\n[x](b.md)\n"}, "b.md"),
    ({"docs/a.md": "# A\n"}, "no heading for the link docs/a/#part"))]

if __name__ == "__main__":
    if not shutil.which("mkdocs"):
        raise SystemExit("site: there is no mkdocs; install the packages mkdocs and "
                         "mkdocs-material")
    lint.main("site", check, CLEAN, PLANTS, write)
