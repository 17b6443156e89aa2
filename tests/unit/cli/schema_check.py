"""Compares what a command printed with the shape that ``cli/schemas.py`` names for it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from escrowmq.cli.schemas import ERRORS, SCHEMAS, Form


def checked(words: str, printed: str) -> Any:  # noqa: ANN401 - whatever the JSON is
    """What a command printed with ``-o json``, once it is known to have the right shape."""
    schema = {**SCHEMAS, **ERRORS}[words]
    if schema.form is Form.LINES:
        found = [json.loads(line) for line in printed.splitlines()]
        wanted: Any = list[schema.load()]  # type: ignore[misc]
    else:
        found = json.loads(printed)
        wanted = list[schema.load()] if schema.form is Form.ARRAY else schema.load()  # type: ignore[misc]
    converted = msgspec.convert(found, wanted)
    # An unknown key would be dropped here, a missing one would get its default.
    assert json.loads(msgspec.json.encode(converted)) == found
    return found
