"""One run of the look-up process, from the broker's event loop: requests out, answers in.

After any failure (the process ends, breaks the protocol, or misses a deadline) the process is
killed and all its requests fail. ``look_up_process.py`` starts the next one.

Python's own ``Popen`` starts the process: it uses ``vfork``. uvloop uses ``fork``, which copies the
page tables of the broker: 30 ms for 400 MiB.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from itertools import count
from typing import NamedTuple

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
#: How long the process may take to end after it closed its output.
EXIT_S_MAX = 0.5


class _Waiting(NamedTuple):
    """A request without an answer."""

    call: Probe | LookUpRequest
    answer: asyncio.Future[LookUpReply]
    #: Kills the process at the deadline, even if the caller no longer waits.
    deadline: asyncio.TimerHandle


class _Pipe(asyncio.BaseProtocol):
    """Notes when a pipe is closed."""

    def __init__(self) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 -- as asyncio calls it
        """Note that the pipe is closed."""
        self.closed.set_result(None)


class LookUpChild(asyncio.Protocol):
    """One run of the look-up process. ``on_failure`` is called once, unless ``stop`` came first."""

    def __init__(self, on_failure: Callable[[str], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_failure = on_failure
        self._process: subprocess.Popen[bytes] | None = None
        self._input: asyncio.WriteTransport | None = None
        self._output: asyncio.ReadTransport | None = None
        self._input_pipe, self._output_pipe = _Pipe(), _Pipe()
        self._splitter = reply_splitter()
        self._numbers = count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._is_over = False
        #: Waits for the exit code after the process closed its output.
        self._exiting: asyncio.Task[None] | None = None
        self._reaping: asyncio.Task[None] | None = None
        self.started_at_s = self._loop.time()
        #: Whether the process takes requests; False if it failed before.
        self.is_configured: asyncio.Future[bool] = self._loop.create_future()

    @property
    def pid(self) -> int | None:
        """The process id; None before the start."""
        return None if self._process is None else self._process.pid

    async def start(self, command: Sequence[str]) -> None:
        """Start the process. Its log goes to the broker's standard error.

        Raises:
            OSError: It cannot be started.
        """
        # In a thread: Python waits until the program is loaded from disk.
        process = await asyncio.to_thread(_started, command)
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            self._input, _ = await self._loop.connect_write_pipe(
                lambda: self._input_pipe, process.stdin
            )
            self._output, _ = await self._loop.connect_read_pipe(lambda: self, process.stdout)
        except OSError:
            process.kill()
            await asyncio.to_thread(process.wait, STOP_S_MAX)
            raise
        self._process = process

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
            self._kill()
            self._on_failure(why)

    async def stop(self) -> None:
        """End the process, and wait until it is reaped and its pipes are closed."""
        if self._process is None or self._input is None or self._output is None:
            return
        if not self._is_over:
            self._end("the broker stops")
            # The process ends by itself once its input is closed.
            self._input.close()
        if self._reaping is None:
            self._reaping = asyncio.create_task(self._reap())
        try:
            # A canceled stop must not leave a zombie, so only the wait is canceled.
            await asyncio.shield(self._reaping)
        except asyncio.CancelledError:
            self._kill()
            raise

    async def _reap(self) -> None:
        if await self._exit_code(STOP_S_MAX) is None:
            self._kill()
            if await self._exit_code(STOP_S_MAX) is None:
                log.warning("look_up_process_stuck", extra={"pid": self.pid})
        self._kill()
        await asyncio.wait({self._input_pipe.closed, self._output_pipe.closed}, timeout=STOP_S_MAX)
        if self._exiting is not None:
            await asyncio.wait({self._exiting})

    def _end(self, why: str) -> None:
        self._is_over = True
        if not self.is_configured.done():
            self.is_configured.set_result(False)
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            one.deadline.cancel()
            if not one.answer.done():
                one.answer.set_exception(_failed(why))

    def _kill(self) -> None:
        """Kill the process if it still runs, and close the pipes."""
        if self._process is not None:
            self._process.kill()
        # A closing pipe without unsent bytes closes by itself, and asyncio fails to abort it.
        if self._input is not None and (not self._input.is_closing() or self._unsent_bytes()):
            self._input.abort()
        if self._output is not None:
            self._output.close()

    async def _exit_code(self, seconds_max: float) -> int | None:
        """Reap the process; return its exit code, or None if it still runs after this time."""
        assert self._process is not None
        with suppress(subprocess.TimeoutExpired):
            return await asyncio.to_thread(self._process.wait, seconds_max)
        return None

    def _write(self, frame: bytes) -> None:
        assert self._input is not None
        # After a broken pipe the process is about to fail, and its requests with it.
        if not self._input.is_closing():
            self._input.write(frame)

    def _unsent_bytes(self) -> int:
        assert self._input is not None
        return 0 if self._input_pipe.closed.done() else self._input.get_write_buffer_size()

    # Called by the event loop, about the output of the process.

    def data_received(self, data: bytes) -> None:
        """Deliver the answers that these bytes complete."""
        if self._is_over:
            return
        try:
            for reply in self._splitter.feed(data):
                self._deliver(reply)
        except ProtocolViolation as violation:
            self.fail(str(violation))

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail: the process has ended, or closed its output, which is as bad."""
        self._output_pipe.connection_lost(exc)
        if not self._is_over:
            self._exiting = asyncio.create_task(self._fail_with_exit_code())

    async def _fail_with_exit_code(self) -> None:
        code = await self._exit_code(EXIT_S_MAX)
        ended = f"the process ended with {code}"
        self.fail("the process closed its output" if code is None else ended)

    def _deliver(self, reply: LookUpReply) -> None:
        if isinstance(reply, Configured):
            if self.is_configured.done() or reply.version != VERSION:
                raise ProtocolViolation("look_up_malformed", version=reply.version)
            self.is_configured.set_result(True)
            return
        one = self._waiting.get(reply.number)
        if one is None or not _answers(reply, one.call):
            raise ProtocolViolation("look_up_malformed", "the answer belongs to no request")
        del self._waiting[reply.number]
        one.deadline.cancel()
        # The caller may have been canceled.
        if not one.answer.done():
            one.answer.set_result(reply)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 -- our own command
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )


def _answers(reply: Known | LookUpAnswer, call: Probe | LookUpRequest) -> bool:
    if isinstance(call, LookUpRequest):
        return isinstance(reply, LookUpAnswer) and len(reply.outcomes) == call.rows
    return isinstance(reply, Known)


def _failed(why: str) -> Unavailable:
    return Unavailable("look_up_failed", why)
