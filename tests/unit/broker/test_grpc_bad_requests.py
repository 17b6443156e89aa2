"""Requests of consumers that no client should send, each with RocketMQ's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from escrowmq.broker.grpc.names import duration
from escrowmq.broker.server import Server
from escrowmq.protocol.grpc import messages as grpc
from tests.unit.broker.grpc_consuming import NOT_FOUND, OK, ORDERS, READERS, receipt, receive, sent
from tests.unit.broker.wire import serving

BAD, TOPIC, GROUP, FILTER, OFFSET, RECEIPT = 40_000, 40_002, 40_003, 40_010, 40_019, 40_013
QUEUE = grpc.MessageQueue(topic=ORDERS, id=1)

#: A correct request of each method; each row below changes one field.
CORRECT: dict[str, dict[str, Any]] = {
    "QueryRoute": {"topic": ORDERS},
    "QueryAssignment": {"topic": ORDERS, "group": READERS},
    "ReceiveMessage": {
        "group": READERS,
        "message_queue": QUEUE,
        "batch_size": 1,
        "invisible_duration": duration(30_000),
        "long_polling_timeout": duration(0),
    },
    "AckMessage": {"topic": ORDERS, "group": READERS},
    "ChangeInvisibleDuration": {
        "topic": ORDERS,
        "group": READERS,
        "invisible_duration": duration(30_000),
    },
    "ForwardMessageToDeadLetterQueue": {"topic": ORDERS, "group": READERS},
    "PullMessage": {"group": READERS, "message_queue": QUEUE},
    "UpdateOffset": {"group": READERS, "message_queue": QUEUE},
    "GetOffset": {"group": READERS, "message_queue": QUEUE},
    "QueryOffset": {"message_queue": QUEUE},
}
OF_TOPIC = [name for name, fields in CORRECT.items() if "topic" in fields]
OF_QUEUE = [name for name, fields in CORRECT.items() if "message_queue" in fields]
OF_GROUP = [name for name, fields in CORRECT.items() if "group" in fields]
OF_RECEIPT = ["ChangeInvisibleDuration", "ForwardMessageToDeadLetterQueue"]
ILLEGAL = ["", "a b", "x" * 300]


def named(name: str) -> grpc.Resource:
    return grpc.Resource(name=name)


def filtered(kind: int, expression: str) -> grpc.FilterExpression:
    return grpc.FilterExpression(type=kind, expression=expression)


REFUSED: list[tuple[str, dict[str, Any], int]] = [
    *[(method, {"topic": named(name)}, TOPIC) for method in OF_TOPIC for name in ILLEGAL],
    *[
        (method, {"message_queue": grpc.MessageQueue(topic=named(name))}, TOPIC)
        for method in OF_QUEUE
        for name in ILLEGAL
    ],
    *[(method, {"group": named(name)}, GROUP) for method in OF_GROUP for name in ILLEGAL],
    *[
        (method, {"filter_expression": wanted}, FILTER)
        for method in ("ReceiveMessage", "PullMessage")
        for wanted in (
            filtered(2, "a > 1"),
            filtered(9, "a"),
            filtered(1, "||"),
            filtered(1, "x" * 8_193),
        )
    ],
    *[(method, {"receipt_handle": "x"}, RECEIPT) for method in OF_RECEIPT],
    ("AckMessage", {"entries": []}, BAD),
    ("PullMessage", {"offset": -1}, OFFSET),
    ("UpdateOffset", {"offset": -1}, OFFSET),
    ("QueryOffset", {"query_offset_policy": 9}, BAD),
]


async def ask(server: Server, method: str, **changed: Any) -> int:  # noqa: ANN401 - by field
    """Return the code of the answer to a correct request with these changes."""
    peer = await sent(server)
    (told,) = await receive(peer)
    fields = {**CORRECT[method]}
    if method in OF_RECEIPT:
        fields["receipt_handle"] = receipt(told)
    if method == "AckMessage":
        fields["entries"] = [grpc.AckMessageEntry(receipt_handle=receipt(told))]
    request = getattr(grpc, f"{method}Request")(**{**fields, **changed})
    return int((await peer.ask(method, request)).status.code)


@pytest.mark.parametrize("method", CORRECT)
async def test_the_request_that_a_row_changes_is_correct(tmp_path: Path, method: str) -> None:
    async with serving(tmp_path) as server:
        assert await ask(server, method) in (OK, NOT_FOUND)


@pytest.mark.parametrize(("method", "fields", "code"), REFUSED)
async def test_a_bad_request_has_rocketmqs_code(
    tmp_path: Path, method: str, fields: dict[str, Any], code: int
) -> None:
    async with serving(tmp_path) as server:
        assert await ask(server, method, **fields) == code
