"""A producer, on the event loop it belongs to: messages out, transactions held and decided.

Which broker and queue a message goes to is chosen here: by its key, so that messages with one key
stay in order, else in turns.  All messages of a transaction go to one broker.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TYPE_CHECKING
from zlib import crc32

from escrowmq.client.apache_broker import ApacheBroker
from escrowmq.client.check_answers import CheckAnswers, Checker
from escrowmq.client.member import Member
from escrowmq.client.messages import ALLOWED_MS, LEDGER, Message, Sent, new_message_id
from escrowmq.client.outgoing import Broker, Decided, Held, Holding, Outgoing, Resolution
from escrowmq.client.own_broker import OwnBroker
from escrowmq.client.trying import until_done
from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.codes import RequestCode, ResponseCode
from escrowmq.protocol.own import OwnCode

if TYPE_CHECKING:
    from escrowmq.client.network import Place, Route

log = logging.getLogger(__name__)

GROUP_CHARS_MAX = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerConfig:
    """How a producer works."""

    #: How long a send, a hold or a decision is tried.
    timeout_s: float = 10.0
    #: How long a transaction may take from its first half message to the database's COMMIT.
    max_duration_s: float = 60.0
    #: Age before the first back-check; None means the broker's policy.
    check_after_s: float | None = None
    #: How often a producer with a ledger deletes its old rows; 0 for never.
    clean_ledger_every_s: float = 600.0

    def __post_init__(self) -> None:
        for name, low, high in (
            ("timeout_s", 0.001, 3_600.0),
            ("max_duration_s", 0.001, 86_400.0),
            ("check_after_s", 0.0, 86_400.0),
            ("clean_ledger_every_s", 0.0, 86_400.0),
        ):
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise RequestRefused(
                    "bad_config", f"must be from {low} to {high}", key=f"producer.{name}"
                )


class Producing:
    """Belongs to one event loop."""

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        config: ProducerConfig,
        checker: Checker | None = None,
    ) -> None:
        check_group(group)
        self.group = group
        self.config = config
        self.member = Member(servers)
        self.network = self.member.network
        self._brokers: dict[str, Broker] = {}
        self._asking: dict[str, asyncio.Task[Broker]] = {}
        self._turn = count()
        self._deciding: set[asyncio.Future[Decided]] = set()
        self._answers: CheckAnswers | None = None
        if checker is not None:
            # Whoever cannot answer is no member: a broker would ask it in vain instead of others.
            self.member.producer_groups.add(group)
            self._answers = CheckAnswers(group, checker)
            self.member.handlers[RequestCode.CHECK_TRANSACTION_STATE] = self._answers.asked

    async def start(self) -> None:
        """Make yourself known; Unavailable if there is nobody."""
        await self.member.start()

    async def close(self) -> None:
        """Wait for what was given, and leave."""
        if self._deciding:
            await asyncio.wait(self._deciding)
        for broker in self._brokers.values():
            await broker.close()
        if self._answers is not None:
            await self._answers.close()
        await self.member.close()

    # Messages.

    async def send(self, message: Message) -> Sent:
        """Store an ordinary message."""
        until = self._until()
        route = await self._route(message.topic, until)
        outgoing = self._outgoing(message, self._place(route.writable, message.key))
        try:
            broker = await self._broker(outgoing.place.address, until)
            return await broker.send(outgoing, until)
        except RequestRefused:
            # The topic may have changed since the route was asked for.
            self.network.forget(message.topic)
            raise

    async def send_many(self, messages: Iterable[Message]) -> list[Sent]:
        """Store ordinary messages, in as few requests as possible; in order where keys are.

        Each is tried, and then the first error is raised: the others may have been stored.
        """
        ends = await asyncio.gather(*map(self.send, messages), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                raise end
        return ends  # type: ignore[return-value]  # no error is left in it

    # Transactions.

    async def hold(
        self,
        transaction_id: str,
        messages: Sequence[Message],
        *,
        ledger: str = "",
        number: int = 0,
        address: str = "",
    ) -> Held:
        """Hold half messages of a transaction; they are durable when this returns.

        The first request has number 0; further ones go to the same broker's address.
        """
        if not messages:
            raise RequestRefused("no_messages", "a transaction holds at least one message")
        until = self._until()
        places = await self._places(messages, until, address)
        allowed_ms = int(self.config.max_duration_s * 1_000)
        marks = {LEDGER: ledger, ALLOWED_MS: str(allowed_ms)} if ledger else None
        holding = Holding(
            transaction_id=transaction_id,
            group=self.group,
            messages=tuple(
                self._outgoing(message, place, marks)
                for message, place in zip(messages, places, strict=True)
            ),
            ledger=ledger,
            allowed_ms=allowed_ms,
            check_after_ms=self._check_after_ms,
            number=number,
        )
        broker = await self._broker(places[0].address, until)
        return await broker.hold(holding, until)

    async def decide(self, held: Held, resolution: Resolution) -> Decided:
        """Commit or roll back; the first decision stands, whoever made it.

        It goes on if whoever waits for it is cancelled: the local transaction has ended already.
        """
        return await asyncio.shield(self._decide_soon(held, resolution))

    def roll_back_soon(self, held: Held) -> None:
        """Tell the broker without waiting; if it does not hear that, a check finds out."""

        def note(deciding: asyncio.Future[Decided]) -> None:
            error = None if deciding.cancelled() else deciding.exception()
            if error is not None:
                facts = {"transaction_id": held.transaction_id, "why": str(error)}
                log.warning("rollback_untold", extra=facts)

        self._decide_soon(held, Resolution.ROLLBACK).add_done_callback(note)

    def _decide_soon(self, held: Held, resolution: Resolution) -> asyncio.Future[Decided]:
        deciding = asyncio.ensure_future(self._decide(held, resolution))
        self._deciding.add(deciding)
        deciding.add_done_callback(self._deciding.discard)
        return deciding

    async def _decide(self, held: Held, resolution: Resolution) -> Decided:
        until = self._until()
        broker = await self._broker(held.address, until)
        return await broker.decide(held, resolution, until)

    @property
    def _check_after_ms(self) -> int | None:
        after_s = self.config.check_after_s
        return None if after_s is None else int(after_s * 1_000)

    # Where to.

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self.config.timeout_s

    async def _route(self, topic: str, until: float) -> Route:
        route = await until_done(lambda: self.network.route(topic), until, is_repeatable=True)
        if not route.writable:
            raise RequestRefused("topic_not_writable", "its owner forbids it", topic=topic)
        return route

    async def _places(
        self, messages: Sequence[Message], until: float, address: str = ""
    ) -> list[Place]:
        """A queue for each message, all of one broker: that at the address, if there is one."""
        routes = {
            topic: await self._route(topic, until) for topic in {one.topic for one in messages}
        }
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
        first = self._place(
            [one for one in routes[messages[0].topic].writable if one.broker_name in shared],
            messages[0].key,
        )
        places = [first]
        for message in messages[1:]:
            there = [
                one
                for one in routes[message.topic].writable
                if one.broker_name == first.broker_name
            ]
            places.append(self._place(there, message.key))
        return places

    def _place(self, places: Sequence[Place], key: str) -> Place:
        turn = crc32(key.encode()) if key else next(self._turn)
        return places[turn % len(places)]

    def _outgoing(
        self, message: Message, place: Place, marks: Mapping[str, str] | None = None
    ) -> Outgoing:
        return Outgoing(
            place=place,
            body=message.payload(),
            properties=message.property_bytes(marks),
            message_id=message.message_id,
            born_at_ms=int(time.time() * 1_000),
            is_keyed=bool(message.key),
            is_delayed=bool(message.delay_ms or message.deliver_at_ms),
        )

    async def _broker(self, address: str, until: float) -> Broker:
        return await until_done(lambda: self.broker(address), until, is_repeatable=True)

    async def broker(self, address: str) -> Broker:
        """The broker at an address, ours or Apache's: it is asked once which."""
        known = self._brokers.get(address)
        if known is not None:
            return known
        asking = self._asking.get(address)
        if asking is None:
            asking = asyncio.ensure_future(self._ask_which(address))
            self._asking[address] = asking
            asking.add_done_callback(lambda _: self._asking.pop(address, None))
        # Many may wait for it; one that is cancelled must not take it from the others.
        return await asyncio.shield(asking)

    async def _ask_which(self, address: str) -> Broker:
        answer = await self.network.ask(address, OwnCode.STATUS)
        broker: Broker
        if answer.code == ResponseCode.SUCCESS:
            broker = OwnBroker(self.network, address)
        elif answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            broker = ApacheBroker(self.network, address)
        else:
            raise Unavailable("broker_busy", answer.remark, address=address)
        self._brokers[address] = broker
        return broker


def check_group(group: str) -> None:
    """Refuse a name that no broker takes."""
    if not 0 < len(group) <= GROUP_CHARS_MAX:
        raise RequestRefused(
            "group_illegal", f"1 to {GROUP_CHARS_MAX} characters", group=group[:256]
        )


def _at(route: Route, address: str) -> Route:
    return replace(
        route, writable=tuple(place for place in route.writable if place.address == address)
    )


def new_transaction_id() -> str:
    """One that nobody else uses."""
    return new_message_id()
