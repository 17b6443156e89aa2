"""Our own write requests: messages, half messages and decisions in bulk.

Each goes through the writer, so nothing is answered before it is durable. The rows of one request
share batches.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.broker.column_messages import ColumnMessages
from escrowmq.broker.messages import Sender
from escrowmq.broker.own_calls import Call, own_handlers
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.ids import IPV4_HOST_BYTES
from escrowmq.protocol.own import OwnCode
from escrowmq.protocol.own_rows import AttemptRow, DecisionRow, SentInRow, SentRow
from escrowmq.protocol.properties import PGROUP, TRAN_MSG, format_properties, join_properties
from escrowmq.protocol.sent_facts import read_sent_facts
from escrowmq.transaction.commands import (
    Append,
    Appended,
    AttemptClaim,
    BatchReply,
    DecideBatch,
    Decision,
    End,
    Held,
    Prepare,
    Settled,
)
from escrowmq.transaction.states import Resolution

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker
    from escrowmq.broker.bulk import Ends
    from escrowmq.broker.requests import Handlers
    from escrowmq.model.message import Message
    from escrowmq.model.message_columns import MessageColumns
    from escrowmq.protocol.own_headers import ByHeader, HoldHeader, HoldManyHeader, OwnHeader
    from escrowmq.protocol.own_sink_headers import DecideBatchHeader

_RESOLUTIONS = {resolution.value: resolution for resolution in Resolution}
#: By error code of a refusal, the decision that was made before.
_DECIDED = {"already_committed": "committed", "already_rolled_back": "rolled_back"}


class OwnWriting:
    """Handles bulk writes."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def handlers(self) -> Handlers:
        """Return the handlers by request code."""
        return own_handlers(
            self._broker,
            {
                OwnCode.HOLD_HALVES: self.hold,
                OwnCode.HOLD_MANY: self.hold_many,
                OwnCode.SEND_MANY: self.send_many,
                OwnCode.DECIDE_MANY: self.decide_many,
                OwnCode.DECIDE_BATCH: self.decide_batch,
            },
        )

    # Messages.

    def hold(self, call: Call[HoldHeader]) -> None:
        """Hold half messages of one transaction."""
        header = call.header
        columns = self._many_halves(call) if header.is_bulk else None
        messages: tuple[Message, ...] = ()
        check_after_ms = header.check_after_ms
        if columns is None:
            rows = call.rows(SentRow)
            messages, check_after_ms = self._halves(
                call, header.producer_group, header.transaction_id, header.number, rows
            )
        command = Prepare(
            group=header.producer_group,
            transaction_id=header.transaction_id,
            messages=messages,
            number=header.number,
            bulk=header.is_bulk,
            ledger=header.ledger,
            allowed_ms=header.allowed_ms,
            check_after_ms=check_after_ms,
            columns=columns,
        )

        def held(decision: Decision) -> None:
            reply = decision.reply
            assert isinstance(reply, Held)
            first = reply.half_offset
            if not (header.number or reply.repeated):
                self._broker.awaiting.note_held(header.producer_group, header.transaction_id)
            call.answer(
                [
                    queue_ids(command.content),
                    range(first, first + reply.count),
                    reply.log_offsets,
                ],
                half_offset=first,
                is_repeated=reply.repeated,
            )

        self._broker.submit(call.request, command, held)

    def hold_many(self, call: Call[HoldManyHeader]) -> None:
        """Hold many transactions; an error in one does not affect the others."""
        header = call.header
        commands: list[Prepare] = []
        #: By transaction id, in request order: why it is refused, or None.
        refusals: dict[str, RequestRefused | None] = {}
        for transaction_id, rows in groupby(call.rows(SentInRow), _transaction_id):
            if transaction_id in refusals:
                raise RequestRefused(
                    "transaction_split",
                    "rows of one transaction stand together",
                    transaction_id=transaction_id,
                )
            try:
                messages, check_after_ms = self._halves(
                    call, header.producer_group, transaction_id, 0, rows
                )
            except RequestRefused as refused:
                refusals[transaction_id] = refused
                continue
            refusals[transaction_id] = None
            commands.append(
                Prepare(
                    group=header.producer_group,
                    transaction_id=transaction_id,
                    messages=messages,
                    number=0,
                    ledger=header.ledger,
                    allowed_ms=header.allowed_ms,
                    check_after_ms=check_after_ms,
                )
            )

        def held(ends: Ends) -> None:
            left = iter(ends)
            call.answer_rows(
                _held(transaction_id, refused or next(left))
                for transaction_id, refused in refusals.items()
            )

        self._broker.submit_all(call.request, commands, held)

    def send_many(self, call: Call[OwnHeader]) -> None:
        """Store ordinary messages."""
        now_ms = self._broker.clock.now_ms()
        maker = self._broker.messages
        born_host = call.request.connection.born_host
        messages = []
        for row in call.rows(SentRow):
            properties = row.properties.encode()
            facts = read_sent_facts(properties)
            if facts.is_half:
                raise RequestRefused(
                    "batch_illegal", "hold half messages instead of sending them", topic=row.topic
                )
            messages.append(
                maker.make(
                    maker.place(row.topic, row.queue_id, now_ms),
                    row.body,
                    properties,
                    facts,
                    Sender(row.flag, row.sys_flag, row.born_at_ms, born_host),
                    now_ms=now_ms,
                    is_half=False,
                )
            )

        def stored(decision: Decision) -> None:
            reply = decision.reply
            assert isinstance(reply, Appended)
            queues = [message.queue_id for message in messages]
            call.answer([queues, reply.queue_offsets, reply.log_offsets])

        self._broker.submit(call.request, Append(messages=tuple(messages)), stored)

    def _many_halves(self, call: Call[HoldHeader]) -> MessageColumns | None:
        """Return the messages as columns; None if they must be made one by one."""
        header, maker = call.header, self._broker.messages
        if len(self._broker.store_host) != IPV4_HOST_BYTES:
            return None
        marks = half_marks(header.producer_group)
        made = ColumnMessages(
            maker,
            call.columns(SentRow),
            now_ms=self._broker.clock.now_ms(),
            turn=crc32(header.transaction_id.encode()) + header.number,
        )
        return made.make(
            lambda *queue: marks + maker.half_suffix(header.transaction_id, *queue),
            call.request.connection.born_host,
        )

    def _halves(
        self,
        call: Call[HoldHeader] | Call[HoldManyHeader],
        group: str,
        transaction_id: str,
        number: int,
        rows: Iterable[SentRow | SentInRow],
    ) -> tuple[tuple[Message, ...], int | None]:
        """Return the half messages, and the age at which their first back-check is due.

        A message may set that age by a property, as with stock clients; the highest age counts.
        """
        now_ms = self._broker.clock.now_ms()
        maker = self._broker.messages
        born_host = call.request.connection.born_host
        marks = half_marks(group)
        messages = []
        chosen_ms: list[int] = []
        # A retry of the same request must choose the same queues.
        for turn, row in enumerate(rows, crc32(transaction_id.encode()) + number):
            properties = join_properties(row.properties.encode(), marks)
            facts = read_sent_facts(properties)
            if facts.check_after_ms is not None:
                chosen_ms.append(facts.check_after_ms)
            messages.append(
                maker.make(
                    maker.place(row.topic, row.queue_id, now_ms, turn=turn),
                    row.body,
                    properties,
                    facts,
                    Sender(row.flag, row.sys_flag, row.born_at_ms, born_host),
                    now_ms=now_ms,
                    is_half=True,
                    transaction_id=transaction_id,
                )
            )
        return tuple(messages), max(chosen_ms, default=call.header.check_after_ms)

    # Decisions.

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
                refused = end.refused if isinstance(end, Decision) else None
                if refused is not None and refused.code in _DECIDED:
                    self._broker.contradictions.note_refused(command, refused)
            call.answer_rows(map(_decided, commands, ends))

        self._broker.submit_all(call.request, commands, decided)

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
            reply = decision.reply
            assert isinstance(reply, BatchReply)
            self._broker.awaiting.note_batch()
            call.answer(outcome=reply.outcome, messages=reply.rows)

        self._broker.submit(call.request, command, decided)


def half_marks(group: str) -> bytes:
    """Return the properties that mark a half message; the last pair with a name counts."""
    return format_properties({TRAN_MSG: "true", PGROUP: group})


def queue_ids(messages: tuple[Message, ...] | MessageColumns) -> Collection[int]:
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


def _transaction_id(row: SentInRow) -> str:
    return row.transaction_id


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
    assert isinstance(held, Held)
    return transaction_id, held.half_offset, held.log_offsets[0], held.repeated, None, None


def _decided(command: End, end: Decision | BaseException) -> Sequence[object]:
    """Return the answer row with the decision that stands for one transaction."""
    half_offset, error = command.half_offset, _error(end)
    if error is not None:
        truth = _DECIDED.get(error.code)
        by = error.fields["by"] if truth else None
        at_ms = error.fields["at_ms"] if truth else None
        return half_offset, truth, by, at_ms, truth is not None, error.code, str(error)
    assert isinstance(end, Decision)
    settled = end.reply
    if not isinstance(settled, Settled):
        # The resolution was ``UNKNOWN``, so nothing was decided.
        return half_offset, None, None, None, False, None, None
    truth = settled.state.label
    return half_offset, truth, settled.by, settled.at_ms, settled.repeated, None, None
