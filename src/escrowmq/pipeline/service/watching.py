"""One thread for each broker, which asks it for due work and waits for news."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from escrowmq.client.network.native_calls import ANSWER_S, NativeCalls
from escrowmq.model.errors import EscrowError
from escrowmq.pipeline.service.pacing import Heard
from escrowmq.protocol.native.pipeline_headers import AwaitDueAnswer, AwaitDueHeader
from escrowmq.protocol.native.requests import NativeCode

#: An answer that arrives this much before the wait ends carries news.
EARLY_S = 0.05


@dataclass(frozen=True, slots=True)
class Away:
    """A broker that did not answer, and why."""

    broker: str
    error: EscrowError


class BrokerWatch:
    """Asks one broker, once for each ``ask``, and passes its answer to ``listener``.

    The watch's own thread calls the listener.
    """

    def __init__(self, address: str, listener: Callable[[Heard | Away], None]) -> None:
        self.address = address
        #: Whether an answer is still outstanding.
        self.is_asking = False
        self._listener = listener
        self._calls = NativeCalls(address, answer_s=2 * ANSWER_S)
        self._questions: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"watch {address}", daemon=True).start()

    def ask(self, wait_ms: int, since_ms: int) -> None:
        """Ask for an answer when something comes due after `since_ms`, or after `wait_ms`."""
        self.is_asking = True
        self._questions.put((wait_ms, since_ms))

    def close(self) -> None:
        """Ask no more. An outstanding answer is ignored."""
        self._questions.put(None)

    def _run(self) -> None:
        with self._calls:
            while (question := self._questions.get()) is not None:
                self._listener(self._heard(*question))

    def _heard(self, wait_ms: int, since_ms: int) -> Heard | Away:
        began_s = time.monotonic()
        try:
            header = AwaitDueHeader(wait_ms=wait_ms, since_ms=since_ms)
            answer = self._calls.call(NativeCode.AWAIT_DUE, header).header
        except EscrowError as error:
            return Away(self.address, error)
        assert isinstance(answer, AwaitDueAnswer)
        is_news = time.monotonic() - began_s < wait_ms / 1_000 - EARLY_S
        return Heard(broker=self.address, answer=answer, is_news=is_news)
