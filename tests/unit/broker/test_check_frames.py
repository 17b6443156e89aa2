"""Our back-checks compared with those that Apache's broker sent to stock clients."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.stored_message import StoredMessage, decode
from tests.unit.broker.asking import ASK, obey, producer
from tests.unit.broker.wire import SEND, facts, sending, serving
from tests.unit.repository import ROOT

CAPTURE = ROOT / "tests/interop/captures/check_transaction_state.json"
EXCHANGES = [one["request"] for one in json.loads(CAPTURE.read_text())["exchanges"]]
#: Properties that a broker adds to a half message.
ADDED = {
    "CLUSTER",
    "MSG_REGION",
    "REAL_QID",
    "REAL_TOPIC",
    "TRACE_ON",
    "TRANSACTION_CHECK_TIMES",
    "__transactionId__",
}


def shape(fields: dict[str, str], message: StoredMessage) -> dict[str, Any]:
    """Return everything that does not depend on where and when a message was stored."""
    host, log_offset = fields["offsetMsgId"][:16], int(fields["offsetMsgId"][16:], 16)
    properties = parse_properties(message.properties)
    return {
        "fields": sorted(fields),
        "topic": fields["topic"],
        "bname": fields["bname"],
        "msgId": fields["msgId"],
        "transactionId": fields["transactionId"],
        "offsetMsgId names the broker": host == message.store_host.hex().upper(),
        "offsetMsgId names the half": log_offset == int(fields["commitLogOffset"]),
        "the body has the offsets of the header": (message.queue_offset, message.log_offset)
        == (int(fields["tranStateTableOffset"]), int(fields["commitLogOffset"])),
        "magic": message.magic,
        "body": message.body,
        "body_crc": message.body_crc,
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "queue_id": message.queue_id,
        "born_at_ms": message.born_at_ms,
        "reconsume_times": message.reconsume_times,
        "prepared_offset": message.prepared_offset,
        "real topic": message.topic,
        "properties": properties,
    }


@pytest.mark.parametrize("theirs", EXCHANGES)
async def test_our_check_is_apaches_field_by_field(tmp_path: Path, theirs: dict[str, Any]) -> None:
    wanted = decode(base64.b64decode(theirs["body_base64"]))
    properties = parse_properties(wanted.properties)
    group = properties["PGROUP"]
    async with serving(tmp_path) as server:
        peer = await producer(server, "c", group=group)
        header = sending(
            wanted.topic,
            {name: value for name, value in properties.items() if name not in ADDED},
            producer_group=group,
            queue_id=wanted.queue_id,
            sys_flag=4,
            flag=wanted.flag,
            born_at_ms=wanted.born_at_ms,
        )
        await peer.ask(SEND, header, wanted.body)
        assert await obey(server, ASK) == "asked"
        ours = await peer.until(lambda frame: frame.code == theirs["code"])
        assert (ours.flag, ours.version, ours.is_binary) == (2, theirs["version"], False)
        assert shape(facts(ours), decode(ours.body)) == shape(theirs["fields"], wanted)
