"""Callbacks that fail do not stop their caller."""

from __future__ import annotations

import asyncio

import pytest

from escrowmq.broker.write.guard import guarded


def test_a_guarded_call_gets_its_arguments() -> None:
    calls: list[tuple[int, str]] = []
    failures: list[Exception] = []
    guarded(failures.append, lambda *args: calls.append(args), 1, "a")
    assert (calls, failures) == ([(1, "a")], [])


def test_an_error_is_reported_and_not_raised() -> None:
    failures: list[Exception] = []
    guarded(failures.append, int, "x")
    assert [type(failure) for failure in failures] == [ValueError]


def test_a_cancellation_is_not_an_error() -> None:
    def cancelled() -> None:
        raise asyncio.CancelledError

    failures: list[Exception] = []
    with pytest.raises(asyncio.CancelledError):
        guarded(failures.append, cancelled)
    assert failures == []
