"""A producer on its event loop: it sends messages, and holds and decides transactions.

It also chooses the broker and the queue of a message: by key, so that messages with one key stay in
order, else round-robin. All messages of a transaction go to one broker.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.client.config import ProducerConfig, check_group
from escrowmq.client.messages.codecs import JSON, Codec
from escrowmq.client.messages.messages import Message, Sent
from escrowmq.client.messages.outgoing import (
    FinalDecision,
    HeldTransaction,
    Holding,
    Outgoing,
    SendingBroker,
)
from escrowmq.client.messages.wire_form import check_after_illegal
from escrowmq.client.network.member import Member
from escrowmq.client.network.trying import joined, kept, until_done
from escrowmq.model.errors import EscrowError, RequestRefused, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.model.resolution import Resolution
from escrowmq.protocol.message.properties import ALLOWED_MS, LEDGER
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode

if TYPE_CHECKING:
    from escrowmq.client.messages.wire_form import WireForm
    from escrowmq.client.network.routing import QueueAddress, Route
    from escrowmq.client.producer.check_answers import CheckAnswers, Checker

log = event_log(__name__)

#: ``send_many`` yields to the event loop after this many messages, so that they are sent.
BEGUN_MAX = 256


class Producing:
    """A started producer. Use it from one event loop only."""

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        config: ProducerConfig,
        checker: Checker | None = None,
        codec: Codec = JSON,
    ) -> None:
        check_group(group)
        self.group = group
        self._codec = codec
        self.config = config
        self.member = Member(servers, tls=config.tls, credentials=config.credentials)
        self.network = self.member.network
        self._brokers: dict[str, SendingBroker] = {}
        self._asking: dict[str, asyncio.Task[SendingBroker]] = {}
        self._turn = count()
        self._deciding: set[asyncio.Task[FinalDecision]] = set()
        self._telling: set[asyncio.Task[None]] = set()
        self._answers: CheckAnswers | None = None
        if checker is not None:
            # A producer without a checker does not join the group: a broker would back-check it in
            # vain instead of a member that can answer.
            self.member.producer_groups.add(group)
            from escrowmq.client.producer.check_answers import CheckAnswers

            self._answers = CheckAnswers(group, checker)
            self.member.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._answers.asked

    async def start(self) -> None:
        """Register with the brokers; raise Unavailable if no name server answers."""
        await self.member.start()

    async def find(self, topics: Sequence[str], until: float) -> None:
        """Look for declared topics; RequestRefused if one is unknown and may not be created."""
        for topic in topics:
            await self._route(topic, until)

    async def close(self) -> None:
        """Wait for calls in flight, and unregister."""
        if self._deciding or self._telling:
            await asyncio.wait({*self._deciding, *self._telling})
        for broker in self._brokers.values():
            await broker.close()
        if self._answers is not None:
            await self._answers.close()
        await self.member.close()

    # Messages.

    async def send(self, message: Message) -> Sent:
        """Store an ordinary message."""
        until = self._until()
        outgoing = self._ordinary(message, await self._route(message.topic, until))
        try:
            broker = await self._broker(outgoing.place.address, until)
            return await broker.send(outgoing, until)
        except RequestRefused:
            # The topic may have changed since the route was read.
            self.network.forget(message.topic)
            raise

    async def send_many(self, messages: Iterable[Message]) -> list[Sent]:
        """Store ordinary messages in as few requests as possible; keyed ones stay in order.

        All are tried, then the first error is raised; the other messages may have been stored.
        """
        until = self._until()
        routes: dict[str, Route] = {}
        sending: list[asyncio.Future[Sent]] = []
        errors: list[EscrowError] = []
        sent: list[Sent] = []
        try:
            for number, message in enumerate(messages, 1):
                try:
                    sending.append(await self._begin(message, routes, until))
                except EscrowError as error:
                    errors.append(error)
                if number % BEGUN_MAX == 0:
                    # Let the event loop send these now: the broker works while we prepare the rest.
                    await asyncio.sleep(0)
            # Awaiting one by one is cheap: requests are shared, so most futures are done by then.
            for future in sending:
                try:
                    sent.append(await future)
                except EscrowError as error:
                    errors.append(error)
        except BaseException:
            for future in sending:
                future.cancel()
            raise
        if errors:
            for topic in routes:
                # The topics may have changed since the routes were read.
                self.network.forget(topic)
            raise errors[0]
        return sent

    async def _begin(
        self, message: Message, routes: dict[str, Route], until: float
    ) -> asyncio.Future[Sent]:
        """Give a message to its broker without waiting for the result."""
        route = routes.get(message.topic)
        if route is None:
            route = routes[message.topic] = await self._route(message.topic, until)
        outgoing = self._ordinary(message, route)
        broker = await self._broker(outgoing.place.address, until)
        return asyncio.ensure_future(broker.send(outgoing, until))

    # Transactions.

    async def hold(
        self,
        transaction_id: str,
        messages: Sequence[Message],
        *,
        ledger: str = "",
        number: int = 0,
        address: str = "",
    ) -> HeldTransaction:
        """Hold half messages of a transaction; they are durable when this returns.

        The first request has number 0. Later requests must go to the address of the same broker.
        """
        if not messages:
            raise RequestRefused("no_messages", "a transaction holds at least one message")
        for message in messages:
            message.transaction_id = transaction_id
        until = self._until()
        wires = [message.wire(self._codec) for message in messages]
        keyed = [(one.topic, wire.key) for one, wire in zip(messages, wires, strict=True)]
        places = await self._places(keyed, until, address)
        allowed_ms = int(self.config.max_duration_s * 1_000)
        marks = {LEDGER: ledger, ALLOWED_MS: str(allowed_ms)} if ledger else None
        holding = Holding(
            transaction_id=transaction_id,
            group=self.group,
            messages=tuple(
                self._outgoing(message, wire, place, marks)
                for message, wire, place in zip(messages, wires, places, strict=True)
            ),
            ledger=ledger,
            allowed_ms=allowed_ms,
            check_after_ms=self._check_after_ms,
            number=number,
        )
        broker = await self._broker(places[0].address, until)
        return await broker.hold(holding, until)

    async def decide(self, held: HeldTransaction, resolution: Resolution) -> FinalDecision:
        """Commit or roll back; the first decision stands, whatever its source.

        The request continues if the caller is cancelled: the local transaction has already ended.
        """
        return await asyncio.shield(self._decide_soon(held, resolution))

    async def roll_back_soon(self, held: HeldTransaction) -> None:
        """Send a rollback without waiting for it; if it is lost, a back-check finds out."""

        def note(deciding: asyncio.Future[FinalDecision]) -> None:
            error = None if deciding.cancelled() else deciding.exception()
            if error is not None:
                facts = {"transaction_id": held.transaction_id, "why": str(error)}
                log.warning("rollback_untold", extra=facts)

        self._decide_soon(held, Resolution.ROLLBACK).add_done_callback(note)

    async def tell_failure(self, held: HeldTransaction, failure: Exception) -> None:
        """Send UNKNOWN with the error of a local transaction, without waiting; it decides nothing.

        The broker logs the error's text, as RocketMQ's brokers do.
        """
        kept(self._telling, self._tell_failure(held, failure))

    async def _tell_failure(self, held: HeldTransaction, failure: Exception) -> None:
        from escrowmq.client.producer.apache_broker import end_header
        from escrowmq.client.producer.check_answers import remark_of

        header = end_header(held, Resolution.UNKNOWN)
        try:
            connection = await self.network.connection(held.address)
            connection.tell(RequestCode.END_TRANSACTION, header, remark=remark_of(failure))
        except EscrowError as error:
            facts = {"transaction_id": held.transaction_id, "why": str(error)}
            log.info("failure_untold", extra=facts)

    def _decide_soon(
        self, held: HeldTransaction, resolution: Resolution
    ) -> asyncio.Task[FinalDecision]:
        return kept(self._deciding, self._decide(held, resolution))

    async def _decide(self, held: HeldTransaction, resolution: Resolution) -> FinalDecision:
        until = self._until()
        broker = await self._broker(held.address, until)
        return await broker.decide(held, resolution, until)

    @property
    def _check_after_ms(self) -> int | None:
        after_s = self.config.check_after_s
        return None if after_s is None else int(after_s * 1_000)

    # Routing.

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self.config.timeout_s

    async def _route(self, topic: str, until: float) -> Route:
        route = await until_done(lambda: self.network.route(topic), until, is_repeatable=True)
        if not route.writable:
            raise RequestRefused(
                "topic_not_writable", "the topic's permissions forbid writing", topic=topic
            )
        return route

    async def _places(
        self, keyed: Sequence[tuple[str, str]], until: float, address: str = ""
    ) -> list[QueueAddress]:
        """Return a queue for each (topic, key), all on one broker; on ``address`` if given."""
        routes = {topic: await self._route(topic, until) for topic in {one for one, _ in keyed}}
        if address:
            routes = {topic: _at(route, address) for topic, route in routes.items()}
        names = [{place.broker_name for place in route.writable} for route in routes.values()]
        shared = sorted(set.intersection(*names))
        if not shared:
            raise RequestRefused(
                "topics_on_two_brokers",
                "the topics of a transaction must be on one broker",
                topics=sorted(routes),
            )
        topic, key = keyed[0]
        there = [one for one in routes[topic].writable if one.broker_name in shared]
        first = self._place(there, key)
        places = [first]
        for topic, key in keyed[1:]:
            there = [one for one in routes[topic].writable if one.broker_name == first.broker_name]
            places.append(self._place(there, key))
        return places

    def _place(self, places: Sequence[QueueAddress], key: str) -> QueueAddress:
        # A key that cannot be UTF-8 is refused later, when the properties are encoded.
        turn = crc32(key.encode(errors="surrogatepass")) if key else next(self._turn)
        return places[turn % len(places)]

    def _ordinary(self, message: Message, route: Route) -> Outgoing:
        if message.check_after_s is not None:
            raise check_after_illegal(message.check_after_s, "only transactions are checked")
        wire = message.wire(self._codec)
        return self._outgoing(message, wire, self._place(route.writable, wire.key))

    def _outgoing(
        self,
        message: Message,
        wire: WireForm,
        place: QueueAddress,
        marks: Mapping[str, str] | None = None,
    ) -> Outgoing:
        return Outgoing(
            place=place,
            body=wire.body,
            properties=message.property_bytes(marks, wire),
            message_id=message.message_id,
            born_at_ms=int(time.time() * 1_000),
            is_keyed=bool(wire.key),
            is_delayed=bool(message.delay_ms or message.deliver_at_ms),
        )

    async def _broker(self, address: str, until: float) -> SendingBroker:
        known = self._brokers.get(address)
        if known is not None:
            return known
        return await until_done(lambda: self.broker(address), until, is_repeatable=True)

    async def broker(self, address: str) -> SendingBroker:
        """Return the broker at an address; ask it once whether it is ours or Apache's."""
        known = self._brokers.get(address)
        return known if known is not None else await joined(self._asking, address, self._ask_which)

    async def _ask_which(self, address: str) -> SendingBroker:
        # Imported here, because a program that imports the SDK may never connect.
        from escrowmq.client.producer.apache_broker import ApacheBroker
        from escrowmq.client.producer.native_broker import NativeBroker
        from escrowmq.protocol.native.requests import NativeCode

        answer = await self.network.ask(address, NativeCode.STATUS)
        broker: SendingBroker
        if answer.code == ResponseCode.SUCCESS:
            broker = NativeBroker(self.network, address)
        elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            broker = ApacheBroker(self.network, address)
        else:
            raise Unavailable("broker_busy", answer.remark, address=address)
        self._brokers[address] = broker
        return broker


def _at(route: Route, address: str) -> Route:
    return replace(
        route, writable=tuple(place for place in route.writable if place.address == address)
    )
