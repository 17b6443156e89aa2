"""We understand the captured requests of stock clients to Apache's broker."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.remoting.bodies import JsonBody, LockRequest, read_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.frames import FrameSplitter
from escrowmq.protocol.remoting.headers import read_header
from tests.interop.remoting import Frame
from tests.unit.protocol.request_headers import REQUEST_HEADERS

CAPTURES = Path(__file__).parents[2] / "interop" / "captures"
BODIES: dict[int, type[JsonBody]] = {
    RequestCode.HEART_BEAT: Heartbeat,
    RequestCode.LOCK_BATCH_MQ: LockRequest,
    RequestCode.UNLOCK_BATCH_MQ: LockRequest,
}


def captured() -> list[Any]:
    return [
        pytest.param(exchange["request"], id=f"{path.stem}, {exchange['by']}")
        for path in sorted(CAPTURES.glob("*.json"))
        for exchange in json.loads(path.read_text(encoding="utf-8"))["exchanges"]
        if exchange["from"] == "client"
    ]


@pytest.mark.parametrize("request_", captured())
def test_a_stock_clients_request_is_understood(request_: dict[str, Any]) -> None:
    code, body = request_["code"], request_.get("body", "").encode()
    sent = Frame(code=code, fields=request_["fields"], body=body, language=request_["language"])
    (frame,) = FrameSplitter().feed(sent.encode())
    assert (frame.code, frame.language) == (code, request_["language"])
    if code in REQUEST_HEADERS:
        read_header(REQUEST_HEADERS[RequestCode(code)], frame.ext)
    if code in BODIES:
        read_body(BODIES[code], frame.body)


def heartbeat(**consumer: object) -> Heartbeat:
    said = {"clientID": "c", "consumerDataSet": [{"groupName": "g", **consumer}]}
    return read_body(Heartbeat, json.dumps(said).encode())


def test_the_place_of_a_constant_stands_for_its_name() -> None:
    (said,) = heartbeat(consumeType=1, messageModel=0, consumeFromWhere=4).consumers
    assert said.consume_type == "CONSUME_PASSIVELY"
    assert said.message_model == "BROADCASTING"
    assert said.consume_from == "CONSUME_FROM_FIRST_OFFSET"
    named = {"consumeType": "CONSUME_ACTIVELY", "messageModel": "CLUSTERING"}
    (said,) = heartbeat(**named, consumeFromWhere="CONSUME_FROM_TIMESTAMP").consumers
    assert (said.consume_type, said.message_model) == ("CONSUME_ACTIVELY", "CLUSTERING")
    assert said.consume_from == "CONSUME_FROM_TIMESTAMP"


@pytest.mark.parametrize("place", [-1, 2, 99])
def test_a_constant_that_is_not_there_is_a_violation(place: int) -> None:
    (said,) = heartbeat(messageModel=place).consumers
    with pytest.raises(ProtocolViolation):
        _ = said.message_model
