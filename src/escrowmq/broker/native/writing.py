"""Native write requests: messages, half messages and decisions in bulk.

Each goes through the writer, so nothing is answered before it is durable. The rows of one request
share batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.broker.native.calls import Call
from escrowmq.broker.net.answering import Answering, reply_of
from escrowmq.broker.net.requests import handles
from escrowmq.broker.state.column_messages import ColumnMessages
from escrowmq.broker.state.messages import Messages, Sender, type_of
from escrowmq.model.catalog import MessageType
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.ids import IPV4_HOST_BYTES
from escrowmq.protocol.message.limits import check_plain_name
from escrowmq.protocol.message.properties import (
    PGROUP,
    TRAN_MSG,
    format_properties,
    join_properties,
)
from escrowmq.protocol.message.sent_facts import read_sent_facts
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.rows import AttemptRow, DecisionRow, SentInRow, SentRow
from escrowmq.transaction.commands import (
    Append,
    Appended,
    AttemptClaim,
    BatchReply,
    DecideBatch,
    Decision,
    End,
    EndReply,
    HoldReply,
    Prepare,
)

if TYPE_CHECKING:
    from escrowmq.broker.checks.contradictions import Contradictions
    from escrowmq.broker.config import Identity
    from escrowmq.broker.native.awaiting import Awaiting
    from escrowmq.broker.write.broker_clock import BrokerClock
    from escrowmq.broker.write.bulk import Ends
    from escrowmq.model.message import SentMessage
    from escrowmq.model.message_columns import MessageColumns
    from escrowmq.protocol.native.headers import ByHeader, HoldHeader, HoldManyHeader, NativeHeader
    from escrowmq.protocol.native.sink_headers import DecideBatchHeader

_RESOLUTIONS = {resolution.value: resolution for resolution in Resolution}


@dataclass(frozen=True, slots=True)
class NativeWriting:
    """Handles bulk writes."""

    answering: Answering
    clock: BrokerClock
    messages: Messages
    awaiting: Awaiting
    contradictions: Contradictions
    identity: Identity

    # Messages.

    @handles(NativeCode.HOLD_HALVES)
    def hold(self, call: Call[HoldHeader]) -> None:
        """Hold half messages of one transaction."""
        header = call.header
        _check_names(header)
        columns = self._many_halves(call) if header.is_bulk else None
        if columns is None:
            command = self._prepare(
                call, header.transaction_id, call.rows(SentRow), header.number, bulk=header.is_bulk
            )
        else:
            command = Prepare(
                group=header.producer_group,
                transaction_id=header.transaction_id,
                messages=(),
                number=header.number,
                bulk=True,
                ledger=header.ledger,
                allowed_ms=header.allowed_ms,
                user=call.request.user,
                check_after_ms=header.check_after_ms,
                columns=columns,
            )

        def held(decision: Decision) -> None:
            reply = reply_of(decision, HoldReply)
            first = reply.half_offset
            if not (header.number or reply.repeated):
                self.awaiting.note_held(header.producer_group, header.transaction_id)
            call.answer(
                [
                    queue_ids(command.content),
                    range(first, first + reply.count),
                    reply.log_offsets,
                ],
                half_offset=first,
                is_repeated=reply.repeated,
            )

        self.answering.submit(call.request, command, held)

    @handles(NativeCode.HOLD_MANY)
    def hold_many(self, call: Call[HoldManyHeader]) -> None:
        """Hold many transactions; an error in one does not affect the others."""
        _check_names(call.header)
        commands: list[Prepare] = []
        #: By transaction id, in request order: why it is refused, or None.
        refusals: dict[str, RequestRefused | None] = {}
        for transaction_id, rows in groupby(call.rows(SentInRow), lambda row: row.transaction_id):
            if transaction_id in refusals:
                raise RequestRefused(
                    "transaction_split",
                    "the rows of one transaction must be consecutive",
                    transaction_id=transaction_id,
                )
            refusals[transaction_id] = None
            try:
                commands.append(self._prepare(call, transaction_id, rows))
            except RequestRefused as refused:
                refusals[transaction_id] = refused

        def held(ends: Ends) -> None:
            left = iter(ends)
            call.answer_rows(
                _held(transaction_id, refused or next(left))
                for transaction_id, refused in refusals.items()
            )

        self.answering.submit_all(call.request, commands, held)

    @handles(NativeCode.SEND_MANY)
    def send_many(self, call: Call[NativeHeader]) -> None:
        """Store ordinary messages."""
        now_ms = self.clock.now_ms()
        maker = self.messages
        make = partial(maker.make, now_ms=now_ms, is_half=False)
        born_host = call.request.connection.born_host
        messages = []
        for row in call.rows(SentRow):
            properties = row.properties.encode()
            facts = read_sent_facts(properties)
            if facts.is_half:
                raise RequestRefused(
                    "batch_illegal", "hold half messages instead of sending them", topic=row.topic
                )
            first = maker.topics.type_from_first(type_of(facts, properties, is_half=False))
            place = maker.place(row.topic, row.queue_id, now_ms, message_type=first)
            sender = Sender(row.flag, row.sys_flag, row.born_at_ms, born_host)
            messages.append(make(place, row.body, properties, facts, sender))

        def stored(decision: Decision) -> None:
            reply = reply_of(decision, Appended)
            queues = [message.queue_id for message in messages]
            call.answer([queues, reply.queue_offsets, reply.log_offsets])

        self.answering.submit(call.request, Append(messages=tuple(messages)), stored)

    def _many_halves(self, call: Call[HoldHeader]) -> MessageColumns | None:
        """Return the messages as columns; None if they must be made one by one."""
        header, maker = call.header, self.messages
        if len(self.identity.store_host) != IPV4_HOST_BYTES:
            return None
        marks = half_marks(header.producer_group)
        made = ColumnMessages(
            maker,
            call.columns(SentRow),
            now_ms=self.clock.now_ms(),
            turn=crc32(header.transaction_id.encode()) + header.number,
        )
        return made.make(
            lambda *queue: marks + maker.half_suffix(header.transaction_id, *queue),
            call.request.connection.born_host,
        )

    def _prepare(
        self,
        call: Call[HoldHeader] | Call[HoldManyHeader],
        transaction_id: str,
        rows: Iterable[SentRow | SentInRow],
        number: int = 0,
        *,
        bulk: bool = False,
    ) -> Prepare:
        """Return the command that holds these half messages.

        A message may set the age at which its first back-check is due by a property, as with stock
        clients; the highest age counts.
        """
        now_ms = self.clock.now_ms()
        header, maker = call.header, self.messages
        make = partial(maker.make, now_ms=now_ms, is_half=True, transaction_id=transaction_id)
        born_host = call.request.connection.born_host
        marks = half_marks(header.producer_group)
        messages = []
        chosen_ms: list[int] = []
        # The first message gives a new topic its type. A topic that a Spark sink creates (in bulk)
        # is an ordinary one, unless types are enforced.
        first_type = MessageType.TRANSACTION
        if bulk:
            first_type = maker.topics.type_from_first(first_type)
        # A retry of the same request must choose the same queues.
        for turn, row in enumerate(rows, crc32(transaction_id.encode()) + number):
            properties = join_properties(row.properties.encode(), marks)
            facts = read_sent_facts(properties)
            if facts.check_after_ms is not None:
                chosen_ms.append(facts.check_after_ms)
            place = maker.place(row.topic, row.queue_id, now_ms, turn=turn, message_type=first_type)
            sender = Sender(row.flag, row.sys_flag, row.born_at_ms, born_host)
            messages.append(make(place, row.body, properties, facts, sender))
        return Prepare(
            group=header.producer_group,
            transaction_id=transaction_id,
            messages=tuple(messages),
            number=number,
            bulk=bulk,
            ledger=header.ledger,
            allowed_ms=header.allowed_ms,
            user=call.request.user,
            check_after_ms=max(chosen_ms, default=header.check_after_ms),
        )

    # Decisions.

    @handles(NativeCode.DECIDE_MANY)
    def decide_many(self, call: Call[ByHeader]) -> None:
        """Decide many transactions, each on its own."""
        by = call.header.by or call.by
        commands = [
            End(
                half_offset=row.half_offset,
                resolution=resolution_of(row.resolution),
                by=by,
                group=row.producer_group,
                log_offset=row.log_offset,
                epoch=call.header.epoch,
                seen_to=row.log_offset or 0,
            )
            for row in call.rows(DecisionRow)
        ]

        def decided(ends: Ends) -> None:
            for command, end in zip(commands, ends, strict=True):
                stands = end.contradicted if isinstance(end, Decision) else None
                if stands is not None:
                    self.contradictions.note(command.resolution, command.by, stands)
            call.answer_rows(map(_decided, commands, ends))

        self.answering.submit_all(call.request, commands, decided)

    @handles(NativeCode.DECIDE_BATCH)
    def decide_batch(self, call: Call[DecideBatchHeader]) -> None:
        """Commit all attempts of a batch at once."""
        header = call.header
        if (header.batch_number is None) == (header.batch_name is None):
            raise RequestRefused("batch_unnamed", "give the batch a number or a name, not both")
        command = DecideBatch(
            app_id=header.app_id,
            query_id=header.query_id,
            batch_id=header.batch_number if header.batch_name is None else header.batch_name,  # type: ignore[arg-type]  # one of the two is there
            attempts=tuple(
                AttemptClaim(
                    transaction_id=row.transaction_id,
                    last_number=row.last_number,
                    rows=row.messages,
                )
                for row in call.rows(AttemptRow)
            ),
            by=header.by,
            content=header.content,
            is_gapless=header.is_gapless,
        )

        def decided(decision: Decision) -> None:
            reply = reply_of(decision, BatchReply)
            self.awaiting.note_batch()
            call.answer(outcome=reply.outcome, messages=reply.rows)

        self.answering.submit(call.request, command, decided)


def _check_names(header: HoldManyHeader) -> None:
    check_plain_name("producer_group", header.producer_group)
    check_plain_name("ledger", header.ledger)


def half_marks(group: str) -> bytes:
    """Return the properties that mark a half message.

    Put them last: of several pairs with one name, the last one counts.
    """
    return format_properties({TRAN_MSG: "true", PGROUP: group})


def queue_ids(messages: tuple[SentMessage, ...] | MessageColumns) -> Collection[int]:
    """Return the queue id of each message."""
    if isinstance(messages, tuple):
        return [message.queue_id for message in messages]
    of_queues = [queue.queue_id for queue in messages.queues]
    return [of_queues[queue] for queue in messages.queue_of.tolist()]


def resolution_of(text: str) -> Resolution:
    """Return the resolution that a request names."""
    resolution = _RESOLUTIONS.get(text)
    if resolution is None:
        raise RequestRefused(
            "resolution_unknown", f"one of {', '.join(_RESOLUTIONS)}", resolution=text[:64]
        )
    return resolution


def _error(end: Decision | BaseException) -> EscrowError | None:
    """Return the error of a command, or None."""
    if isinstance(end, Decision):
        return end.refused
    assert isinstance(end, EscrowError), end
    return end


def _held(transaction_id: str, end: Decision | BaseException) -> Sequence[object]:
    error = _error(end)
    if error is not None:
        return transaction_id, None, None, False, error.code, str(error)
    assert isinstance(end, Decision)
    held = end.reply
    assert isinstance(held, HoldReply)
    return transaction_id, held.half_offset, held.log_offsets[0], held.repeated, None, None


def _decided(command: End, end: Decision | BaseException) -> Sequence[object]:
    """Return the answer row with the decision that stands for one transaction."""
    error = _error(end)
    why = (None, None) if error is None else (error.code, str(error))
    ended = (end.contradicted or end.reply) if isinstance(end, Decision) else None
    if not isinstance(ended, EndReply):
        # Nothing was decided: the command was refused, or its resolution was ``UNKNOWN``.
        return command.half_offset, None, None, None, False, *why
    truth = ended.state.label
    return command.half_offset, truth, ended.by, ended.at_ms, ended.repeated, *why
