"""Bounds checks: a process whose settings are out of bounds does not start."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from escrowmq.model.errors import RequestRefused

Bounds = tuple[str, float, float]
"""A setting's name, its lowest and its highest value."""


def check_bounds(section: str, settings: object, bounds: Iterable[Bounds]) -> None:
    """Refuse the first setting that is out of bounds."""
    for name, low, high in bounds:
        value = getattr(settings, name)
        if not low <= value <= high:
            raise RequestRefused(
                "bad_config", f"must be from {low} to {high}", key=f"{section}.{name}", value=value
            )


def check_order(section: str, settings: object, lower: str, higher: str) -> None:
    """Refuse a ``lower`` setting that is above the ``higher`` one."""
    value = getattr(settings, lower)
    if value > getattr(settings, higher):
        raise RequestRefused(
            "bad_config",
            f"must not be more than {section}.{higher}",
            key=f"{section}.{lower}",
            value=value,
        )


def check_choice(section: str, settings: object, name: str, choices: Sequence[str]) -> None:
    """Refuse a setting that is none of the choices."""
    value = getattr(settings, name)
    if value not in choices:
        raise RequestRefused(
            "bad_config", f"must be {' or '.join(choices)}", key=f"{section}.{name}", value=value
        )
