"""Our gRPC messages, field by field against those of the official Python client."""

from __future__ import annotations

import base64
import subprocess
from functools import cache
from typing import Any

import pytest
from google.protobuf import descriptor_pool, duration_pb2, message_factory, timestamp_pb2

from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.building import PACKAGE, build
from escrowmq.protocol.grpc.enums import ENUMS
from tests.interop import building

#: Prints the official client's two files of definitions, a line each.
PROGRAM = """
import base64
from rocketmq.grpc_protocol import definition_pb2, service_pb2
for file in (definition_pb2, service_pb2):
    print(base64.b64encode(file.DESCRIPTOR.serialized_pb).decode())
"""
#: The official files import these.
IMPORTED = (duration_pb2, timestamp_pb2)
#: Requests for lite topics, which the broker refuses unread.
LEFT_OUT = {"OffsetOption", "SyncLiteSubscriptionRequest"}


@cache
def official() -> Any:  # noqa: ANN401 - has no types
    """Load the official definitions into the default pool, where the official client has them."""
    python = building.python5_peer() / "bin" / "python"
    done = subprocess.run([python, "-c", PROGRAM], check=True, capture_output=True, text=True)
    pool = descriptor_pool.Default()
    for line in done.stdout.splitlines():
        pool.AddSerializedFile(base64.b64decode(line))
    return pool


def theirs(name: str) -> Any:  # noqa: ANN401 - has no types
    return official().FindMessageTypeByName(f"{PACKAGE}.{name}")


def facts(descriptor: Any) -> dict[str, tuple[object, ...]]:  # noqa: ANN401 - has no types
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated,
            field.has_presence,
            field.containing_oneof.name if field.containing_oneof else None,
            field.message_type.full_name if field.message_type else None,
            field.enum_type.full_name if field.enum_type else None,
        )
        for field in descriptor.fields
    }


def test_every_message_of_the_official_client_is_known() -> None:
    files = [theirs(name).file for name in ("SendMessageRequest", "Message")]
    messages = {name for file in files for name in file.message_types_by_name}
    assert messages - LEFT_OUT == build().keys() - {"Duration", "Timestamp"}


@pytest.mark.parametrize("name", sorted(build().keys() - {"Duration", "Timestamp"}))
def test_the_fields_are_those_of_the_official_client(name: str) -> None:
    assert facts(getattr(grpc, name).DESCRIPTOR) == facts(theirs(name))


@pytest.mark.parametrize("name", ENUMS)
def test_the_enums_are_those_of_the_official_client(name: str) -> None:
    enum = official().FindEnumTypeByName(f"{PACKAGE}.{name}")
    assert {one.name: one.number for one in enum.values} == {
        one.name: one.value for one in ENUMS[name]
    }


def test_both_sets_of_classes_live_in_one_process() -> None:
    sent = message_factory.GetMessageClass(theirs("SendMessageRequest"))()
    sent.messages.add(body=b"x")
    read = grpc.SendMessageRequest.FromString(sent.SerializeToString())
    assert read.messages[0].body == b"x"
