"""One broker of ours: many messages, transactions and decisions share a request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from escrowmq.client.messages.messages import Sent
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction, Holding, Outgoing
from escrowmq.client.network.trying import until_done
from escrowmq.client.producer.shared_requests import SharedRequests
from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.native.frames import NativeReply, read_answer
from escrowmq.protocol.native.headers import ByHeader, HoldHeader, HoldManyHeader, NativeHeader
from escrowmq.protocol.native.requests import NATIVE_REQUESTS, NativeCode
from escrowmq.protocol.native.row_forms import NativeRow, RowForm, encode_rows
from escrowmq.protocol.native.rows import DecisionRow, SentInRow, SentRow

if TYPE_CHECKING:
    from escrowmq.client.network.routing import Network

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
_Deciding = tuple[HeldTransaction, Resolution, float]


class NativeBroker:
    """Client of one broker of ours. Use it from one event loop only."""

    is_ours = True

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        self._sending: SharedRequests[_Sending, Sent] = SharedRequests(
            self._send, lambda item: item[0].size, lambda item: item[0].is_delayed
        )
        self._holding: SharedRequests[_Held, HeldTransaction] = SharedRequests(
            self._hold,
            lambda item: item[0].size,
            lambda item: item[0].terms,
            shared_max=SHARING_TRANSACTIONS_MAX,
        )
        self._deciding: SharedRequests[_Deciding, FinalDecision] = SharedRequests(
            self._decide, lambda _item: 64, lambda item: item[0].epoch
        )

    def send(self, message: Outgoing, until: float) -> asyncio.Future[Sent]:
        """Store an ordinary message, in a request shared with concurrent sends."""
        return self._sending.put((message, until))

    async def hold(self, holding: Holding, until: float) -> HeldTransaction:
        """Hold half messages, in a request shared with concurrent transactions."""
        is_small = len(holding.messages) <= SHARING_MESSAGES_MAX and holding.size <= PART_BYTES_MAX
        if is_small and not holding.number:
            return await self._holding.put((holding, until))
        return await self._hold_alone(holding, until)

    async def decide(
        self, held: HeldTransaction, resolution: Resolution, until: float
    ) -> FinalDecision:
        """Commit or roll back, in a request shared with concurrent decisions."""
        return await self._deciding.put((held, resolution, until))

    async def close(self) -> None:
        """Wait until all calls are done."""
        for lane in (self._sending, self._holding, self._deciding):
            await lane.close()

    async def _call(
        self,
        code: NativeCode,
        header: NativeHeader,
        rows: Sequence[NativeRow],
        until: float,
        *,
        again: bool,
    ) -> NativeReply:
        spec = NATIVE_REQUESTS[code]
        assert spec.rows is not None
        body = encode_rows(RowForm.MSGPACK, spec.rows, spec.version, rows)

        async def ask() -> NativeReply:
            connection = await self._network.connection(self._address)
            left_s = max(until - asyncio.get_running_loop().time(), 0.1)
            frame = await connection.ask(code, header, body, timeout_s=min(left_s, REQUEST_S))
            return read_answer(code, frame)

        return await until_done(ask, until, is_repeatable=again)

    async def _send(self, items: list[_Sending]) -> list[Sent]:
        rows = [_row(message) for message, _ in items]
        until = max(until for _, until in items)
        answer = await self._call(NativeCode.SEND_MANY, NativeHeader(), rows, until, again=False)
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

    async def _hold(self, items: list[_Held]) -> list[HeldTransaction | EscrowError]:
        header = HoldManyHeader(**_terms(items[0][0]))
        rows = [
            _row_in(holding.transaction_id, message)
            for holding, _ in items
            for message in holding.messages
        ]
        until = max(until for _, until in items)
        answer = await self._call(NativeCode.HOLD_MANY, header, rows, until, again=True)
        return [
            self._held(holding, row, answer.header.epoch)
            for (holding, _), row in zip(items, answer.rows, strict=True)
        ]

    def _held(self, holding: Holding, row: Any, epoch: str) -> HeldTransaction | EscrowError:  # noqa: ANN401 - a HeldInRow
        if row.refused is not None:
            return RequestRefused(row.refused, row.detail.removeprefix(f"{row.refused}: "))
        return holding.held(self._address, row.half_offset, row.log_offset, epoch)

    async def _hold_alone(self, holding: Holding, until: float) -> HeldTransaction:
        """Hold a transaction in numbered requests, one after the other."""
        held: HeldTransaction | None = None
        for number, part in enumerate(_parts(holding.messages), holding.number):
            header = HoldHeader(
                transaction_id=holding.transaction_id, number=number, **_terms(holding)
            )
            rows = [_row(message) for message in part]
            answer = await self._call(NativeCode.HOLD_HALVES, header, rows, until, again=True)
            if held is None:
                first, epoch = answer.rows[0], answer.header.epoch
                held = holding.held(self._address, first.half_offset, first.log_offset, epoch)
        assert held is not None
        return held

    async def _decide(self, items: list[_Deciding]) -> list[FinalDecision | EscrowError]:
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
        answer = await self._call(NativeCode.DECIDE_MANY, header, rows, until, again=True)
        return [_decided(row) for row in answer.rows]


def _terms(holding: Holding) -> dict[str, Any]:
    """Return the terms of a transaction as fields of a request's header."""
    names = ("producer_group", "ledger", "allowed_ms", "check_after_ms")
    return dict(zip(names, holding.terms, strict=True))


def _decided(row: Any) -> FinalDecision | EscrowError:  # noqa: ANN401 - a DecidedRow
    if row.refused is not None:
        return RequestRefused(
            row.refused,
            row.detail.removeprefix(f"{row.refused}: "),
            decided=row.decided,
            by=row.decided_by,
            at_ms=row.decided_at_ms,
        )
    return FinalDecision(
        state=row.decided or "",
        by=row.decided_by or "",
        at_ms=row.decided_at_ms or 0,
        is_repeated=row.is_repeated,
    )


# The rows' fields are given by position, which is faster. Both flags are 0.
def _row(message: Outgoing) -> SentRow:
    place, text = message.place, message.properties.decode()
    return SentRow(place.topic, place.queue_id, message.body, text, 0, 0, message.born_at_ms)


def _row_in(key: str, message: Outgoing) -> SentInRow:
    place, text = message.place, message.properties.decode()
    return SentInRow(key, place.topic, place.queue_id, message.body, text, 0, 0, message.born_at_ms)


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
