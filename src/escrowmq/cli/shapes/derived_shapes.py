"""Makes JSON shapes from another struct, with fields added or left out.

``status_shape.py``, ``audit_shape.py`` and ``store_shape.py`` use it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, cast

import msgspec

from escrowmq.cli.shapes.broker_shapes import Shape


def derived(
    name: str,
    base: type[msgspec.Struct],
    more: Mapping[str, Any],
    *,
    without: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> type[Shape]:
    """Make a shape with the fields of ``base`` but ``without``, all required, and ``more``."""
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
        # The reference page reads the descriptions of the fields here.
        namespace={"described_by": base, "renamed": names, "__doc__": base.__doc__},
        module=__name__,
        kw_only=True,
        frozen=True,
        forbid_unknown_fields=True,
    )
    return cast("type[Shape]", made)
