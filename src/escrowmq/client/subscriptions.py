"""What a consumer subscribes to, before and after it starts; shared by both kinds of consumer."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, overload

from escrowmq.client.body_reading import MessageHandler, codecs_of, handler_of
from escrowmq.client.config import ConsumerConfig, check_group, with_settings
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.limits import EXPRESSION_CHARS_MAX, check_name, too_long

if TYPE_CHECKING:
    from escrowmq.client.codecs import Codec
    from escrowmq.client.consume_transaction import (
        AsyncChainTransaction,
        ChainTransaction,
        ConsumeTransaction,
    )
    from escrowmq.client.consuming import Consuming
    from escrowmq.client.messages import Received
    from escrowmq.client.producer import AsyncProducer, Producer

DatabaseT = TypeVar("DatabaseT")
HandlerT = TypeVar("HandlerT", bound=Callable[..., object])

Wanted: TypeAlias = "tuple[str, str, MessageHandler]"
"""A topic, its tags, and what handles its messages."""


class Subscriptions(ABC):
    """What both kinds of consumer share: what is subscribed to before they start.

    ``codec`` decodes bodies into the types that handlers are annotated with; JSON unless given.  Of
    several codecs, the one that has a message's ``content-type`` is used, else the first.
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
        from escrowmq.client.network import name_servers

        check_group(group)
        self._servers = name_servers(servers)
        self._codecs = codecs_of(codec)
        self.group = group
        self.config = with_settings(ConsumerConfig, config, settings, "consumer")
        self._wanted: list[Wanted] = []

    def subscribe(self, topic: str, tag: str = "*") -> Callable[[HandlerT], HandlerT]:
        """Have a function called with each message; ``tag`` may be several with ``||`` between.

        The annotation of its first parameter says what it is called with: ``Received`` or none, the
        message; ``Received[Order]``, the message with ``value`` as an Order; ``Order``, the body as
        an Order.  A consumer that has been started reads the topic at once.
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
            # First, so that a start on another thread finds it, or is found by the next line.
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
        """Have a consumer that has been started read this, too."""

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

        ``db`` is a session or connection; the block commits it, unless a block of the caller's
        does.  Inside a handler the message is known; elsewhere, give it.  With a producer whose
        ledger is in the same database, the block also sends: its messages go out if, and only if,
        the database commits.
        """
        from escrowmq.client import consume_transaction as blocks

        if producer is None:
            return blocks.ConsumeTransaction(self.group, db, message)
        return blocks.chain_on(producer, self.group, db, message)

    async def _start(self) -> Consuming:
        from escrowmq.client.consuming import Consuming

        core = Consuming(self._servers, self.group, self.config)
        wanted = list(self._wanted)
        for one in wanted:
            core.add(*one)
        try:
            await core.start()
            # What was subscribed to meanwhile.
            while len(wanted) < len(self._wanted):
                wanted.append(self._wanted[len(wanted)])
                await core.subscribe(*wanted[-1])
        except BaseException:
            await core.stop()
            raise
        return core


def warn_of_stop(consumer: str) -> None:
    """Tell the caller of ``stop`` that its name is ``close``, as a producer's is."""
    # The caller is two frames above this one.
    message = f"{consumer}.stop is called close now, as a producer's is"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
