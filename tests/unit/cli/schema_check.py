"""Compare what a command printed with its schema in ``cli/shapes/schemas.py``."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from escrowmq.cli.shapes.schemas import ERRORS, SCHEMAS, OutputForm


def checked(words: str, printed: str) -> Any:  # noqa: ANN401 - any JSON value
    """Return the parsed output of ``-o json`` after checking it against the command's schema."""
    schema = {**SCHEMAS, **ERRORS}[words]
    if schema.form is OutputForm.LINES:
        found = [json.loads(line) for line in printed.splitlines()]
        wanted: Any = list[schema.load()]  # type: ignore[misc]
    else:
        found = json.loads(printed)
        wanted = list[schema.load()] if schema.form is OutputForm.ARRAY else schema.load()  # type: ignore[misc]
    converted = msgspec.convert(found, wanted)
    # The conversion drops unknown keys and fills in defaults, so compare both ways.
    assert json.loads(msgspec.json.encode(converted)) == found
    return found
