"""Readers of log records are total: a record that a reader forgets is an error of mypy.

A reader is a function that takes a ``Record`` and asks for its type. It must end in
``assert_never``, which mypy accepts only if every record is handled before.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import get_args

import pytest

from escrowmq.transaction import records
from tests.unit.repository import modules, parse

#: Functions that treat every record alike, but for a detail.
NOT_READERS = {
    "expiring: _expired_count",
    "log_walk: describe",
    "memory_log: _placed",
}


def readers(tree: ast.Module) -> Iterator[ast.FunctionDef]:
    for function in ast.walk(tree):
        if isinstance(function, ast.FunctionDef) and _asks_for_a_type(function):
            yield function


def _asks_for_a_type(function: ast.FunctionDef) -> bool:
    taken = {
        argument.arg
        for argument in function.args.args
        if argument.annotation is not None
        and ast.unparse(argument.annotation).split(".")[-1] == "Record"
    }
    for node in ast.walk(function):
        match node:
            case ast.Match(subject=asked):
                pass
            case ast.Call(func=ast.Name("isinstance"), args=[asked, *_]):
                pass
            case ast.Compare(left=ast.Call(func=ast.Name("type"), args=[asked])):
                pass
            case _:
                continue
        if ast.unparse(asked) in taken:
            return True
    return False


FOUND = {
    f"{path.stem}: {function.name}": function
    for path in modules("src")
    for function in readers(parse(path))
}


def test_the_readers_are_found() -> None:
    assert {
        "core: _applier",
        "store: _applier",
        "dispatch: _reader",
        "sequence: _read",
        "tally: _read",
        "counting: _counter",
        "events: events_of",
        "memory_engine: _show",
    } <= FOUND.keys()


@pytest.mark.parametrize("name", sorted(FOUND.keys() - NOT_READERS))
def test_a_reader_handles_every_record(name: str) -> None:
    calls = [node for node in ast.walk(FOUND[name]) if isinstance(node, ast.Call)]
    assert "assert_never" in {ast.unparse(call.func) for call in calls}


def test_every_record_with_messages_is_among_the_records_that_bring_messages() -> None:
    kinds = [kind for kind in get_args(records.Record) if "placed" in kind.__struct_fields__]
    assert set(kinds) == records.BRINGS_MESSAGES


def test_every_record_is_in_the_union() -> None:
    structs = [one for one in vars(records).values() if hasattr(one, "__struct_config__")]
    tagged = {one for one in structs if one.__struct_config__.tag is not None}
    assert tagged == set(get_args(records.Record))
