"""Answers that several commands share."""

from __future__ import annotations

from escrowmq.model.errors import RequestRefused
from escrowmq.transaction.commands import Decision


def refuse(code: str, message: str, **facts: object) -> Decision:
    """Refuse a command, with the reason and the facts."""
    return Decision(refused=RequestRefused(code, message, **facts))


def no_such_half(half_offset: int) -> Decision:
    """Refuse a command for an unknown half message."""
    return refuse(
        "no_such_half_message",
        "it was never stored here, or its retention is over",
        half_offset=half_offset,
    )
