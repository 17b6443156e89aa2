"""Run generators of steps, so that sync and async code share one order of steps.

A generator yields its next step, gets the step's result or error, and decides what follows. It does
no I/O: the caller's ``perform`` does a step, and returns its result or an awaitable of it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import wraps
from inspect import isawaitable
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar

StepT = TypeVar("StepT")
T = TypeVar("T")
P = ParamSpec("P")
SyncOrAsync: TypeAlias = Any
"""A result, or in async code an awaitable of it."""

Calls: TypeAlias = Generator[Callable[[], Any], Any, T]
"""Steps that are functions without arguments: each is performed by a call."""


def run(steps: Generator[StepT, Any, T], perform: Callable[[StepT], SyncOrAsync]) -> T:
    """Perform each step, send its result or error into the generator, and return its value."""
    try:
        step = next(steps)
        while True:
            try:
                result = perform(step)
            except BaseException as error:  # noqa: BLE001 -- the steps decide what follows
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


async def run_async(steps: Generator[StepT, Any, T], perform: Callable[[StepT], SyncOrAsync]) -> T:
    """Do the same as ``run``, and await the results that are awaitable."""
    try:
        step = next(steps)
        while True:
            try:
                result = perform(step)
                if isawaitable(result):
                    result = await result
            except BaseException as error:  # noqa: BLE001 -- as above
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as done:
        value: T = done.value
        return value


class Driven:
    """An object whose ``@driven`` methods are sync or async, as its ``_run`` is.

    Its steps are calls, unless a subclass overrides ``_perform``.
    """

    _run: Callable[..., Any] = staticmethod(run)

    def _perform(self, step: Any) -> SyncOrAsync:  # noqa: ANN401 -- a step of any kind
        return step()


DrivenT = TypeVar("DrivenT", bound=Driven)


def driven(
    method: Callable[Concatenate[DrivenT, P], Generator[Any, Any, object]],
) -> Callable[Concatenate[DrivenT, P], SyncOrAsync]:
    """Turn a method that returns steps into one that runs them."""

    @wraps(method)
    def call(self: DrivenT, /, *values: P.args, **named: P.kwargs) -> SyncOrAsync:
        return self._run(method(self, *values, **named), self._perform)

    return call
