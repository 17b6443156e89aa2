"""Bounds checks: a process whose settings are out of bounds does not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from escrowmq.model.errors import RequestRefused

Bounds = tuple[str, float, float]
"""A setting's name, its lowest and its highest value."""


def bad_setting(key: str, must: str, value: object, **facts: object) -> RequestRefused:
    """Return the error for a setting: what it must be, and what it is."""
    return RequestRefused("bad_config", must, key=key, value=value, **facts)


def check_bounds(section: str, settings: object, bounds: Iterable[Bounds]) -> None:
    """Refuse the first setting that is out of bounds."""
    for name, low, high in bounds:
        value = getattr(settings, name)
        if not low <= value <= high:
            raise bad_setting(f"{section}.{name}", f"must be from {low} to {high}", value)


def check_order(section: str, settings: object, lower: str, higher: str) -> None:
    """Refuse a ``lower`` setting that is above the ``higher`` one."""
    value = getattr(settings, lower)
    if value > getattr(settings, higher):
        raise bad_setting(f"{section}.{lower}", f"must not be more than {section}.{higher}", value)


def check_choice(section: str, settings: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a setting that is none of the choices."""
    value = getattr(settings, name)
    if value not in choices:
        raise bad_setting(f"{section}.{name}", f"must be {' or '.join(choices)}", value)
