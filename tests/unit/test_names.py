"""One word, one meaning: what a test can hold of the glossary."""

from __future__ import annotations

import ast
import re
from collections import defaultdict

import pytest

from tests.unit.repository import modules, parse, relative

#: Class names that stand in two folders, each with the reason.
SHARED_CLASS_NAMES: dict[str, str] = {}

#: Words with one meaning, and the places whose names may contain them, each with the reason.
WORDS: dict[str, dict[str, str]] = {
    "settle": {
        "pipeline": "it ends what is undecided",
        "broker/checks/rounds.py": "the broker does the same while no pipeline leads",
        "testing": "its settler does in tests what the pipeline does",
        "client/ledger/table.py": "old names of SqlLedger.resolve, for one release",
    },
}


def defined() -> set[tuple[str, str]]:
    """Return every module, class and function, each with its file."""
    found = set()
    for path in modules("src"):
        found.add((path.stem, relative(path)))
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add((node.name, relative(path)))
    return found


def test_a_class_name_has_one_meaning() -> None:
    folders: dict[str, set[str]] = defaultdict(set)
    for path in modules("src"):
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                folders[node.name].add(relative(path.parent))
    repeated = {name: sorted(found) for name, found in folders.items() if len(found) > 1}
    unexplained = {
        name: found for name, found in repeated.items() if name not in SHARED_CLASS_NAMES
    }
    assert unexplained == {}, "give each class a name that is clear without its module"
    assert SHARED_CLASS_NAMES.keys() <= repeated.keys(), "remove the reason of what is gone"


@pytest.mark.parametrize("word", WORDS)
def test_a_word_has_one_meaning(word: str) -> None:
    named = re.compile(word.removesuffix("e"), re.IGNORECASE)
    allowed = tuple(f"src/escrowmq/{place}" for place in WORDS[word])
    found = {
        (name, file)
        for name, file in defined()
        if named.search(name) and not file.startswith(allowed)
    }
    assert found == set(), f"{word} means: {WORDS[word]}"


def test_nothing_is_called_own() -> None:
    """A module or class is native, not our own: the reader does not know whose it is."""
    assert {one for one in defined() if re.match(r"own_|Own[A-Z]", one[0])} == set()
