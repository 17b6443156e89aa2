"""The guard around callbacks: an error in one of them must not stop its caller.

The writer, the sockets and the timers call back into many parts. A callback that fails is reported,
and its caller goes on with the next one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVarTuple

Ts = TypeVarTuple("Ts")


def guarded(failed: Callable[[Exception], None], call: Callable[[*Ts], object], *args: *Ts) -> None:
    """Call a function, and pass an error to ``failed`` instead of raising it."""
    # Not a context manager, which takes several times as long: this runs for each message.
    try:
        call(*args)
    except Exception as error:  # noqa: BLE001 - the caller must go on
        failed(error)
