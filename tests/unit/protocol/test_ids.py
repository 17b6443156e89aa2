"""Hosts and offset message ids."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.ids import offset_message_id, pack_host, parse_offset_message_id

HOSTS = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))


@pytest.mark.parametrize(
    ("address", "port", "packed"),
    [
        ("127.0.0.1", 10_911, "7f000001 00002a9f"),
        ("255.255.255.255", 65_535, "ffffffff 0000ffff"),
        ("10.0.0.0", 0, "0a000000 00000000"),
        ("::1", 8_081, "00000000000000000000000000000001 00001f91"),
        ("2001:db8::42", 443, "20010db8000000000000000000000042 000001bb"),
    ],
)
def test_a_host_is_its_address_and_port(address: str, port: int, packed: str) -> None:
    assert pack_host(address, port) == bytes.fromhex(packed)


def test_an_ipv4_peer_of_a_dual_stack_socket_is_packed_as_ipv4() -> None:
    assert pack_host("::ffff:10.1.2.3", 9) == pack_host("10.1.2.3", 9)


def test_the_zone_of_a_link_local_address_is_left_out() -> None:
    assert pack_host("fe80::1%eth0", 9) == pack_host("fe80::1", 9)


@pytest.mark.parametrize("address", ["", "localhost", "1.2.3", "1.2.3.256", "::g", "127.0.0.1:80"])
def test_a_malformed_host_is_refused(address: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        pack_host(address, 1)
    assert refused.value.code == "host_illegal"
    assert refused.value.fields == {"address": address}


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_malformed_port_is_refused(port: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        pack_host("127.0.0.1", port)
    assert refused.value.code == "host_illegal"
    assert refused.value.fields == {"port": port, "port_max": 65_535}


def test_a_message_id_is_host_and_offset_in_upper_case_hexadecimal() -> None:
    ipv4 = offset_message_id(pack_host("127.0.0.1", 10_911), 0xABC)
    assert ipv4 == "7F00000100002A9F0000000000000ABC"
    ipv6 = offset_message_id(pack_host("fd00::beef", 10_911), 2**63 - 1)
    assert ipv6 == "FD00000000000000000000000000BEEF00002A9F7FFFFFFFFFFFFFFF"


@given(HOSTS, st.integers(0, 2**63 - 1))
def test_a_message_id_is_read_back(host: bytes, log_offset: int) -> None:
    message_id = offset_message_id(host, log_offset)
    assert len(message_id) in (32, 56)
    assert parse_offset_message_id(message_id) == (host, log_offset)
    assert parse_offset_message_id(message_id.lower()) == (host, log_offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100002A9F0000000000000AB",  # One digit too few.
        "7F00000100002A9F0000000000000AB00",  # One digit too many.
        "7F00000100002A9F0000000000000A",
        "7F00000100002A9F0000000000000ABG",
        "7F000001 00002A9F 0000000000000ABC",  # bytes.fromhex would accept these three.
        " 7F00000100002A9F0000000000000ABC",
        "7F00000100002A9F 00000000000ABC",
        "7F00000100002A9F8000000000000000",  # A negative offset.
        "01A3F9D17B2C0004E1D2C3B400000001FF",  # A 5.x client's id is not an offset message id.
        "7F00000100002A9F0000000000000AB\u0661",
        "F" * 100_000,
    ],
)
def test_a_malformed_message_id_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_offset_message_id(text)
    assert refused.value.code == "message_id_illegal"
    assert len(str(refused.value)) < 200


@given(st.text(max_size=60))
def test_any_text_is_a_message_id_or_refused(text: str) -> None:
    try:
        host, log_offset = parse_offset_message_id(text)
    except RequestRefused:
        return
    assert offset_message_id(host, log_offset) == text.upper()
