"""Shapes that are another struct of ours with some fields more or less; see ``shapes.py``."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from escrowmq.cli.shapes import Shape


def derived(
    name: str,
    base: type[msgspec.Struct],
    more: Mapping[str, Any],
    *,
    without: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> type[Shape]:
    """A shape with the fields of a struct, all of them required, and some more."""
    names = renamed or {}
    kept = [
        (names.get(field.name, field.name), field.type)
        for field in msgspec.structs.fields(base)
        if field.name not in without
    ]
    made = msgspec.defstruct(
        name,
        [*kept, *more.items()],
        bases=(Shape,),
        # Where the reference page finds the descriptions of the fields.
        namespace={"described_by": base, "renamed": names, "__doc__": base.__doc__},
        module=__name__,
        kw_only=True,
        frozen=True,
        forbid_unknown_fields=True,
    )
    return cast("type[Shape]", made)
