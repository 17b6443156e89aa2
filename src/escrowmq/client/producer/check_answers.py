"""Answers to back-checks: a broker asks for the outcome of a transaction.

Checks that arrive together are answered together, because the answers may need a database query. A
failed lookup gives UNKNOWN, never COMMIT, and the broker asks again later. The error's text goes
with it as the remark, as RocketMQ's clients send it. Answers other than COMMIT are logged, up to a
limit.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from escrowmq.client.messages.messages import Received, received
from escrowmq.client.messages.outgoing import HeldTransaction
from escrowmq.client.producer.apache_broker import end_header
from escrowmq.model.event_log import event_log
from escrowmq.model.lineage import Sight
from escrowmq.model.log_limit import LogLimit
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import PGROUP
from escrowmq.protocol.message.stored_message import decode
from escrowmq.protocol.native.sights import sight_of_check
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import CheckTransactionHeader

if TYPE_CHECKING:
    from escrowmq.client.network.connection import BrokerConnection
    from escrowmq.protocol.remoting.frames import RemotingFrame

log = event_log(__name__)

#: Maximum characters of an error's text that the SDK sends; our broker keeps the same number.
REMARK_CHARS_MAX = 1_024
WAITING_MAX = 10_000
SHARED_MAX = 1_000
CLOSE_S = 5.0
#: Maximum number of transaction ids in one log line.
IDS_LOGGED_MAX = 10
#: Maximum warnings for each kind of answer in ``ANSWERS_AGAIN_S``.
ANSWERS_LOGGED_MAX = 10
ANSWERS_AGAIN_S = 60.0


class Check(msgspec.Struct, frozen=True):
    """One back-check from a broker."""

    transaction_id: str
    #: The half message. Its properties name the ledger to query.
    message: Received
    held: HeldTransaction
    connection: BrokerConnection
    #: The broker's history as it stood when it sent the check.
    sight: Sight | None = None
    #: How far our clock was ahead of the store time in the check; 0 if the check has none.
    clock_ahead_ms: int = 0


class Unknown(msgspec.Struct, frozen=True):
    """Resolution.UNKNOWN with a reason, which the broker keeps."""

    remark: str
    #: Whether the error behind this answer is in the log already.
    is_logged: bool = False


CheckAnswer: TypeAlias = "Resolution | Unknown"

Checker: TypeAlias = "Callable[[Sequence[Check]], Awaitable[Mapping[str, CheckAnswer]]]"
"""Returns outcomes by transaction id; an omitted transaction is UNKNOWN."""


class CheckAnswers:
    """Queue of unanswered back-checks of one group. Use it from one event loop only."""

    def __init__(self, group: str, checker: Checker) -> None:
        self._group = group
        self._checker = checker
        self._waiting: dict[str, Check] = {}
        self._running: asyncio.Task[None] | None = None
        self._limit = LogLimit(log, burst=ANSWERS_LOGGED_MAX, window_s=ANSWERS_AGAIN_S)

    def asked(self, connection: BrokerConnection, frame: RemotingFrame) -> None:
        """Take a broker's back-check; send the answer when it is known."""
        header = read_header(CheckTransactionHeader, frame.ext)
        message = received(decode(frame.body), header.broker_name or "")
        group = message.properties.get(PGROUP, "")
        if group != self._group:
            # The transaction belongs to another group, so this producer cannot know its outcome.
            return
        if len(self._waiting) >= WAITING_MAX:
            log.warning("too_many_checks", extra={"producer_group": group})
            return
        transaction_id = message.transaction_id or header.transaction_id or message.message_id
        held = HeldTransaction(
            address=connection.address,
            group=group,
            transaction_id=transaction_id,
            half_offset=header.half_offset,
            log_offset=header.log_offset,
            message_id=header.unique_key or message.message_id,
            topic=message.topic,
        )
        sight = sight_of_check(header)
        ahead_ms = 0 if header.now_ms is None else int(time.time() * 1_000) - header.now_ms
        check = Check(transaction_id, message, held, connection, sight, ahead_ms)
        self._waiting[transaction_id] = check
        if self._running is None:
            self._running = asyncio.ensure_future(self._answer_all())

    async def _answer_all(self) -> None:
        try:
            while self._waiting:
                ids = list(self._waiting)[:SHARED_MAX]
                await self._answer([self._waiting.pop(one) for one in ids])
        finally:
            self._running = None

    async def _answer(self, checks: list[Check]) -> None:
        known: Mapping[str, CheckAnswer]
        try:
            known = await self._checker(checks)
        except Exception as error:
            ids = [check.transaction_id for check in checks[:IDS_LOGGED_MAX]]
            log.exception("check_failed", extra={"count": len(checks), "transaction_ids": ids})
            unknown = Unknown(remark_of(error), is_logged=True)
            known = dict.fromkeys([check.transaction_id for check in checks], unknown)
        for check in checks:
            self._tell(check, known.get(check.transaction_id, Resolution.UNKNOWN))

    def _tell(self, check: Check, answer: CheckAnswer) -> None:
        """Send an answer to the broker; log one other than COMMIT, as RocketMQ's clients do."""
        resolution, remark, is_logged = Resolution.UNKNOWN, "", False
        if isinstance(answer, Resolution):
            resolution = answer
        elif isinstance(answer, Unknown):
            remark, is_logged = answer.remark, answer.is_logged
        else:
            log.error("answer_odd", extra={"transaction_id": check.transaction_id})
            is_logged = True
        if resolution is not Resolution.COMMIT and not is_logged:
            facts = {
                "answer": resolution.value,
                "producer_group": self._group,
                "transaction_id": check.transaction_id,
                "topic": check.held.topic,
                "address": check.held.address,
                "why": remark,
            }
            self._limit.warning("check_answered", resolution, facts)
        check.connection.tell(
            RequestCode.END_TRANSACTION,
            end_header(check.held, resolution, is_check_answer=True),
            remark=remark,
        )

    async def close(self) -> None:
        """Drop queued checks, and wait up to ``CLOSE_S`` for the batch that is being answered."""
        if self._running is not None:
            self._waiting.clear()
            await asyncio.wait((self._running,), timeout=CLOSE_S)


def remark_of(error: Exception) -> str:
    """Return an error's type and text, cut to the length that can be sent."""
    text = "".join(traceback.format_exception_only(error)).strip()
    # A text may not be encodable as UTF-8, such as one with surrogates of a file name.
    return text[:REMARK_CHARS_MAX].encode(errors="replace").decode()
