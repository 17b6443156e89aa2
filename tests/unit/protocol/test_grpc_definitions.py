"""The classes of the gRPC messages, built from the table, with the official clients' bytes."""

from __future__ import annotations

from google.protobuf import descriptor_pool

from escrowmq.protocol.grpc import messages as grpc
from escrowmq.protocol.grpc.building import PACKAGE, build, read_table
from escrowmq.protocol.grpc.definitions import path_of
from escrowmq.protocol.grpc.enums import ENUMS, GrpcCode, GrpcMessageType
from tests.unit.protocol.grpc_stubs import FILE, stubs

# Encoded by the official Python client 5.1.2.
SENT = bytes.fromhex(
    "0a300a0812066f726465727312060a01611201621a180a017812016b1a016930043a040805100668039a010208"
    "0922026869"
)
SETTINGS = bytes.fromhex(
    "122508011a110803120d0a021001120208011d000000402a0e0a0812066f726465727310091801"
)


def test_a_message_of_an_official_client_is_read() -> None:
    (message,) = grpc.SendMessageRequest.FromString(SENT).messages
    system = message.system_properties
    assert (message.topic.name, dict(message.user_properties), message.body) == (
        "orders",
        {"a": "b"},
        b"hi",
    )
    assert (system.tag, list(system.keys), system.message_id) == ("x", ["k"], "i")
    assert system.message_type == GrpcMessageType.TRANSACTION
    assert (system.born_timestamp.seconds, system.born_timestamp.nanos) == (5, 6)
    assert system.orphaned_transaction_recovery_duration.seconds == 9
    assert not system.HasField("message_group")
    assert grpc.SendMessageRequest.FromString(SENT).SerializeToString() == SENT


def test_settings_of_an_official_client_are_read() -> None:
    command = grpc.TelemetryCommand.FromString(SETTINGS)
    assert command.WhichOneof("command") == "settings"
    assert command.settings.WhichOneof("pub_sub") == "publishing"
    policy = command.settings.backoff_policy
    assert policy.WhichOneof("strategy") == "exponential_backoff"
    assert (policy.max_attempts, policy.exponential_backoff.multiplier) == (3, 2.0)


def test_unknown_fields_of_newer_clients_do_no_harm() -> None:
    """Field 99 with the text "new"."""
    newer = SENT + b"\x9a\x06\x03new"
    assert len(grpc.SendMessageRequest.FromString(newer).messages) == 1


def test_the_classes_stay_out_of_the_default_pool() -> None:
    """The official Python client registers the same names there."""
    default = descriptor_pool.Default()
    for name in build():
        try:
            default.FindMessageTypeByName(f"{PACKAGE}.{name}")
        except KeyError:
            continue
        raise AssertionError(name)


def test_the_stub_file_is_made_from_the_table() -> None:
    assert FILE.read_text(encoding="utf-8") == stubs(), (
        "run python -m tests.unit.protocol.grpc_stubs"
    )


def test_each_name_and_number_is_used_once() -> None:
    for name, rows in read_table():
        assert len({row.name for row in rows}) == len(rows), name
        assert len({row.number for row in rows}) == len(rows), name
    for members in ENUMS.values():
        assert len({member.value for member in members}) == len(members)


def test_a_method_has_its_path() -> None:
    assert path_of("SendMessage") == b"/apache.rocketmq.v2.MessagingService/SendMessage"
    assert int(GrpcCode.INVALID_TRANSACTION_ID) == 40_008
