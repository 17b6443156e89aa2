"""Retries: a request that was not done is tried again; one that may have been done is not."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from escrowmq.model.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

FIRST_WAIT_S = 0.05
WAIT_MAX_S = 1.0


async def until_done(ask: Callable[[], Awaitable[T]], until: float, *, is_repeatable: bool) -> T:
    """Return the answer, or raise the last error when the time is up.

    ``is_repeatable`` says that doing it twice has the same effect as doing it once. Then a request
    whose answer was lost is repeated, too.
    """
    loop = asyncio.get_running_loop()
    wait_s = FIRST_WAIT_S
    while True:
        try:
            return await ask()
        except (Unavailable, OutcomeUnknown) as error:
            is_final = isinstance(error, OutcomeUnknown) and not is_repeatable
            if is_final or error.code == "client_closed" or loop.time() + wait_s >= until:
                raise
        await asyncio.sleep(wait_s)
        wait_s = min(2 * wait_s, WAIT_MAX_S)
