"""One word, one meaning: what a test can hold of the glossary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache

import pytest

from tests.unit.repository import modules, parse, relative

#: Class names that stand in two folders, each with the reason.
SHARED_CLASS_NAMES: dict[str, str] = {}

#: Words with one meaning, and the places whose names may contain them, each with the reason.
WORDS: dict[str, dict[str, str]] = {
    "settle": {
        "pipeline": "it ends what is undecided",
        "broker/checks/rounds.py": "the broker does the same while no pipeline leads",
        "broker/write/inbox.py": "the commands of these rounds",
        "demo": "it waits until all is settled",
        "cli/shapes/tool_shapes.py": "how long the demo waited for that",
        "testing": "its settler does in tests what the pipeline does",
        "model/users.py": "the action that a user needs to do so",
        "client/ledger/table.py": "old names of SqlLedger.resolve, for one release",
    },
    "carry": {
        "store": "it writes needed messages again at the end of the log",
        "transaction": "the rules for that, and its records",
        "broker/write": "it executes retention's commands",
        "broker/native/events.py": "what happened to a transaction, from its records",
        "broker/pages/metric_table.py": "the number of such messages",
        "pipeline/audit": "it knows a record that stands for an older one",
        "testing/memory_table.py": "a state table that rows are carried in, too",
    },
    "link": {"broker": "a connection of a client"},
}

#: How the other forms of a word begin.
STEMS = {"settle": "settl", "carry": "carr[yi]", "link": "(?<![a-z])links?(?![a-z])"}


@cache
def defined() -> set[tuple[str, str]]:
    """Return the name of every module and whatever a module defines, each with its file."""
    found = set()
    for path in modules("src"):
        found.add((path.stem, relative(path)))
        found |= {(name, relative(path)) for name in names_in(parse(path))}
    return found


def names_in(tree: ast.Module, *, with_variables: bool = True) -> Iterator[str]:
    """Yield the names of classes, functions, arguments, attributes and variables."""
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.arg(arg=name)
                | ast.Attribute(attr=name, ctx=ast.Store())
            ):
                yield name
            case ast.Name(id=name, ctx=ast.Store()) if with_variables:
                yield name


def test_a_class_name_has_one_meaning() -> None:
    folders: dict[str, set[str]] = defaultdict(set)
    for path in modules("src"):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef):
                folders[node.name].add(relative(path.parent))
    repeated = {name: sorted(found) for name, found in folders.items() if len(found) > 1}
    unexplained = {
        name: found for name, found in repeated.items() if name not in SHARED_CLASS_NAMES
    }
    assert unexplained == {}, "give each class a name that is clear without its module"
    assert SHARED_CLASS_NAMES.keys() <= repeated.keys(), "remove the reason of what is gone"


@pytest.mark.parametrize("word", WORDS)
def test_a_word_has_one_meaning(word: str) -> None:
    named = re.compile(STEMS[word], re.IGNORECASE)
    places = {f"src/escrowmq/{place}": place for place in WORDS[word]}
    found = {(name, file) for name, file in defined() if named.search(name)}
    elsewhere = {(name, file) for name, file in found if not file.startswith(tuple(places))}
    assert elsewhere == set(), f"{word} means: {WORDS[word]}"
    unused = {place for place in places if not any(file.startswith(place) for _, file in found)}
    assert unused == set(), "remove the reason of what is gone"


def test_nothing_is_called_own() -> None:
    """A name says whose a thing is: `native`, `of_broker`. The name of a test is a sentence."""
    found = {
        (name, relative(path))
        for path in modules("src", "tests")
        for name in (path.stem, *names_in(parse(path), with_variables=False))
        if not name.startswith("test_")
        and re.search(r"(?<![A-Za-z])own(?![a-z])|Own(?![a-z])", name)
    }
    assert found == set()
