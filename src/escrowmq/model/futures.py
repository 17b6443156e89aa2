"""A function that ends an asyncio future, for several folders."""

from __future__ import annotations

import asyncio
from typing import TypeVar

T = TypeVar("T")


def resolve(future: asyncio.Future[T], end: T | BaseException) -> None:
    """Give a future its result or its error, unless it is done: its waiter may have given up."""
    if future.done():
        return
    if isinstance(end, BaseException):
        future.set_exception(end)
    else:
        future.set_result(end)
