"""One broker of Apache RocketMQ; this adapter refuses what that broker cannot do.

The broker takes one message per transaction, delivers at least once, and back-checks only live
producers.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from escrowmq.client.messages.messages import SendStatus, Sent
from escrowmq.client.messages.outgoing import FinalDecision, HeldTransaction, Holding, Outgoing
from escrowmq.client.network.refusing import refuse_unless_done
from escrowmq.client.network.routing import QueueAddress
from escrowmq.client.network.trying import until_done
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.model.topic_names import DEFAULT_TOPIC
from escrowmq.protocol.message.ids import parse_offset_message_id
from escrowmq.protocol.message.properties import (
    CHECK_IMMUNITY_TIME_IN_SECONDS,
    OWN_TRANSACTION_ID,
    PGROUP,
    TRAN_MSG,
    format_properties,
)
from escrowmq.protocol.message.sent_facts import read_sent_facts
from escrowmq.protocol.message.stored_message import SYS_COMMITTED, SYS_PREPARED, SYS_ROLLED_BACK
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.headers import read_header
from escrowmq.protocol.remoting.send_headers import (
    EndTransactionHeader,
    SendHeader,
    SendResponseHeader,
)

if TYPE_CHECKING:
    from escrowmq.client.network.routing import Network

log = event_log(__name__)

REQUEST_S = 3.0
#: Queue count that a send asks for a topic that it creates. The broker gives at most the count of
#: the default topic; a smaller number here would move keys to other queues.
_DEFAULT_QUEUES = 1_024
_BITS = {
    Resolution.COMMIT: SYS_COMMITTED,
    Resolution.ROLLBACK: SYS_ROLLED_BACK,
    Resolution.UNKNOWN: 0,
}
#: Response codes of a stored message. Each response has the complete header.
_STATUSES: dict[int, SendStatus] = {
    ResponseCode.SUCCESS: SendStatus.SEND_OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: SendStatus.FLUSH_DISK_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: SendStatus.FLUSH_SLAVE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: SendStatus.SLAVE_NOT_AVAILABLE,
}
_STATES = {Resolution.COMMIT: "committed", Resolution.ROLLBACK: "rolled_back"}


class ApacheBroker:
    """Client of one Apache broker. Use it from one event loop only."""

    is_ours = False

    def __init__(self, network: Network, address: str) -> None:
        self._network = network
        self._address = address
        #: One lock per queue. The broker's threads would reorder keyed messages sent concurrently.
        self._turns: dict[QueueAddress, asyncio.Lock] = {}

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

    async def hold(self, holding: Holding, until: float) -> HeldTransaction:
        """Hold one half message. Roll it back and raise if the broker did not store it safely."""
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
        # This broker's only transaction ids are message ids. The property returns our id in a
        # back-check; under any other id the ledger has no row.
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
        # A caller's retry stores a second half message; a back-check decides it like the first.
        status, answer = await self._store(header, message.body, until)
        _, log_offset = parse_offset_message_id(answer.offset_message_id)
        # An old broker does not return the transaction id, which is the message's id.
        id_property = answer.transaction_id or message.message_id
        held = holding.held(self._address, answer.queue_offset, log_offset, id_property=id_property)
        if status is not SendStatus.SEND_OK:
            await self._withdraw(held, until)
            raise Unavailable(
                "half_not_safe",
                "the half message was rolled back, so the"
                " local transaction must not run: try again",
                status=status.value,
                transaction_id=held.transaction_id,
                address=self._address,
            )
        return held

    async def _withdraw(self, held: HeldTransaction, until: float) -> None:
        """Roll back a half message before the local transaction has run."""
        try:
            await self.decide(held, Resolution.ROLLBACK, until)
        except EscrowError as error:
            # A back-check will find that there was no local transaction.
            facts = {"transaction_id": held.transaction_id, "why": str(error)}
            log.warning("rollback_untold", extra=facts)

    async def decide(
        self, held: HeldTransaction, resolution: Resolution, until: float
    ) -> FinalDecision:
        """Commit or roll back. The request is sent once: a second commit would publish again."""
        connection = await self._network.connection(self._address)
        header = end_header(held, resolution)
        if resolution is Resolution.UNKNOWN:
            # The broker does not reply to UNKNOWN.
            connection.tell(RequestCode.END_TRANSACTION, header)
            return FinalDecision(state="")
        left_s = max(until - asyncio.get_running_loop().time(), 0.1)
        answer = await connection.ask(
            RequestCode.END_TRANSACTION, header, timeout_s=min(left_s, REQUEST_S)
        )
        if answer.code == ResponseCode.ILLEGAL_OPERATION:
            text = "check_after_s is over, so that broker decides by a check, which follows"
            said, key = resolution.value, held.transaction_id
            raise Unavailable("decision_late", text, resolution=said, transaction_id=key)
        refuse_unless_done(answer)
        return FinalDecision(state=_STATES[resolution])

    async def close(self) -> None:
        """Do nothing: this adapter has no pending work."""

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
    held: HeldTransaction, resolution: Resolution, *, is_check_answer: bool = False
) -> EndTransactionHeader:
    """Build the END_TRANSACTION header that both kinds of brokers understand."""
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
        default_topic=DEFAULT_TOPIC,
        default_queue_count=_DEFAULT_QUEUES,
        queue_id=message.place.queue_id,
        sys_flag=sys_flag,
        born_at_ms=message.born_at_ms,
        flag=0,
        properties=properties.decode(),
        broker_name=message.place.broker_name,
    )
