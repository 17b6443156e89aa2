"""Ids of messages and transactions, unique across processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import count


def _new_ids() -> Callable[[], str]:
    """Return a function that makes ids unique across processes: a random prefix and a counter."""
    prefix, next_number = os.urandom(10).hex().upper(), count(1).__next__
    return lambda: f"{prefix}{next_number():012X}"


_next_id = _new_ids()


def new_message_id() -> str:
    """Return a new id of 32 characters, as RocketMQ's clients make them."""
    return _next_id()


def new_transaction_id() -> str:
    """Return a new, unique transaction id."""
    return new_message_id()


def _after_fork() -> None:
    global _next_id  # noqa: PLW0603 - a child must not repeat its parent's ids
    _next_id = _new_ids()


os.register_at_fork(after_in_child=_after_fork)
