"""One broker of Apache RocketMQ: what it cannot do is refused here, by name.

It takes one message per transaction, delivers at least once, and asks only live producers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from escrowmq.client.messages import OWN_TRANSACTION_ID, SendStatus, Sent
from escrowmq.client.network import Place
from escrowmq.client.outgoing import Decided, Held, Holding, Outgoing, Resolution
from escrowmq.client.refusing import refuse_unless_done
from escrowmq.client.trying import until_done
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.headers import read_header
from escrowmq.protocol.ids import parse_offset_message_id
from escrowmq.protocol.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    PGROUP,
    TRAN_MSG,
    format_properties,
)
from escrowmq.protocol.send_headers import EndTransactionHeader, SendHeader, SendResponseHeader
from escrowmq.protocol.sent_facts import read_sent_facts
from escrowmq.protocol.stored_message import SYS_COMMITTED, SYS_PREPARED, SYS_ROLLED_BACK

if TYPE_CHECKING:
    from escrowmq.client.network import Network

log = event_log(__name__)

REQUEST_S = 3.0
_DEFAULT_TOPIC = "TBW102"
#: As many as the topic has that lends its settings: keys stay in their queues then.
_DEFAULT_QUEUES = 1_024
_BITS = {
    Resolution.COMMIT: SYS_COMMITTED,
    Resolution.ROLLBACK: SYS_ROLLED_BACK,
    Resolution.UNKNOWN: 0,
}
#: Codes of answers to a message that is stored: each has the whole header.
_STATUSES: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
_STATES = {Resolution.COMMIT: "committed", Resolution.ROLLBACK: "rolled_back"}


class ApacheBroker:
    """Belongs to one event loop."""

    is_ours = False

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        #: Keyed messages of a queue go one after the other: its threads would mix them up.
        self._turns: dict[Place, asyncio.Lock] = {}

    async def send(self, message: Outgoing, until: float) -> Sent:
        """Store an ordinary message."""
        if not message.is_keyed:
            return await self._send(message, until)
        async with self._turns.setdefault(message.place, asyncio.Lock()):
            return await self._send(message, until)

    async def _send(self, message: Outgoing, until: float) -> Sent:
        header = _header(message, message.properties, "", 0)

        status, answer = await self._store(header, message.body, until)
        return Sent(
            message_id=message.message_id,
            topic=message.place.topic,
            broker_name=message.place.broker_name,
            queue_id=answer.queue_id,
            queue_offset=answer.queue_offset,
            status=status,
        )

    async def hold(self, holding: Holding, until: float) -> Held:
        """Hold one half message; one that is stored unsafely is rolled back and raises."""
        if len(holding.messages) != 1 or holding.number:
            raise RequestRefused(
                "one_message_per_transaction",
                "Apache RocketMQ takes one; use a broker of ours for more",
                messages=len(holding.messages) + holding.number,
            )
        (message,) = holding.messages
        if message.is_delayed:
            raise RequestRefused(
                "delay_in_transaction",
                "Apache RocketMQ loses such a message",
                topic=message.place.topic,
            )
        # This broker has no transaction ids but messages' own; a check brings ours back with the
        # properties.  A ledger that was asked about another id would never find its row.
        pairs = {
            TRAN_MSG: "true",
            PGROUP: holding.group,
            OWN_TRANSACTION_ID: holding.transaction_id,
        }
        chosen_ms = read_sent_facts(message.properties).check_after_ms
        if holding.check_after_ms is not None and chosen_ms is None:
            pairs[CHECK_IMMUNITY_TIME_IN_SECONDS] = str(-(-holding.check_after_ms // 1_000))
        properties = message.properties + format_properties(pairs)
        header = _header(message, properties, holding.group, SYS_PREPARED)
        # Sent twice, it holds an orphan that a check rolls back or commits like the other one.
        status, answer = await self._store(header, message.body, until)
        _, log_offset = parse_offset_message_id(answer.offset_message_id)
        held = Held(
            address=self._address,
            group=holding.group,
            transaction_id=holding.transaction_id,
            half_offset=answer.queue_offset,
            log_offset=log_offset,
            message_id=message.message_id,
            topic=message.place.topic,
            broker_name=message.place.broker_name,
            queue_id=message.place.queue_id,
        )
        if status is not SendStatus.SEND_OK:
            await self._withdraw(held, until)
            raise Unavailable(
                "half_not_safe",
                "the half message was rolled back, the local transaction must not run: try again",
                status=status.value,
                transaction_id=held.transaction_id,
                address=self._address,
            )
        return held

    async def _withdraw(self, held: Held, until: float) -> None:
        """Roll a half message back before its sender has done anything."""
        try:
            await self.decide(held, Resolution.ROLLBACK, until)
        except EscrowError as error:
            # A check finds out that there was no local transaction.
            facts = {"transaction_id": held.transaction_id, "why": str(error)}
            log.warning("rollback_untold", extra=facts)

    async def decide(self, held: Held, resolution: Resolution, until: float) -> Decided:
        """Commit or roll back; it publishes again what is committed twice, so only once."""
        connection = await self._network.connection(self._address)
        header = end_header(held, resolution)
        if resolution is Resolution.UNKNOWN:
            # Nobody would answer that.
            connection.tell(RequestCode.END_TRANSACTION, header)
            return Decided(state="")
        left_s = max(until - asyncio.get_running_loop().time(), 0.1)
        answer = await connection.ask(
            RequestCode.END_TRANSACTION, header, timeout_s=min(left_s, REQUEST_S)
        )
        refuse_unless_done(answer)
        return Decided(state=_STATES[resolution])

    async def close(self) -> None:
        """Nothing waits here."""

    async def _store(
        self, header: SendHeader, body: bytes, until: float
    ) -> tuple[SendStatus, SendResponseHeader]:
        async def ask() -> tuple[SendStatus, SendResponseHeader]:
            connection = await self._network.connection(self._address)
            answer = await connection.ask(
                RequestCode.SEND_MESSAGE_V2, header, body, timeout_s=REQUEST_S
            )
            if answer.code not in _STATUSES:
                refuse_unless_done(answer)
            return _STATUSES[answer.code], read_header(SendResponseHeader, answer.ext)

        return await until_done(ask, until, is_repeatable=False)


def end_header(
    held: Held, resolution: Resolution, *, is_check_answer: bool = False
) -> EndTransactionHeader:
    """END_TRANSACTION, as every broker understands it."""
    return EndTransactionHeader(
        topic=held.topic,
        producer_group=held.group,
        half_offset=held.half_offset,
        log_offset=held.log_offset,
        resolution_bits=_BITS[resolution],
        is_check_answer=is_check_answer,
        unique_key=held.message_id,
        transaction_id=held.transaction_id,
    )


def _header(message: Outgoing, properties: bytes, group: str, sys_flag: int) -> SendHeader:
    return SendHeader(
        producer_group=group or "escrowmq",
        topic=message.place.topic,
        default_topic=_DEFAULT_TOPIC,
        default_queue_count=_DEFAULT_QUEUES,
        queue_id=message.place.queue_id,
        sys_flag=sys_flag,
        born_at_ms=message.born_at_ms,
        flag=0,
        properties=properties.decode(),
        broker_name=message.place.broker_name,
    )
