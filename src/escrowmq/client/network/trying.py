"""Retries of requests that were not done, kept tasks, and calls that several callers join."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from escrowmq.model.errors import OutcomeUnknown, Unavailable

T = TypeVar("T")

FIRST_WAIT_S = 0.05
WAIT_MAX_S = 1.0


async def until_done(ask: Callable[[], Awaitable[T]], until: float, *, is_repeatable: bool) -> T:
    """Call ``ask`` until it answers; raise its last error when the time is up.

    ``is_repeatable`` says that a request done twice has the same effect as one done once. Then a
    request whose answer was lost is repeated, too.
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


def kept(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start a task and keep it among others until it ends: asyncio itself may lose a task."""
    task = asyncio.ensure_future(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


async def joined(
    running: dict[str, asyncio.Task[T]], key: str, call: Callable[[str], Coroutine[Any, Any, T]]
) -> T:
    """Return the result of the running call for this key; start the call if there is none."""
    task = running.get(key)
    if task is None:
        task = running[key] = asyncio.ensure_future(call(key))
        task.add_done_callback(lambda _: running.pop(key, None))
    # Several callers may wait for it; a cancelled one must not cancel the others.
    return await asyncio.shield(task)
