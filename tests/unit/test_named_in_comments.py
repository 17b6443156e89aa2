"""What a docstring or a comment names in backticks must exist."""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

from tests.unit.repository import CODE, SOURCE, modules, relative

#: Names that the code puts together, and names outside the repository, each with the reason.
ELSEWHERE: dict[str, str] = {
    "no_decisions": "a level of free disk space: its enum has it in upper case",
    "pyspark/version.py": "a file of Spark",
    "sent_before": "an outcome in JSON: the code has it with spaces",
    "would_be_sent": "an outcome in JSON: the code has it with spaces",
    "would_commit": "an outcome of a dry run, made from a resolution",
    "would_force_commit": "an outcome of a dry run, made from a resolution",
    "would_force_rollback": "an outcome of a dry run, made from a resolution",
    "would_rollback": "an outcome of a dry run, made from a resolution",
}

MARKED = re.compile(r"(`+)([\w/]+(?:\.py)?)\1")
SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)+")
BEFORE_A_STATEMENT = {tokenize.ENCODING, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
NO_CODE = {tokenize.NL, tokenize.COMMENT}


def parts(path: Path) -> Iterator[tuple[tokenize.TokenInfo, bool]]:
    """Yield each token of a module, and whether it is a docstring or a comment."""
    before = tokenize.ENCODING
    for token in tokenize.generate_tokens(io.StringIO(path.read_text("utf-8")).readline):
        is_docstring = token.type == tokenize.STRING and before in BEFORE_A_STATEMENT
        yield token, is_docstring or token.type == tokenize.COMMENT
        if token.type not in NO_CODE:
            before = token.type


def test_comments_name_what_exists() -> None:
    files = tuple(f"/{relative(path)}" for path in CODE)
    words = {path.stem for path in CODE}
    named: dict[str, str] = {}
    for path in modules("src"):
        words |= set(path.relative_to(SOURCE).parts)
        for token, is_prose in parts(path):
            if is_prose:
                found = (mark[1] for mark in MARKED.findall(token.string))
                named |= dict.fromkeys(found, f"{relative(path)}:{token.start[0]}")
            else:
                words |= set(re.findall(r"\w+", token.string))

    def exists(name: str) -> bool:
        if name.endswith(".py"):
            return any(file.endswith(f"/{name}") for file in files)
        return name in words or not SNAKE_CASE.fullmatch(name)

    missing = {name: place for name, place in named.items() if not exists(name)}
    assert {name: missing[name] for name in missing.keys() - ELSEWHERE.keys()} == {}
    assert ELSEWHERE.keys() <= missing.keys(), "remove the reason of what is gone"
