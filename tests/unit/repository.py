"""Helpers that find and read files, for the tests of the repository itself."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src"
PACKAGE = SOURCE / "escrowmq"
ADR = ROOT / "docs" / "adr"

_FENCE = re.compile(
    r"^(?P<ticks>`{3,})(?P<info>[^`\n]*)\n(?P<body>.*?)^(?P=ticks)\s*$", re.MULTILINE | re.DOTALL
)
_LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fenced block of a page."""

    page: Path
    line: int
    kind: str
    body: str

    def __str__(self) -> str:
        return f"{relative(self.page)}:{self.line} ({self.kind})"


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def modules(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


#: Every module of ours.
CODE = modules("src", "tests", "bench", "examples", "tools")


def pages() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


@cache
def parse(path: Path) -> ast.Module:
    """The module's tree, which a caller must not change: each test of the repository reads it."""
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(tree: ast.Module, module: str, *, for_types: bool = True) -> Iterator[str]:
    """Yield full names of all imports, also in functions and import_module calls.

    Without ``for_types``, imports that only type checkers see are left out.
    """
    package = module.rpartition(".")[0]
    for node in _nodes(tree, for_types=for_types):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=base, names=names, level=level):
                start = package.rsplit(".", level - 1)[0] if level else ""
                origin = ".".join(part for part in (start, base) if part)
                # "from escrowmq import store" imports escrowmq.store.
                yield from (f"{origin}.{alias.name}" for alias in names)
            case ast.Call(
                func=ast.Attribute(attr="import_module")
                | ast.Name(id="import_module" | "__import__"),
                args=[ast.Constant(value=str(name)), *_],
            ):
                yield name


def _nodes(tree: ast.AST, *, for_types: bool) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        match node:
            case ast.If(test=ast.Name(id="TYPE_CHECKING")) if not for_types:
                pass
            case _:
                yield node
                yield from _nodes(node, for_types=for_types)


def blocks(page: Path) -> Iterator[Block]:
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        yield Block(
            page=page,
            line=text.count("\n", 0, fence.start()) + 1,
            kind=fence["info"].strip(),
            body=fence["body"],
        )


def prose(page: Path) -> str:
    """Return the page without its fenced blocks."""
    return _FENCE.sub("", page.read_text(encoding="utf-8"))


def links(page: Path) -> list[str]:
    return [link["target"] for link in _LINK.finditer(prose(page))]


def headings(page: Path, level: int) -> list[str]:
    marks = "#" * level + " "
    return [
        line.removeprefix(marks).strip()
        for line in prose(page).splitlines()
        if line.startswith(marks)
    ]
