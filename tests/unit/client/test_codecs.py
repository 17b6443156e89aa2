"""Objects survive a round trip as JSON; a refusal names the path of a value it cannot encode."""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from types import MappingProxyType
from typing import Annotated, Any, Protocol
from uuid import UUID

import msgspec
import pydantic
import pytest

from escrowmq import JsonCodec
from escrowmq.client.messages.codecs import DECODERS_MAX, JSON, Codec, codec_for
from escrowmq.client.messages.messages import Message
from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.properties import parse_properties
from tests.unit.client.order_types import FIELDS, JSON_BODY, ORDERS, ModelOrder, StructOrder


class Line(msgspec.Struct):
    price: Any


class Cart(msgspec.Struct):
    lines: list[Line]


class Money:
    def __init__(self, cents: int) -> None:
        self.cents = cents


class Basket(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(arbitrary_types_allowed=True)
    order_id: int = pydantic.Field(alias="orderId")
    money: Any = None


class Measured(pydantic.BaseModel):
    value: float
    #: Excluded from the JSON.
    scratch: float = pydantic.Field(default=math.nan, exclude=True)
    note: str | None = None


class MeasuredAsText(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(ser_json_inf_nan="strings")
    value: float
    note: str | None = None


class Strict(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True)
    at: dt.datetime
    id: UUID


class Upper:
    """A user's own codec."""

    content_type = "text/upper"

    def encode(self, body: Any, /) -> bytes:  # noqa: ANN401
        return str(body["text"]).upper().encode()

    def decode(self, data: bytes, body_type: Any, /) -> Any:  # noqa: ANN401
        return body_type(text=data.decode().lower())


@pytest.mark.parametrize(("body", "body_type"), ORDERS, ids=lambda one: type(one).__name__)
def test_an_object_is_plain_json_and_comes_back(body: object, body_type: Any) -> None:  # noqa: ANN401
    data = JSON.encode(body)
    assert data == JSON_BODY
    assert JSON.decode(data, body_type) == body


def test_models_inside_other_objects_come_back() -> None:
    orders = [ModelOrder(**FIELDS), ModelOrder(**FIELDS)]
    data = JSON.encode({"orders": orders, "frozen": MappingProxyType({"a": 1})})
    assert data == b'{"orders":[%s,%s],"frozen":{"a":1}}' % (JSON_BODY, JSON_BODY)
    assert JSON.decode(b"[%s]" % JSON_BODY, list[ModelOrder]) == orders[:1]
    assert JSON.decode(b'{"price":%s}' % JSON_BODY, Line) == Line(FIELDS)


def test_a_strict_model_inside_another_object_comes_back() -> None:
    order = Strict(at=dt.datetime(2026, 11, 18, tzinfo=dt.UTC), id=UUID(int=7))
    for body, body_type in (
        (order, Strict),
        ([order], list[Strict]),
        ({"a": order}, dict[str, Strict]),
    ):
        assert JSON.decode(JSON.encode(body), body_type) == body


def test_a_model_says_itself_how_its_numbers_are_written() -> None:
    hidden = Measured(value=1.5)
    assert JSON.encode(hidden) == b'{"value":1.5,"note":null}'
    assert JSON.encode([hidden]) == b'[{"value":1.5,"note":null}]'
    text = MeasuredAsText(value=math.nan)
    assert JSON.encode(text) == b'{"value":"NaN","note":null}'
    assert JSON.encode([text]) == b'[{"value":"NaN","note":null}]'


def test_a_model_with_aliases_comes_back() -> None:
    data = JSON.encode(Basket(orderId=7))
    assert data == b'{"orderId":7,"money":null}'
    assert JSON.decode(data, Basket).order_id == 7
    assert JSON.encode([Basket(orderId=7)]) == b"[%s]" % data


def test_values_that_json_has_no_type_for_come_back_by_the_annotation() -> None:
    class Paid(msgspec.Struct):
        at: dt.datetime
        by: UUID
        amount: Decimal
        proof: bytes

    at = dt.datetime(2026, 11, 18, tzinfo=dt.UTC)
    paid = Paid(at, UUID(int=1), Decimal("9.90"), b"\xff\x00")
    assert JSON.decode(JSON.encode(paid), Paid) == paid


def test_hooks_make_other_types_travel() -> None:
    def read(kind: type, part: Any) -> Any:  # noqa: ANN401
        assert kind is Money
        return Money(part)

    codec = JsonCodec(enc_hook=lambda money: money.cents, dec_hook=read)
    assert codec.encode(Line(Money(5))) == b'{"price":5}'
    assert codec.decode(b"[5]", list[Money])[0].cents == 5
    codec.check_type(Money)


CYCLE: dict[str, Any] = {}
CYCLE["again"] = CYCLE


@pytest.mark.parametrize(
    ("body", "path", "why"),
    [
        (Money(5), "$", "Money"),
        (Cart([Line(1), Line(2), Line(Money(5))]), "$.lines[2].price", "Money"),
        ({"a b": {"c": (1, Money(5))}}, "$['a b'].c[1]", "Money"),
        ({"a": {(1, 2): 3}}, "$.a", "keys"),
        ({"a": [1.0, math.nan]}, "$.a[1]", "NaN"),
        (Cart([Line(math.inf)]), "$.lines[0].price", "infinity"),
        (Measured(value=math.nan), "$.value", "NaN"),
        ({"in": [Measured(value=math.inf)]}, "$.in[0].value", "infinity"),
        ({"a": "\ud800"}, "$.a", "surrogates"),
        (Basket(orderId=1, money=Money(5)), "$.money", "Money"),
        ({"in": [Basket(orderId=1, money=Money(5))]}, "$.in[0].money", "Money"),
        (CYCLE, "$.again.again", "recursion"),
    ],
    ids=lambda one: one if isinstance(one, str) else "",
)
def test_a_body_that_cannot_be_encoded_is_named_with_its_path(
    body: object, path: str, why: str
) -> None:
    with pytest.raises(RequestRefused, match=why) as refused:
        Message(topic="orders", body=body).seal()
    assert refused.value.code == "body_not_encodable"
    assert str(refused.value.fields["path"]).startswith(path)
    assert refused.value.fields["topic"] == "orders"
    assert refused.value.__cause__ is not None


def test_null_is_no_reason_to_refuse() -> None:
    assert JSON.encode({"a": None, "b": [1.5, "null"]}) == b'{"a":null,"b":[1.5,"null"]}'


@pytest.mark.parametrize("body", [None, 42, 1.5, True, StructOrder])
def test_a_probable_mistake_is_refused_as_a_body(body: object) -> None:
    with pytest.raises(RequestRefused, match="body_illegal"):
        Message(topic="orders", body=body).seal()


def test_a_function_that_returns_nothing_is_refused_when_it_is_called() -> None:
    message = Message(topic="orders", body=lambda: None)
    message.seal()
    with pytest.raises(RequestRefused, match="body_illegal"):
        message.wire()


def test_an_object_that_is_too_large_is_refused_at_once() -> None:
    with pytest.raises(RequestRefused, match="body_too_large"):
        Message(topic="orders", body=["x" * 5_000_000]).seal()


def test_a_codec_must_make_bytes() -> None:
    class Texts(Upper):
        def encode(self, _body: Any, /) -> bytes:  # noqa: ANN401
            return "text"  # type: ignore[return-value] # the case under test

    with pytest.raises(RequestRefused, match=r"must return bytes.*returned='str'"):
        Message(topic="orders", body={"text": "a"}).seal(Texts())


def test_an_object_is_sent_as_it_was_when_it_was_given() -> None:
    order = StructOrder(1)
    message = Message(topic="orders", body=order, key=lambda one: one.id)
    message.seal()
    order.id = 2
    assert message.wire()[:2] == (b'{"id":1,"items":[]}', "1")
    message.body = order
    message.seal()
    assert message.wire()[:2] == (b'{"id":2,"items":[]}', "2")
    message.body = StructOrder(3)
    assert message.wire()[:2] == (b'{"id":3,"items":[]}', "3")


@pytest.mark.parametrize(
    ("body", "key", "sent"),
    [
        (StructOrder(7), lambda order: order.id, "7"),
        (StructOrder(7), lambda: "late", "late"),
        (lambda: StructOrder(7), lambda order: UUID(int=order.id), str(UUID(int=7))),
        (b"raw", lambda body: body.decode(), "raw"),
        (b"raw", 7, "7"),
        (b"raw", UUID(int=1), str(UUID(int=1))),
        ({"id": 7}, dict.__len__, "1"),
    ],
)
def test_a_key_may_be_a_function(body: object, key: Any, sent: str) -> None:  # noqa: ANN401
    message = Message(topic="orders", body=body, key=key)
    message.seal()
    assert message.wire().key == sent
    assert parse_properties(message.property_bytes())["KEYS"] == sent


@pytest.mark.parametrize("key", [None, True, 1.5, b"1", lambda _body: None])
def test_an_illegal_key_is_refused(key: Any) -> None:  # noqa: ANN401
    with pytest.raises(RequestRefused, match="key_illegal"):
        Message(topic="orders", body=StructOrder(7), key=key).wire()


def test_functions_are_called_once_and_late() -> None:
    called: list[str] = []

    def body() -> Mapping[str, int]:
        called.append("body")
        return {"id": 7}

    def key() -> int:
        called.append("key")
        return 7

    message = Message(topic="orders", body=body, key=key)
    message.seal()
    assert called == []
    assert message.wire() == message.wire() == (b'{"id":7}', "7", "application/json")
    assert called == ["body", "key"]


def test_only_objects_have_a_content_type() -> None:
    def properties(body: object, **more: str) -> dict[str, str]:
        return parse_properties(Message(topic="t", body=body, properties=more).property_bytes())

    assert properties({"a": 1})["content-type"] == "application/json"
    assert "content-type" not in properties(b"{}")
    assert "content-type" not in properties("{}")
    exact = {"content-type": "application/vnd.shop+json"}
    assert properties({"a": 1}, **exact)["content-type"] == exact["content-type"]


@pytest.mark.parametrize(
    ("content_type", "found"),
    [
        ("", JSON),
        ("application/json", JSON),
        ("Application/JSON; charset=utf-8", JSON),
        ("application/vnd.shop+json", JSON),
        ("text/upper", Upper.content_type),
    ],
)
def test_a_codec_is_found_by_the_content_type(content_type: str, found: Codec | str) -> None:
    codec = codec_for(content_type, (JSON, Upper()))
    assert found in (codec, codec.content_type)


def test_a_content_type_without_a_codec_is_named() -> None:
    with pytest.raises(TypeError, match=r"avro/binary.*application/json"):
        codec_for("avro/binary", (JSON,))


class Readable(Protocol):
    id: int


@dataclass
class Priced:
    price: Money


@pytest.mark.parametrize(
    "body_type", [Money, Readable, list[Money], dict[str, tuple[int, Money]], Priced, list[Priced]]
)
def test_a_type_that_no_json_becomes_is_refused(body_type: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError, match="JSON is decoded into"):
        JSON.check_type(body_type)


@dataclass
class Tree:
    branches: list[Tree]
    #: The type of a field with a default need not be decodable from JSON.
    price: Money = field(default_factory=lambda: Money(0))


@pytest.mark.parametrize(
    "body_type",
    [Annotated[ModelOrder, "an order"], list[ModelOrder | None], Tree, Money | None],
)
def test_a_type_that_some_json_becomes_is_taken(body_type: Any) -> None:  # noqa: ANN401
    JSON.check_type(body_type)


def test_decoders_are_kept_up_to_a_limit() -> None:
    codec = JsonCodec()
    for number in range(2 * DECODERS_MAX):
        codec.decode(b"{}", msgspec.defstruct(f"Order{number}", []))
    assert len(codec._decoders) <= DECODERS_MAX
