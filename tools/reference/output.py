"""Generates the reference of what commands print with ``-o json``: a page and a JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from escrowmq.cli.shapes.schemas import ERRORS, SCHEMAS, OutputForm, Schema
from tools.reference.comments import describe

PAGE, SCHEMA = "cli-output.md", "cli-output.schema.json"

_HEAD = f"""\
# JSON output

Written by `make docs` from the code; edit `cli/shapes/broker_shapes.py` and its neighbors instead.

With `-o json` every command prints JSON on standard output, and nothing else.
[`{SCHEMA}`]({SCHEMA}) is the same as JSON Schema: its property `topic list` is the schema of what
`escrowmq topic list -o json` prints.

- **Keys** are snake_case. A key keeps its name, type and unit. A release may add keys, so ignore
  those that you do not know. Every key is always there; a value that is not known is null.
- **Numbers** are numbers. `_ms` ends the name of milliseconds, `_at_ms` that of an instant
  (milliseconds since 1970, UTC), `_bytes` that of a size in bytes.
- **Lists** are one array. `message tail`, `txn watch`, `serve`, `up` and `pipeline` print one
  object per line instead (JSON lines), each as it happens.
- **Errors** are one object on one line of standard error. The [exit code](cli.md) is the same as
  without `-o json`.
- **Notes** about a result, for example that a list was cut, are one object each on one line of
  standard error. `serve`, `up` and `pipeline` write their log there; `--log-format json` makes it
  JSON, too. A question that `--yes` would answer is asked there.
- **`-o csv`** has the keys as its header; a value that is a list or an object is JSON in its cell.
"""

_NAMES: dict[type, str] = {
    inspect.AnyType: "any value",
    inspect.BoolType: "true or false",
    inspect.EnumType: "text",
    inspect.FloatType: "number",
    inspect.IntType: "integer",
    inspect.LiteralType: "text",
    inspect.NoneType: "null",
    inspect.StrType: "text",
}


def page() -> str:
    """Return the page of JSON output."""
    commands = (
        line
        for words, schema in SCHEMAS.items()
        for line in _section(f"`escrowmq {words}`", schema)
    )
    errors = (
        line
        for name, schema in ERRORS.items()
        for line in _section(f"Standard error: {name}", schema)
    )
    return "\n".join([_HEAD, *commands, *errors])


def schema_document() -> str:
    """Return the JSON Schema of all commands, as text."""
    every = {**SCHEMAS, **ERRORS}
    kinds = [schema.load() for schema in every.values()]
    refs, found = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    for kind in _structs(kinds):
        _tell_all(found, kind)
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "What escrowmq prints with -o json",
        "description": "One property for each command; of commands that print lines, of one line.",
        "type": "object",
        "properties": {
            words: _of_form(schema.form, ref)
            for (words, schema), ref in zip(every.items(), refs, strict=True)
        },
        "additionalProperties": False,
        "$defs": dict(sorted(found.items())),
    }
    return json.dumps(document, indent=1) + "\n"


def _of_form(form: OutputForm, ref: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": ref} if form is OutputForm.ARRAY else ref


def _tell_all(found: dict[str, Any], kind: type[msgspec.Struct]) -> None:
    """Add the descriptions of a struct's keys to its schema, and make all of them required."""
    names = {field.encode_name for field in msgspec.structs.fields(kind)}
    (schema,) = (
        one
        for one in found.values()
        if one.get("title") == kind.__name__ and one.get("properties", {}).keys() == names
    )
    schema["required"] = sorted(names)
    # A reader built for one release must accept the output of the next.
    schema.pop("additionalProperties", None)
    for name, about in _descriptions(kind).items():
        schema["properties"][name].pop("default", None)
        if about:
            schema["properties"][name]["description"] = about


def _section(title: str, schema: Schema) -> Iterator[str]:
    kind = schema.load()
    yield f"## {title}\n"
    if not _is_struct(kind):
        yield f"{schema.form.capitalize()}, whose keys are the columns of the query.\n"
        return
    yield f"{schema.form.capitalize()}.\n"
    yield "| Key | Type | Meaning |"
    yield "|---|---|---|"
    yield from _rows(kind, "")
    yield ""


def _rows(kind: type[msgspec.Struct], prefix: str) -> Iterator[str]:
    about = _descriptions(kind)
    for field in msgspec.structs.fields(kind):
        told = inspect.type_info(field.type)
        name = f"{prefix}{field.name}"
        nested, mark = _nested(told)
        words = about.get(field.name, "")
        if nested is not None and (command := _printed_by(nested)):
            words = f"{words} As `escrowmq {command}` prints it.".strip()
        yield f"| `{name}` | {_type_name(told)} | {_escaped(words)} |"
        if nested is not None and not _printed_by(nested):
            yield from _rows(nested, f"{name}{mark}.")


def _nested(told: inspect.Type) -> tuple[type[msgspec.Struct] | None, str]:
    """Return the struct in a value, or None, and the path that leads to it."""
    match told:
        case inspect.StructType():
            return told.cls, ""
        case inspect.ListType() | inspect.VarTupleType():
            nested, mark = _nested(told.item_type)
            return nested, f"[]{mark}"
        case inspect.DictType():
            nested, mark = _nested(told.value_type)
            return nested, f".NAME{mark}"
        case inspect.UnionType():
            found = [_nested(one) for one in told.types]
            return next((one for one in found if one[0] is not None), (None, ""))
    return None, ""


def _printed_by(kind: type[msgspec.Struct]) -> str:
    """Return the command that prints this struct as its whole output, or an empty string."""
    return next((words for words, schema in SCHEMAS.items() if schema.load() is kind), "")


def _type_name(told: inspect.Type) -> str:
    match told:
        case inspect.StructType():
            return "object"
        case inspect.ListType() | inspect.VarTupleType():
            return f"array of {_plural(_type_name(told.item_type))}"
        case inspect.TupleType():
            return f"array: {', '.join(map(_type_name, told.item_types))}"
        case inspect.DictType():
            return f"object: {_type_name(told.value_type)} by name"
        case inspect.UnionType():
            return " or ".join(map(_type_name, told.types))
    return _NAMES[type(told)]


def _plural(name: str) -> str:
    return name if name == "text" or " " in name else f"{name}s"


def _escaped(words: str) -> str:
    return words.replace("|", "\\|").replace("``", "`")


def _descriptions(kind: type[msgspec.Struct]) -> dict[str, str]:
    """Return by key the comment above its field, which may be in a base class."""
    source = getattr(kind, "described_by", kind)
    renamed = getattr(kind, "renamed", {})
    comments: dict[str, str] = {}
    for one in reversed(source.__mro__):
        if msgspec.Struct in one.__mro__[1:]:
            comments |= dict(describe(one, is_shared=False))
    names = [field.name for field in msgspec.structs.fields(kind)]
    told = {renamed.get(name, name): about for name, about in comments.items()}
    return {name: told.get(name, "") for name in names}


def _structs(kinds: list[Any]) -> list[type[msgspec.Struct]]:
    """Return every struct in the output of the commands, each once."""
    found: dict[type[msgspec.Struct], None] = {}

    def look(told: inspect.Type) -> None:
        match told:
            case inspect.StructType() if told.cls not in found:
                found[told.cls] = None
                for field in told.fields:
                    look(field.type)
            case inspect.ListType() | inspect.VarTupleType():
                look(told.item_type)
            case inspect.DictType():
                look(told.value_type)
            case inspect.UnionType():
                for one in told.types:
                    look(one)

    for kind in kinds:
        look(inspect.type_info(kind))
    return list(found)


def _is_struct(kind: Any) -> bool:  # noqa: ANN401 - a type, or an alias of one
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)
