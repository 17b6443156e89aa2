"""Reads the descriptions of fields: the ``#:`` comment above each of them."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator


def describe(kind: type, *, is_shared: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each field of the class and its comment.

    With ``is_shared``, a field without its own comment has that of the field above it.
    """
    source = inspect.getsource(kind)
    lines = source.splitlines()
    comment = ""
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined] # it is a class
        if not isinstance(node, ast.AnnAssign) or not isinstance(node.target, ast.Name):
            continue
        first = node.lineno - 1
        while lines[first - 1].lstrip().startswith("#:"):
            first -= 1
        above = lines[first : node.lineno - 1]
        last = comment if is_shared else ""
        comment = " ".join(line.strip().removeprefix("#:").strip() for line in above) or last
        yield node.target.id, comment
