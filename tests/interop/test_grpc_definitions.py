"""Our gRPC messages, field by field against those of the official Python client."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.building import PACKAGE, build
from escrowmq.protocol.grpc.enums import ENUMS

official = import_module("rocketmq.grpc_protocol.service_pb2")
shared = import_module("rocketmq.grpc_protocol.definition_pb2")

#: Requests for lite topics, which the broker refuses unread.
LEFT_OUT = {"OffsetOption", "SyncLiteSubscriptionRequest"}


def theirs() -> dict[str, Any]:
    return {
        **shared.DESCRIPTOR.message_types_by_name,
        **official.DESCRIPTOR.message_types_by_name,
    }


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
    assert theirs().keys() - LEFT_OUT == build().keys() - {"Duration", "Timestamp"}


@pytest.mark.parametrize("name", sorted(build().keys() - {"Duration", "Timestamp"}))
def test_the_fields_are_those_of_the_official_client(name: str) -> None:
    assert facts(getattr(grpc, name).DESCRIPTOR) == facts(theirs()[name])


@pytest.mark.parametrize("name", ENUMS)
def test_the_enums_are_those_of_the_official_client(name: str) -> None:
    enum = shared.DESCRIPTOR.enum_types_by_name[name]
    assert {one.name: one.number for one in enum.values} == {
        one.name: one.value for one in ENUMS[name]
    }
    assert enum.full_name == f"{PACKAGE}.{name}"


def test_both_sets_of_classes_live_in_one_process() -> None:
    sent = official.SendMessageRequest(messages=[shared.Message(body=b"x")])
    read = grpc.SendMessageRequest.FromString(sent.SerializeToString())
    assert read.messages[0].body == b"x"
