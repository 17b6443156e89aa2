"""Converts a configured value to the type of its field.

Both functions raise ``ValueError`` with a text that says what is allowed. Sizes and durations are
plain integers: the unit is in the key's name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Literal, get_args, get_origin

# Stricter than int(), which also accepts surrounding blanks and digits of other scripts.
_INTEGER = re.compile(r"[+-]?[0-9]+(_[0-9]+)*")
#: Far above any setting, and far below the few thousand digits at which int() fails.
_DIGITS_MAX = 40


def from_toml(kind: object, value: object) -> object:
    """Check the type of a value. The only conversion is from an integer to a float."""
    if get_origin(kind) is Literal:
        return _choice(kind, value)
    # Python counts a bool as an int; a setting does not.
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(float(value))
    if type(value) is not kind:
        raise ValueError(f"must be {_NAMES[kind]}")
    return value


def from_text(kind: object, text: str) -> object:
    """Parse a value from the environment or the command line."""
    return _choice(kind, text) if get_origin(kind) is Literal else _READERS[kind](text)


def _choice(kind: object, value: object) -> object:
    choices = get_args(kind)
    if value not in choices:
        raise ValueError("must be " + " or ".join(f'"{choice}"' for choice in choices))
    return value


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise ValueError("must be a finite number")
    return number


def _read_int(text: str) -> int:
    if not _INTEGER.fullmatch(text) or len(text) > _DIGITS_MAX:
        raise ValueError(f"must be {_NAMES[int]}")
    return int(text)


def _read_float(text: str) -> float:
    try:
        return _finite(float(text))
    except ValueError:
        raise ValueError(f"must be {_NAMES[float]}") from None


def _read_bool(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"must be {_NAMES[bool]}")
    return text == "true"


_NAMES: dict[object, str] = {
    int: "an integer, without a unit",
    float: "a finite number",
    bool: "true or false",
    str: "a string",
}
_READERS: dict[object, Callable[[str], object]] = {
    int: _read_int,
    float: _read_float,
    bool: _read_bool,
    str: str,
}
