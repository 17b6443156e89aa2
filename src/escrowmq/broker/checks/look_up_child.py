"""One run of the look-up process, from the broker's event loop: requests out, answers in.

After any failure (the process ends, breaks the protocol, or misses a deadline) the process is
killed and all its requests fail. ``look_up_process.py`` starts the next one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import NamedTuple, cast

import msgspec

from escrowmq.model.errors import ProtocolViolation, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.look_up.frames import CALL_BYTES_MAX, encode_call, reply_splitter
from escrowmq.protocol.look_up.messages import (
    REQUESTS_MAX,
    VERSION,
    Configure,
    Configured,
    Known,
    LookUpAnswer,
    LookUpReply,
    LookUpRequest,
    Probe,
)

log = event_log(__name__)

#: How long the process may take to end by itself, or after it was killed.
STOP_S_MAX = 5.0
#: How long the process may take to end after it closed a pipe.
EXIT_S_MAX = 0.5

_STDIN, _STDOUT = 0, 1


class _Waiting(NamedTuple):
    """A request without an answer."""

    call: Probe | LookUpRequest
    answer: asyncio.Future[LookUpReply]
    #: Kills the process at the deadline, even if the caller no longer waits.
    deadline: asyncio.TimerHandle


class LookUpChild(asyncio.SubprocessProtocol):
    """One run of the look-up process. ``on_failure`` is called once, unless ``stop`` came first."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._transport: asyncio.SubprocessTransport | None = None
        self._splitter = reply_splitter()
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._is_over = False
        #: Fails the run after a pipe was closed.
        self._pipe_lost: asyncio.TimerHandle | None = None
        self.started_at_s = self._loop.time()
        #: Whether the process takes requests; False if it failed before.
        self.is_configured: asyncio.Future[bool] = self._loop.create_future()
        #: Done when the process is reaped and its pipes are closed.
        self._closed: asyncio.Future[None] = self._loop.create_future()

    @property
    def is_over(self) -> bool:
        """Whether this run has failed or stopped, so that it takes no more requests."""
        return self._is_over

    @property
    def pid(self) -> int | None:
        """The process id."""
        return None if self._transport is None else self._transport.get_pid()

    def configure(self, call: Configure, seconds_max: float) -> None:
        """Send the first message; the process must answer within this time."""
        if self._is_over:
            return
        self._write(encode_call(call))
        deadline = self._loop.call_later(seconds_max, self.fail, "the process does not start")
        self.is_configured.add_done_callback(lambda _: deadline.cancel())

    async def ask(self, call: Probe | LookUpRequest, seconds_max: float) -> LookUpReply:
        """Send a request and return its answer.

        Raises:
            Unavailable: ``look_up_busy`` if too much is outstanding; ``look_up_failed`` if the
                process fails before it answers.
            RequestRefused: ``look_up_too_large``.
        """
        if self._is_over:
            raise _failed("the process ended")
        if len(self._waiting) >= REQUESTS_MAX or self._unsent_bytes() > CALL_BYTES_MAX:
            raise Unavailable(
                "look_up_busy", "too many look-ups are outstanding", requests_max=REQUESTS_MAX
            )
        number = next(self._numbers)
        call = msgspec.structs.replace(call, number=number)
        self._write(encode_call(call))
        late = f"no answer within {seconds_max:g} s"
        deadline = self._loop.call_later(seconds_max, self.fail, late)
        answer: asyncio.Future[LookUpReply] = self._loop.create_future()
        self._waiting[number] = _Waiting(call, answer, deadline)
        return await answer

    def fail(self, why: str) -> None:
        """Kill the process and fail its requests."""
        if not self._is_over:
            self._end(why)
            self._on_failure(why)

    async def stop(self) -> None:
        """End the process, and wait until it is reaped and its pipes are closed."""
        if self._transport is None:
            return
        if not self._is_over:
            self._end("the broker stops", is_killed=False)
        # The process ends with its input.
        if await self._is_closed_in_time():
            return
        self._kill()
        if not await self._is_closed_in_time():
            log.warning("look_up_process_stuck", extra={"pid": self.pid})

    async def _is_closed_in_time(self) -> bool:
        try:
            await asyncio.wait({self._closed}, timeout=STOP_S_MAX)
        except asyncio.CancelledError:
            self._kill()
            raise
        return self._closed.done()

    def _end(self, why: str, *, is_killed: bool = True) -> None:
        self._is_over = True
        if self._pipe_lost is not None:
            self._pipe_lost.cancel()
        if not self.is_configured.done():
            self.is_configured.set_result(False)
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.deadline.cancel()
            if not one.answer.done():
                one.answer.set_exception(_failed(why))
        if is_killed:
            self._kill()
        else:
            self._pipe(_STDIN).close()

    def _kill(self) -> None:
        # It closes the pipes, and kills the process if it still runs.
        if self._transport is not None:
            self._transport.close()

    def _pipe(self, descriptor: int) -> asyncio.WriteTransport:
        assert self._transport is not None
        return cast("asyncio.WriteTransport", self._transport.get_pipe_transport(descriptor))

    def _write(self, frame: bytes) -> None:
        pipe = self._pipe(_STDIN)
        # The event loop reports a broken pipe a moment later, and the requests then fail.
        if not pipe.is_closing():
            pipe.write(frame)

    def _unsent_bytes(self) -> int:
        pipe = self._pipe(_STDIN)
        return 0 if pipe.is_closing() else pipe.get_write_buffer_size()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note the started process."""
        self._transport = cast("asyncio.SubprocessTransport", transport)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Deliver the answers that these bytes complete."""
        if self._is_over or fd != _STDOUT:
            return
        try:
            for reply in self._splitter.feed(data):
                self._deliver(reply)
        except ProtocolViolation as violation:
            self.fail(str(violation))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:  # noqa: ARG002 -- as asyncio calls it
        """Fail, a moment later: if the process has ended, its exit code says more."""
        if not self._is_over and self._pipe_lost is None:
            why = "the process closed a pipe"
            self._pipe_lost = self._loop.call_later(EXIT_S_MAX, self.fail, why)

    def process_exited(self) -> None:
        """Fail with the exit code."""
        assert self._transport is not None
        self.fail(f"the process ended with {self._transport.get_returncode()}")

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- as asyncio calls it
        """Note that nothing of the process is left."""
        # A transport that ended by itself still counts as open.
        self._kill()
        if not self._closed.done():
            self._closed.set_result(None)

    def _deliver(self, reply: LookUpReply) -> None:
        if isinstance(reply, Configured):
            if self.is_configured.done() or reply.version != VERSION:
                raise ProtocolViolation("look_up_malformed", version=reply.version)
            self.is_configured.set_result(True)
            return
        one = self._waiting.get(reply.number)
        if one is None or not _answers(reply, one.call):
            raise ProtocolViolation("look_up_malformed", "an answer to no request")
        del self._waiting[reply.number]
        one.deadline.cancel()
        # The caller may have been canceled.
        if not one.answer.done():
            one.answer.set_result(reply)


def _answers(reply: Known | LookUpAnswer, call: Probe | LookUpRequest) -> bool:
    if isinstance(call, LookUpRequest):
        return isinstance(reply, LookUpAnswer) and len(reply.outcomes) == call.rows
    return isinstance(reply, Known)


def _failed(why: str) -> Unavailable:
    return Unavailable("look_up_failed", why)
