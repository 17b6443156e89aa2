"""The annotation of a handler determines its argument."""

from __future__ import annotations

import copy
import functools
import pickle
from collections.abc import AsyncIterator, Callable, Iterator
from types import FunctionType
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq import Consumer, JsonCodec, Message, Producer, Received
from escrowmq.client.messages.body_reading import handler_of
from escrowmq.client.messages.codecs import JSON
from escrowmq.model.errors import RequestRefused
from tests.unit.client.order_types import (
    FIELDS,
    JSON_BODY,
    DictOrder,
    ModelOrder,
    StructOrder,
)
from tests.unit.client.test_codecs import Money

if TYPE_CHECKING:
    from tests.unit.client.order_types import DataclassOrder


def plain(message) -> None:  # type: ignore[no-untyped-def]  # noqa: ANN001
    seen.append(message)


def whole(message: Received) -> None:
    seen.append(message)


def anything(message: Any) -> None:  # noqa: ANN401
    seen.append(message)


def model(order: ModelOrder) -> None:
    seen.append(order)


def typed_dict(order: DictOrder) -> None:
    seen.append(order)


def raw(body: bytes) -> None:
    seen.append(body)


def text(body: str) -> None:
    seen.append(body)


def either(body: StructOrder | None) -> None:
    seen.append(body)


def with_value(message: Received[StructOrder]) -> None:
    seen.append((message.value, message.message_id))


async def awaited(order: StructOrder) -> None:
    seen.append(order)


class Shop:
    def method(self, order: StructOrder) -> None:
        seen.append(order)

    async def __call__(self, order: StructOrder) -> None:
        seen.append(order)


seen: list[Any] = []


def received(body: bytes = JSON_BODY, **properties: str) -> Received:
    return Received(
        topic="orders",
        body=body,
        key="",
        keys=(),
        tag="",
        properties=properties,
        message_id="id-1",
        transaction_id="",
        broker_name="b",
        queue_id=0,
        queue_offset=0,
        retries=0,
        born_at_ms=0,
        visible_at_ms=0,
        log_offset=0,
        queue_topic="orders",
    )


def checked(annotation: str) -> Callable[[Received], None]:
    """Return a handler from a module that imports its annotation only for the type checker."""
    made = FunctionType(whole.__code__, {"seen": seen})
    made.__annotations__ = {"message": annotation}
    return made


@pytest.mark.parametrize(
    ("handler", "got"),
    [
        (plain, received()),
        (whole, received()),
        (anything, received()),
        (checked("Received"), received()),
        (checked("mq.Received"), received()),
        (checked("Received[dict]"), received()),
        (lambda message: seen.append(message), received()),  # noqa: PLW0108 - a lambda is tested
        (model, ModelOrder(**FIELDS)),
        (typed_dict, FIELDS),
        (raw, JSON_BODY),
        (text, JSON_BODY.decode()),
        (either, StructOrder(**FIELDS)),
        (with_value, (StructOrder(**FIELDS), "id-1")),
        (Shop().method, StructOrder(**FIELDS)),
        (Shop(), StructOrder(**FIELDS)),
        (awaited, StructOrder(**FIELDS)),
        (functools.partial(model), ModelOrder(**FIELDS)),
        (functools.wraps(model)(lambda order: model(order)), ModelOrder(**FIELDS)),  # noqa: PLW0108
        (seen.append, received()),
    ],
    ids=lambda one: getattr(one, "__name__", "") or type(one).__name__,
)
async def test_an_annotation_says_what_a_handler_is_called_with(
    handler: Callable[..., object], got: object
) -> None:
    seen.clear()
    made = handler_of(handler, (JSON,))
    answer = made(received())
    if made.is_async:
        await answer
    assert seen == [got]


def not_imported(order: DataclassOrder) -> None:
    """Its annotation is imported only for the type checker."""


def no_json(order: Money) -> None:
    """JSON cannot be decoded into `Money`."""


def for_sending(order: Message) -> None:
    """`Message` is the class of messages to send, not of received ones."""


def perhaps(message: Received | None) -> None:
    """A handler always gets a message, never None."""


def nested(messages: list[Received[StructOrder]]) -> None:
    """A handler gets one message per call."""


@pytest.mark.parametrize("handler", [not_imported, no_json, for_sending, perhaps, nested])
def test_an_annotation_that_cannot_work_is_refused_by_subscribe(
    handler: Callable[..., object],
) -> None:
    consumer = Consumer("127.0.0.1:1", group="ship")
    with pytest.raises(RequestRefused, match="handler_annotation_illegal"):
        consumer.subscribe("orders")(handler)


class Warehouse:
    def ship(self, message: Received) -> None:
        """A method, which needs an instance."""


def yields(message: Received) -> Iterator[None]:
    seen.append(message)
    yield


async def yields_later(message: Received) -> AsyncIterator[None]:
    seen.append(message)
    yield


@pytest.mark.parametrize(
    ("handler", "why"),
    [
        (yields, "yields"),
        (yields_later, "yields"),
        (Warehouse.ship, "missing a required argument: 'message'"),
        (lambda: None, "too many positional arguments"),
        (lambda *, message: message, "too many positional arguments"),
        (None, "a handler is a function"),
    ],
)
def test_a_handler_that_never_handles_is_refused_by_subscribe(handler: Any, why: str) -> None:  # noqa: ANN401
    consumer = Consumer("127.0.0.1:1", group="ship")
    with pytest.raises(RequestRefused, match=f"handler_illegal: .*{why}"):
        consumer.subscribe("orders")(handler)


def test_an_undecoded_message_has_no_value() -> None:
    for message in (received(), copy.deepcopy(received()), pickle.loads(pickle.dumps(received()))):
        with pytest.raises(RequestRefused, match="body_not_decoded"):
            _ = message.value


@pytest.mark.parametrize("codec", [(), "json", JsonCodec, (JSON, JsonCodec), object()])
def test_a_consumer_needs_a_codec(codec: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestRefused, match=r"bad_config.*consumer\.codec"):
        Consumer("127.0.0.1:1", group="ship", codec=codec)


@pytest.mark.parametrize("codec", ["json", JsonCodec, (JSON,), object()])
def test_a_producer_needs_one_codec(codec: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestRefused, match=r"bad_config.*producer\.codec"):
        Producer("127.0.0.1:1", group="ship", codec=codec)
