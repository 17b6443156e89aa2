"""A look-up process, and the broker's end of its pipes in blocking form."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from escrowmq.protocol.look_up.frames import encode_call, reply_splitter
from escrowmq.protocol.look_up.messages import (
    Configure,
    Configured,
    Known,
    LookUpAnswer,
    LookUpCall,
    LookUpReply,
    LookUpRequest,
    Probe,
)
from tests.ledger.shops import GROUP, NOW_MS

COMMAND = (sys.executable, "-m", "escrowmq.look_up.child", '{"format":"json","level":"info"}')
ANSWER_S_MAX = 30.0


def request(ledger_uuid: str, ids: Sequence[str], **changed: Any) -> LookUpRequest:
    """Return a request about overdue transactions."""
    rows = len(ids)
    made = LookUpRequest(
        number=1,
        ledger_uuid=ledger_uuid,
        sight=None,
        as_of_ms=NOW_MS,
        half_offsets=list(range(rows)),
        transaction_ids=ids,
        producer_groups=[GROUP] * rows,
        stored_at_ms=[NOW_MS - 60_000] * rows,
        allowed_ms=[1_000] * rows,
    )
    return msgspec.structs.replace(made, **changed)


class LookUpPeer:
    """A running look-up process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log
        self._splitter = reply_splitter()
        self._replies: list[LookUpReply] = []

    def send(self, *calls: LookUpCall) -> None:
        self.send_bytes(b"".join(map(encode_call, calls)))

    def send_bytes(self, sent: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(sent)
        self.process.stdin.flush()

    def reply(self) -> LookUpReply:
        """Return the next message of the process."""
        assert self.process.stdout is not None
        until_s = time.monotonic() + ANSWER_S_MAX
        while not self._replies:
            descriptor = self.process.stdout.fileno()
            is_readable, _, _ = select.select([descriptor], [], [], until_s - time.monotonic())
            assert is_readable, "the process does not answer"
            chunk = os.read(descriptor, 65_536)
            assert chunk, f"the process ended: {self.log()}"
            self._replies += self._splitter.feed(chunk)
        return self._replies.pop(0)

    def known(self) -> Known:
        self.send(Probe(number=7))
        found = self.reply()
        assert isinstance(found, Known)
        return found

    def look_up(self, call: LookUpRequest) -> LookUpAnswer:
        self.send(call)
        return self.answer()

    def answer(self) -> LookUpAnswer:
        found = self.reply()
        assert isinstance(found, LookUpAnswer)
        return found

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8")

    def resident_bytes(self) -> int:
        pages = Path(f"/proc/{self.process.pid}/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def started(log: Path) -> Iterator[LookUpPeer]:
    """Start a process without ledgers; kill it at the end of the block if it still runs."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file
        )
    with process:
        try:
            yield LookUpPeer(process, log)
        finally:
            process.kill()


@contextmanager
def look_up_peer(folder: Path, urls: Mapping[str, str]) -> Iterator[LookUpPeer]:
    """Start a process with these ledgers."""
    with started(folder / "look_up.log") as peer:
        peer.send(Configure(ledgers=dict(urls)))
        assert peer.reply() == Configured()
        yield peer
