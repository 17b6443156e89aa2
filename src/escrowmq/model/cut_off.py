"""Cuts off a call that may never return: its driver or system call knows no deadline."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Timer


@contextmanager
def cutting_off(wait_s: float, cut: Callable[[], object]) -> Iterator[Timer]:
    """Call ``cut`` in another thread unless the block ends within this time."""
    timer = Timer(wait_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield timer
    finally:
        timer.cancel()
