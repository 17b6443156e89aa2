"""Answers a broker's requests over a pair of pipes, until the input ends."""

from __future__ import annotations

import os
import select
import sys
import threading

import msgspec

from escrowmq.look_up.desk import LookUpDesk
from escrowmq.model.errors import EscrowError, ProtocolViolation
from escrowmq.model.event_log import event_log
from escrowmq.model.log_lines import BROKER_LEVEL, LogConfig, log_to_stderr
from escrowmq.protocol.look_up.frames import call_splitter, encode_reply
from escrowmq.protocol.look_up.messages import (
    VERSION,
    Configure,
    Configured,
    LookUpCall,
    LookUpReply,
)

READ_BYTES = 256 * 1024
#: Exit code after input that does not follow the protocol.
REFUSED = 2

log = event_log(__name__)


def run() -> None:
    """Serve standard input and output, and end the process."""
    config = msgspec.json.decode(sys.argv[1], type=LogConfig) if len(sys.argv) > 1 else None
    log_to_stderr(BROKER_LEVEL, config or LogConfig(format="json"))
    refusal: EscrowError | None = None
    try:
        serve(0, _only_output())
    except EscrowError as error:
        refusal = error
    if refusal is not None:
        log.error("look_up_refused", extra={"reason": refusal.code, "cause": str(refusal)})
    # Threads may hang in a database driver, and Python would wait for its locks.
    os._exit(0 if refusal is None else REFUSED)


def serve(input_descriptor: int, output_descriptor: int) -> None:
    """Answer requests until the input ends.

    Raises:
        ProtocolViolation: The broker sent bytes that it must not send.
    """
    output = _Output(output_descriptor)
    splitter = call_splitter()
    desk: LookUpDesk | None = None
    while True:
        wait_s = None if desk is None else desk.answer_overdue()
        is_readable, _, _ = select.select([input_descriptor], [], [], wait_s)
        if not is_readable:
            continue
        chunk = os.read(input_descriptor, READ_BYTES)
        if not chunk:
            return
        for call in splitter.feed(chunk):
            if desk is None:
                desk = _configured(call, output)
            elif isinstance(call, Configure):
                raise ProtocolViolation("look_up_malformed", "the ledgers are already configured")
            else:
                desk.take(call)


def _configured(call: LookUpCall, output: _Output) -> LookUpDesk:
    if not isinstance(call, Configure) or call.version != VERSION:
        raise ProtocolViolation(
            "look_up_malformed",
            "the first message must be a configuration of this version",
            version=VERSION,
        )
    desk = LookUpDesk(call.ledgers, output.send)
    output.send(Configured())
    return desk


class _Output:
    """Writes whole frames, from any thread."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()

    def send(self, reply: LookUpReply) -> None:
        """Write a frame; end the process if the broker is gone."""
        left = memoryview(encode_reply(reply))
        with self._lock:
            try:
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError:
                os._exit(0)


def _only_output() -> int:
    """Return a descriptor for answers; what else writes to standard output writes to the log."""
    output = os.dup(1)
    os.dup2(2, 1)
    return output
