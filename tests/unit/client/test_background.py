from __future__ import annotations

import asyncio
import os
import threading

import pytest

from escrowmq.client.network.background import background
from escrowmq.model.errors import RequestRefused


async def twice(number: int) -> int:
    await asyncio.sleep(0)
    return 2 * number


def test_work_runs_over_there_and_its_result_comes_back() -> None:
    assert background().run(twice(21)) == 42
    assert background() is background()


def test_errors_come_back() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        background().run(fail())


def test_waiting_for_oneself_is_refused() -> None:
    async def wait() -> int:
        return background().run(twice(1))

    with pytest.raises(RequestRefused, match="would_wait_for_itself"):
        background().run(wait())


def test_work_that_takes_too_long_is_cancelled() -> None:
    was_cancelled = threading.Event()

    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            was_cancelled.set()

    with pytest.raises(TimeoutError):
        background().run(hang(), timeout_s=0.01)
    assert was_cancelled.wait(5)


@pytest.mark.filterwarnings("ignore:This process")
def test_a_forked_child_gets_a_loop_of_its_own() -> None:
    background().run(twice(1))
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, b"%d" % background().run(twice(4)))
        os._exit(0)
    assert os.read(read, 10) == b"8"
    assert os.waitpid(child, 0)[1] == 0
