"""Subscriptions of a consumer, before and after it starts; shared by both kinds of consumer."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from escrowmq.client.config import ConsumerConfig, check_group, with_settings
from escrowmq.client.messages.body_reading import MessageHandler, codecs_of, handler_of
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.limits import EXPRESSION_CHARS_MAX, check_name, too_long

if TYPE_CHECKING:
    from escrowmq.client.consumer.consume_transaction import (
        AsyncChainTransaction,
        ChainTransaction,
        ConsumeTransaction,
    )
    from escrowmq.client.consumer.consuming import GroupMember
    from escrowmq.client.messages.codecs import Codec
    from escrowmq.client.messages.messages import Received
    from escrowmq.client.producer.producer import AsyncProducer, Producer

DatabaseT = TypeVar("DatabaseT")
HandlerT = TypeVar("HandlerT", bound=Callable[..., object])

Wanted: TypeAlias = "tuple[str, str, MessageHandler]"
"""A topic, its tags, and the handler of its messages."""


class Subscriptions(ABC):
    """Shared part of both consumers: the subscriptions made before they start.

    ``codec`` decodes bodies into the types in handlers' annotations; the default is JSON. With
    several codecs, the one with the message's ``content-type`` is used; the first one decodes
    messages that have none.
    """

    def __init__(
        self,
        servers: str | Sequence[str],
        group: str,
        config: ConsumerConfig | None = None,
        *,
        codec: Codec | Sequence[Codec] | None = None,
        **settings: Any,  # noqa: ANN401 - fields of ConsumerConfig, which checks them
    ) -> None:
        from escrowmq.client.network.routing import name_servers

        check_group(group)
        self._servers = name_servers(servers)
        self._codecs = codecs_of(codec)
        self.group = group
        self.config = with_settings(ConsumerConfig, config, settings, "consumer")
        self._wanted: list[Wanted] = []

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[HandlerT], HandlerT]:
        """Call a function with each message; ``tag`` may be several tags separated by ``||``.

        The annotation of its first parameter selects its argument. ``Received`` or no annotation:
        the message. ``Received[Order]``: the message with ``value`` as an Order. ``Order``: the
        body as an Order. A started consumer reads the topic at once.
        """
        if not isinstance(topic, str):
            raise RequestRefused(
                "topic_illegal", 'a topic is text: @consumer.subscribe("orders")',
                type=type(topic).__name__,
            )  # fmt: skip
        if not isinstance(tag, str):
            raise RequestRefused(
                "tag_illegal", "tags are one text, with || between", type=type(tag).__name__
            )
        check_name("topic", topic)
        if len(tag) > EXPRESSION_CHARS_MAX:
            raise too_long("tag", tag, EXPRESSION_CHARS_MAX)

        def register(handler: HandlerT) -> HandlerT:
            wanted = (topic, tag, handler_of(handler, self._codecs))
            # Append first: a start on another thread then sees it, or the next line sees the start.
            self._wanted.append(wanted)
            try:
                self._subscribe_late(wanted)
            except BaseException:
                self._wanted.remove(wanted)
                raise
            return handler

        return register

    @abstractmethod
    def _subscribe_late(self, wanted: Wanted) -> None:
        """Add a subscription to a consumer that has started; do nothing before its start."""

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None
    ) -> ConsumeTransaction[DatabaseT]: ...

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None, *, producer: Producer
    ) -> ChainTransaction[DatabaseT]: ...

    @overload
    def transaction(
        self, db: DatabaseT, message: Received | None = None, *, producer: AsyncProducer
    ) -> AsyncChainTransaction[DatabaseT]: ...

    def transaction(
        self,
        db: DatabaseT,
        message: Received | None = None,
        *,
        producer: Producer | AsyncProducer | None = None,
    ) -> (
        ConsumeTransaction[DatabaseT]
        | ChainTransaction[DatabaseT]
        | AsyncChainTransaction[DatabaseT]
    ):
        """Do a handler's work and record its message in one database transaction.

        ``db`` is a session or connection. The block commits it, unless a block of the caller's
        does. Outside a handler, pass the message. With a producer whose ledger is in the same
        database, the block also sends: its messages go out if, and only if, the database commits.
        """
        from escrowmq.client.consumer import consume_transaction as blocks

        if producer is None:
            return blocks.ConsumeTransaction(self.group, db, message)
        return blocks.chain_on(producer, self.group, db, message)

    async def _start(self) -> GroupMember:
        from escrowmq.client.consumer.consuming import GroupMember

        core = GroupMember(self._servers, self.group, self.config)
        wanted = list(self._wanted)
        for one in wanted:
            core.add(*one)
        try:
            await core.start()
            # Add the subscriptions that were made meanwhile.
            while len(wanted) < len(self._wanted):
                wanted.append(self._wanted[len(wanted)])
                await core.subscribe(*wanted[-1])
        except BaseException:
            await core.stop()
            raise
        return core


def warn_of_stop(consumer: str) -> None:
    """Warn the caller of ``stop`` that it is now called ``close``, as in producers."""
    # Warn at the call of ``stop``, which is two frames above this one.
    message = f"{consumer}.stop is now called close, as for a producer"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
