"""Converts a RocketMQ broker's file to settings of ours, and writes them as TOML.

``rocketmq/`` has the names and the reader of the file. This module applies them and lets the
config loader check every value, so that the result always loads.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum

from escrowmq.cli.config import SECTIONS, load
from escrowmq.cli.preview import clipped
from escrowmq.cli.rocketmq.left_out import LEFT_OUT, LeftOut, left_out
from escrowmq.cli.rocketmq.names import BY_THEIRS, SettingName
from escrowmq.cli.rocketmq.properties import Property
from escrowmq.cli.shapes.tool_shapes import ImportedKeyShape, Value
from escrowmq.model.errors import RequestRefused

#: Columns of a key or a value in the output; a longer one is cut.
SHOWN_WIDTH = 80

_EXACT = (name for row in LEFT_OUT for name in row.names.split() if "*" not in name)
_BY_SMALL = {name.lower(): name for name in (*BY_THEIRS, *_EXACT)}


class ImportOutcome(StrEnum):
    """Outcome of the import of one key."""

    MAPPED = "mapped"
    REFUSED = "refused"
    IGNORED = "ignored"
    UNKNOWN = "unknown"


#: Outcomes that a user should look at.
WRONG = {ImportOutcome.REFUSED, ImportOutcome.UNKNOWN}


def converted(properties: Iterable[Property]) -> list[ImportedKeyShape]:
    """Say for each key what becomes of it, in the order of the file."""
    rows: list[ImportedKeyShape] = []
    # Every setting that is mapped so far.
    taken: dict[str, Value] = {}
    for one in properties:
        if name := BY_THEIRS.get(one.key):
            rows += _mapped(one, name, taken)
        elif family := left_out(one.key):
            rows.append(_ignored(one, family))
        else:
            rows.append(_unknown(one))
    return rows


def _mapped(
    one: Property, name: SettingName, taken: dict[str, Value]
) -> Iterator[ImportedKeyShape]:
    """Yield the row of a setting, and one for a limit that must rise with it."""
    try:
        value = name.value.convert(one.value)
    except ValueError as error:
        yield _row(one, ImportOutcome.REFUSED, name.ours, reason=str(error))
        return
    if name.ours in taken:
        why = f"{name.ours} is already set by another key of the file"
        yield _row(one, ImportOutcome.REFUSED, name.ours, reason=why)
        return
    wanted = {name.ours: value, **_raised(name, value, taken)}
    if why := _fault({**taken, **wanted}, name.ours):
        yield _row(one, ImportOutcome.REFUSED, name.ours, reason=why)
        return
    taken |= wanted
    for ours, given in wanted.items():
        note = name.note if ours == name.ours else f"raised, because {name.ours} may not exceed it"
        yield _row(one, ImportOutcome.MAPPED, ours, setting_value=given, reason=note)


def _raised(name: SettingName, value: Value, taken: Mapping[str, Value]) -> dict[str, Value]:
    """Return the limit of a setting with its new value, if it must rise."""
    if not name.raises or not isinstance(value, int):
        return {}
    limit = _effective(taken)[name.raises]
    return {name.raises: value} if isinstance(limit, int) and value > limit else {}


def _fault(settings: Mapping[str, Value], ours: str) -> str:
    """Return why the config loader refuses these settings, or an empty string."""
    try:
        _effective(settings)
    except RequestRefused as error:
        key = error.fields["key"]
        return error.message if key == ours else f"{key} {error.message}"
    return ""


def _effective(settings: Mapping[str, Value]) -> dict[str, object]:
    flags = [f"{name}={_flag_text(value)}" for name, value in settings.items()]
    return {one.name: one.value for one in load(environ={}, flags=flags).settings}


def _flag_text(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ignored(one: Property, family: LeftOut) -> ImportedKeyShape:
    return _row(one, ImportOutcome.IGNORED, family.instead or None, reason=family.reason)


def _unknown(one: Property) -> ImportedKeyShape:
    close = difflib.get_close_matches(one.key[:SHOWN_WIDTH].lower(), _BY_SMALL, n=1, cutoff=0.8)
    meant = f", did you mean {_BY_SMALL[close[0]]}?" if close else ""
    return _row(one, ImportOutcome.UNKNOWN, reason=f"RocketMQ up to 5.5 has no such key{meant}")


def _row(
    one: Property,
    outcome: ImportOutcome,
    setting: str | None = None,
    *,
    setting_value: Value | None = None,
    reason: str,
) -> ImportedKeyShape:
    # Do not print the value of an unknown key: it may be a secret.
    is_shown = outcome in (ImportOutcome.MAPPED, ImportOutcome.REFUSED)
    return ImportedKeyShape(
        line=one.line,
        key=clipped(one.key, SHOWN_WIDTH),
        value=clipped(one.value, SHOWN_WIDTH) if is_shown else None,
        outcome=outcome.value,
        setting=setting,
        setting_value=setting_value,
        # Reasons mark code by backquotes for the reference page; this output has none.
        reason=reason.replace("`", ""),
    )


def as_toml(rows: Iterable[ImportedKeyShape], source: str) -> str:
    """Return a config file with the mapped settings; comments say where each came from."""
    rows = list(rows)
    lines = [f"# Converted from {clipped(source, SHOWN_WIDTH)} by escrowmq config import."]
    mapped = [row for row in rows if row.outcome == ImportOutcome.MAPPED]
    for section in SECTIONS:
        inside = [row for row in mapped if (row.setting or "").startswith(f"{section}.")]
        lines += ["", f"[{section}]"] if inside else []
        for row in inside:
            key = (row.setting or "").removeprefix(f"{section}.")
            lines += [f"# {row.reason}"] if row.reason else []
            lines.append(f"{key} = {_toml_value(row.setting_value)}  # {row.key}={row.value}")
    for outcome in (ImportOutcome.REFUSED, ImportOutcome.UNKNOWN, ImportOutcome.IGNORED):
        left = [row for row in rows if row.outcome == outcome]
        lines += ["", f"# {outcome.capitalize()}:"] if left else []
        lines += [f"# line {row.line}, {_given(row)}: {row.reason}" for row in left]
    return "\n".join(lines) + "\n"


def _given(row: ImportedKeyShape) -> str:
    return row.key if row.value is None else f"{row.key}={row.value}"


def _toml_value(value: Value | None) -> str:
    # JSON's booleans, numbers and printable strings are TOML, too.
    return json.dumps(value, ensure_ascii=False)
