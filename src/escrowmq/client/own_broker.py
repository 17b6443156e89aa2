"""One broker of ours: many messages, transactions and decisions share a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from escrowmq.client.lane import Lane
from escrowmq.client.messages import Sent
from escrowmq.client.outgoing import Decided, Held, Holding, Outgoing, Resolution
from escrowmq.client.trying import until_done
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.protocol.own import OWN_REQUESTS, OwnCode
from escrowmq.protocol.own_forms import Form, Row, encode_rows
from escrowmq.protocol.own_frames import Answer, read_answer
from escrowmq.protocol.own_headers import ByHeader, HoldHeader, HoldManyHeader, OwnHeader
from escrowmq.protocol.own_rows import DecisionRow, SentInRow, SentRow

if TYPE_CHECKING:
    from escrowmq.client.network import Network

REQUEST_S = 10.0
#: A transaction with more messages goes alone. The second number is the maximum number of
#: transactions in one request; the product of both is the maximum number of messages in it.
SHARING_MESSAGES_MAX = 64
SHARING_TRANSACTIONS_MAX = 64
#: Maximum bytes and messages in one request of a transaction that goes alone.
PART_BYTES_MAX = 8 * 1024 * 1024
PART_MESSAGES_MAX = 4_096

_Sending = tuple[Outgoing, float]
_Held = tuple[Holding, float]
_Deciding = tuple[Held, Resolution, float]


class OwnBroker:
    """Client of one broker of ours. Use it from one event loop only."""

    is_ours = True

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._sending: Lane[_Sending, Sent] = Lane(
            self._send, lambda item: item[0].size, lambda item: item[0].is_delayed
        )
        self._holding: Lane[_Held, Held] = Lane(
            self._hold,
            lambda item: item[0].size,
            lambda item: item[0].terms,
            shared_max=SHARING_TRANSACTIONS_MAX,
        )
        self._deciding: Lane[_Deciding, Decided] = Lane(
            self._decide, lambda _item: 64, lambda item: item[0].epoch
        )

    def send(self, message: Outgoing, until: float) -> asyncio.Future[Sent]:
        """Store an ordinary message, in a request shared with concurrent sends."""
        return self._sending.put((message, until))

    async def hold(self, holding: Holding, until: float) -> Held:
        """Hold half messages, in a request shared with concurrent transactions."""
        is_small = len(holding.messages) <= SHARING_MESSAGES_MAX and holding.size <= PART_BYTES_MAX
        if is_small and not holding.number:
            return await self._holding.put((holding, until))
        return await self._hold_alone(holding, until)

    async def decide(self, held: Held, resolution: Resolution, until: float) -> Decided:
        """Commit or roll back, in a request shared with concurrent decisions."""
        return await self._deciding.put((held, resolution, until))

    async def close(self) -> None:
        """Wait until all calls are done."""
        for lane in (self._sending, self._holding, self._deciding):
            await lane.close()

    async def _call(
        self, code: OwnCode, header: OwnHeader, rows: Sequence[Row], until: float, *, again: bool
    ) -> Answer:
        spec = OWN_REQUESTS[code]
        assert spec.rows is not None
        body = encode_rows(Form.MSGPACK, spec.rows, spec.version, rows)

        async def ask() -> Answer:
            connection = await self._network.connection(self._address)
            left_s = max(until - asyncio.get_running_loop().time(), 0.1)
            frame = await connection.ask(code, header, body, timeout_s=min(left_s, REQUEST_S))
            return read_answer(code, frame)

        return await until_done(ask, until, is_repeatable=again)

    async def _send(self, items: list[_Sending]) -> list[Sent]:
        rows = [_row(message) for message, _ in items]
        until = max(until for _, until in items)
        answer = await self._call(OwnCode.SEND_MANY, OwnHeader(), rows, until, again=False)
        return [
            Sent(
                message_id=message.message_id,
                topic=message.place.topic,
                broker_name=message.place.broker_name,
                queue_id=row.queue_id,
                queue_offset=row.queue_offset,
            )
            for (message, _), row in zip(items, answer.rows, strict=True)
        ]

    async def _hold(self, items: list[_Held]) -> list[Held | EscrowError]:
        first = items[0][0]
        header = HoldManyHeader(
            producer_group=first.group,
            ledger=first.ledger,
            allowed_ms=first.allowed_ms,
            check_after_ms=first.check_after_ms,
        )
        rows = [
            _row_in(holding.transaction_id, message)
            for holding, _ in items
            for message in holding.messages
        ]
        until = max(until for _, until in items)
        answer = await self._call(OwnCode.HOLD_MANY, header, rows, until, again=True)
        return [
            self._held(holding, row, answer.header.epoch)
            for (holding, _), row in zip(items, answer.rows, strict=True)
        ]

    def _held(self, holding: Holding, row: Any, epoch: str) -> Held | EscrowError:  # noqa: ANN401 - a HeldInRow
        if row.refused is not None:
            return RequestRefused(row.refused, row.detail.removeprefix(f"{row.refused}: "))
        return self._as_held(holding, row.half_offset, row.log_offset, epoch)

    def _as_held(self, holding: Holding, half_offset: int, log_offset: int, epoch: str) -> Held:
        first = holding.messages[0]
        return Held(
            address=self._address,
            group=holding.group,
            transaction_id=holding.transaction_id,
            half_offset=half_offset,
            log_offset=log_offset,
            message_id=first.message_id,
            topic=first.place.topic,
            broker_name=first.place.broker_name,
            queue_id=first.place.queue_id,
            epoch=epoch,
        )

    async def _hold_alone(self, holding: Holding, until: float) -> Held:
        """Hold a transaction in numbered requests, one after the other."""
        held: Held | None = None
        for number, part in enumerate(_parts(holding.messages), holding.number):
            header = HoldHeader(
                producer_group=holding.group,
                transaction_id=holding.transaction_id,
                number=number,
                ledger=holding.ledger,
                allowed_ms=holding.allowed_ms,
                check_after_ms=holding.check_after_ms,
            )
            rows = [_row(message) for message in part]
            answer = await self._call(OwnCode.HOLD_HALVES, header, rows, until, again=True)
            if held is None:
                first = answer.rows[0]
                epoch = answer.header.epoch
                held = self._as_held(holding, first.half_offset, first.log_offset, epoch)
        assert held is not None
        return held

    async def _decide(self, items: list[_Deciding]) -> list[Decided | EscrowError]:
        rows = [
            DecisionRow(
                half_offset=held.half_offset,
                resolution=resolution.value,
                producer_group=held.group,
                log_offset=held.log_offset,
            )
            for held, resolution, _ in items
        ]
        until = max(until for _, _, until in items)
        header = ByHeader(epoch=items[0][0].epoch)
        answer = await self._call(OwnCode.DECIDE_MANY, header, rows, until, again=True)
        return [_decided(row) for row in answer.rows]


def _decided(row: Any) -> Decided | EscrowError:  # noqa: ANN401 - a DecidedRow
    if row.refused is not None:
        return RequestRefused(
            row.refused,
            row.detail.removeprefix(f"{row.refused}: "),
            decided=row.decided,
            by=row.decided_by,
            at_ms=row.decided_at_ms,
        )
    return Decided(
        state=row.decided or "",
        by=row.decided_by or "",
        at_ms=row.decided_at_ms or 0,
        is_repeated=row.is_repeated,
    )


def _row(message: Outgoing) -> SentRow:
    return SentRow(
        topic=message.place.topic,
        queue_id=message.place.queue_id,
        body=message.body,
        properties=message.properties.decode(),
        flag=0,
        sys_flag=0,
        born_at_ms=message.born_at_ms,
    )


def _row_in(transaction_id: str, message: Outgoing) -> SentInRow:
    return SentInRow(
        transaction_id=transaction_id,
        topic=message.place.topic,
        queue_id=message.place.queue_id,
        body=message.body,
        properties=message.properties.decode(),
        flag=0,
        sys_flag=0,
        born_at_ms=message.born_at_ms,
    )


def _parts(messages: Sequence[Outgoing]) -> list[list[Outgoing]]:
    """Split messages into runs that each fit into one request."""
    number, total, count = 0, 0, 0
    numbers = []
    for message in messages:
        total += message.size
        count += 1
        if count > 1 and (total > PART_BYTES_MAX or count > PART_MESSAGES_MAX):
            number, total, count = number + 1, message.size, 1
        numbers.append(number)
    pairs = zip(numbers, messages, strict=True)
    return [[message for _, message in part] for _, part in groupby(pairs, lambda pair: pair[0])]
