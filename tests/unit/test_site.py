"""The documentation site builds as users get it. Every warning is an error."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.unit.repository import ROOT, prose

COMPARISON = ROOT / "docs" / "explain" / "comparison.md"
PROVED = re.compile(r"\[yes\]\(\.\./\.\./tests/[\w/]+(\.py#test_\w+|\.scenario)\)")
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "source": "src"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        # Otherwise the theme warns about its successor.
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return folder


class Reader(HTMLParser):
    """Parser that collects the files a page loads and the text of its paragraphs."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.paragraphs: list[str] = []
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value for name, value in attrs if value and name == LOADED.get(tag)]
        if tag == "p":
            self._is_inside = True
            self.paragraphs.append("")

    def handle_endtag(self, tag: str) -> None:
        self._is_inside = self._is_inside and tag != "p"

    def handle_data(self, data: str) -> None:
        if self._is_inside:
            self.paragraphs[-1] += data


def read(page: Path) -> Reader:
    reader = Reader()
    reader.feed(page.read_text(encoding="utf-8"))
    return reader


def test_the_site_is_whole_and_loads_nothing_from_a_network(site: Path) -> None:
    pages = sorted(site.rglob("*.html"))
    assert (site / "index.html") in pages
    assert (site / "ARCHITECTURE.html") in pages
    foreign = {
        (page.relative_to(site).as_posix(), target)
        for page in pages
        for target in read(page).loaded
        if re.match(r"(https?:)?//", target)
    }
    assert foreign == set()


def test_lists_are_lists_on_the_site_too(site: Path) -> None:
    """Without an empty line before it, the site's Markdown renders a list as plain text."""
    swallowed = [
        f"{page.relative_to(site)}: {paragraph[:60]}"
        for page in sorted(site.rglob("*.html"))
        for paragraph in read(page).paragraphs
        if re.search(r"^\s*([-*]|\d+\.) |^\|.*\|$", paragraph, re.MULTILINE)
    ]
    assert swallowed == []


def test_a_link_to_a_test_leads_to_it_on_the_site(site: Path) -> None:
    page = (site / "explain" / "comparison.html").read_text(encoding="utf-8")
    file, anchor = re.findall(r'href="\.\./(source/[^"#]+)#(test_\w+)"', page)[0]
    assert f'id="{anchor}"' in (site / file).read_text(encoding="utf-8")


def test_each_yes_of_ours_in_the_comparison_links_to_its_proof() -> None:
    """The test of all links in test_tidy.py checks that the named test exists."""
    rows = [line.split("|") for line in prose(COMPARISON).splitlines() if line.startswith("| ")]
    ours = {row[1].strip(): row[2].strip() for row in rows[1:]}
    assert len(ours) > 20
    unproved = [what for what, said in ours.items() if "yes" in PROVED.sub("", said)]
    assert unproved == []
    assert sum(bool(PROVED.match(said)) for said in ours.values()) > len(ours) / 2
