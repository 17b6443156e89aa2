"""Incoming frames: in pieces of any size, valid or malformed."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.remoting.frames import (
    FRAME_BYTES_MAX,
    FrameSplitter,
    RemotingFrame,
    decode_frame,
    frame_size,
)
from escrowmq.protocol.remoting.headers import read_fields
from tests.unit.protocol.frames import (
    FIELDS,
    binary_frame,
    binary_header,
    frame_of,
    json_frame,
    json_header,
    pair,
)

THREE = (
    json_frame(b"first"),
    binary_frame(b"", opaque=-8, remark="why ë".encode(), flag=2),
    json_frame(b"\x00" * 50, opaque=9, remark="because", extFields=...),
)
STREAM = b"".join(THREE)


def comparable(frame: RemotingFrame) -> dict[str, Any]:
    return msgspec.structs.asdict(frame) | {"ext": read_fields(frame.ext)}


def split(chunks: Iterable[bytes]) -> list[dict[str, Any]]:
    splitter = FrameSplitter()
    return [comparable(frame) for chunk in chunks for frame in splitter.feed(chunk)]


WHOLE = split([STREAM])


def only(data: bytes) -> RemotingFrame:
    (frame,) = FrameSplitter().feed(data)
    return frame


def violation(data: bytes, **settings: int) -> ProtocolViolation:
    splitter = FrameSplitter(**settings)
    with pytest.raises(ProtocolViolation) as raised:
        list(splitter.feed(data))
    return raised.value


def test_all_that_a_frame_says_is_read() -> None:
    assert WHOLE == [
        {
            "code": 310,
            "opaque": 7,
            "flag": 0,
            "language": "JAVA",
            "version": 479,
            "remark": "",
            "ext": FIELDS,
            "body": b"first",
            "is_binary": False,
        },
        {
            "code": 310,
            "opaque": -8,
            "flag": 2,
            "language": "JAVA",
            "version": 479,
            "remark": "why ë",
            "ext": FIELDS,
            "body": b"",
            "is_binary": True,
        },
        {
            "code": 310,
            "opaque": 9,
            "flag": 0,
            "language": "JAVA",
            "version": 479,
            "remark": "because",
            "ext": {},
            "body": b"\x00" * 50,
            "is_binary": False,
        },
    ]


def test_frames_come_byte_by_byte() -> None:
    assert split(STREAM[at : at + 1] for at in range(len(STREAM))) == WHOLE


def test_frames_come_in_two_pieces() -> None:
    for at in range(len(STREAM) + 1):
        assert split([STREAM[:at], STREAM[at:]]) == WHOLE


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_frames_come_in_any_pieces(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert split(STREAM[start:end] for start, end in pairwise(places)) == WHOLE


def test_a_frame_comes_out_as_soon_as_it_is_whole() -> None:
    splitter = FrameSplitter()
    first = THREE[0]
    assert list(splitter.feed(first[:-1])) == []
    assert splitter.buffered_bytes == len(first) - 1
    assert len(list(splitter.feed(first[-1:] + THREE[1][:2]))) == 1
    assert splitter.buffered_bytes == 2


def test_a_frame_without_its_size_is_read_alone() -> None:
    assert comparable(decode_frame(THREE[0][4:])) == WHOLE[0]
    with pytest.raises(ProtocolViolation, match="truncated"):
        decode_frame(b"\x00\x00\x00")
    with pytest.raises(ProtocolViolation, match="header passes"):
        decode_frame(b"\x00\x00\x00\x09{}")


def test_the_first_bytes_of_a_frame_say_how_many_follow() -> None:
    assert frame_size(THREE[0][:4]) == len(THREE[0]) - 4
    for illegal in (-1, 3, FRAME_BYTES_MAX + 1):
        with pytest.raises(ProtocolViolation):
            frame_size(illegal.to_bytes(4, "big", signed=True))


def test_less_than_a_frame_is_kept_however_it_comes() -> None:
    frame = frame_of(json_header(), b"x" * 5_000)
    splitter = FrameSplitter(frame_bytes_max=len(frame) - 4)
    stream = frame * 20
    got = 0
    for at in range(0, len(stream), 777):
        got += len(list(splitter.feed(stream[at : at + 777])))
        assert splitter.buffered_bytes < len(frame)
    assert got == 20


@pytest.mark.parametrize(
    ("size", "code"),
    [
        (FRAME_BYTES_MAX + 1, "frame_too_large"),
        (2**31 - 1, "frame_too_large"),
        (int.from_bytes(b"GET "), "frame_too_large"),
        (3, "frame_malformed"),
        (0, "frame_malformed"),
        (2**31, "frame_malformed"),  # Negative as a signed number.
        (2**32 - 1, "frame_malformed"),
    ],
)
def test_an_illegal_size_is_a_violation_before_more_is_kept(size: int, code: str) -> None:
    assert violation(size.to_bytes(4)).code == code


def test_a_frame_may_be_as_large_as_the_limit() -> None:
    frame = json_frame(b"x")
    assert only(frame).body == b"x"
    assert len(list(FrameSplitter(frame_bytes_max=len(frame) - 4).feed(frame))) == 1
    refused = violation(frame, frame_bytes_max=len(frame) - 5)
    assert refused.code == "frame_too_large"
    assert refused.fields == {"bytes": len(frame) - 4, "bytes_max": len(frame) - 5}


@pytest.mark.parametrize(
    "data",
    [
        frame_of(json_header(), header_type=2),
        frame_of(json_header(), header_type=255),
        b"\x00\x00\x00\x08\x00\x00\x00\x05{}  ",  # A header longer than the frame.
        frame_of(b""),
        frame_of(b"{}"),
        frame_of(b"null"),
        frame_of(b"[]"),
        frame_of(b'{"code":1,"opaque":2'),
        frame_of(b'{"code":1,"opaque":2}}'),
        frame_of(b'{"code":1,"opaque":2,"remark":"\xff"}'),
        frame_of(b'{"code":1,"opaque":2,"x":' + b"[" * 100_000),
        frame_of(b'{"code":1,"opaque":2,"extFields":' + b'{"a":' * 100_000),
        json_frame(code=...),
        json_frame(opaque=...),
        json_frame(code="ten"),
        json_frame(opaque=2**31),
        json_frame(opaque=-(2**31) - 1),
        json_frame(flag=10**30),
        json_frame(remark=5),
        frame_of(b"", header_type=1),
        frame_of(binary_header()[:-1], header_type=1),
        frame_of(binary_header()[:17], header_type=1),
        frame_of(binary_header()[:13] + b"\xff\xff\xff\xff" + b"\x00" * 8, header_type=1),
        frame_of(binary_header()[:13] + b"\x7f\xff\xff\xff" + b"\x00" * 8, header_type=1),
        frame_of(binary_header()[:17] + b"\xff\xff\xff\xff", header_type=1),
        frame_of(binary_header()[:17] + b"\x00\x00\x00\x01", header_type=1),
        binary_frame(remark=b"\xff"),
        binary_frame(fields=b"\x00"),
        binary_frame(fields=b"\x00\x01a"),
        binary_frame(fields=pair(b"a", b"1")[:-1]),
        binary_frame(fields=pair(b"a", b"1") + b"\x00\x01"),
        binary_frame(fields=b"\xff\xffa" + pair(b"", b"1")[2:]),
        binary_frame(fields=b"\x00\x01a\xff\xff\xff\xff1"),
        binary_frame(fields=pair(b"\xff", b"1")),
        binary_frame(fields=pair(b"a", b"\xff")),
    ],
)
def test_a_frame_that_cannot_be_read_is_a_violation(data: bytes) -> None:
    assert violation(data).code == "frame_malformed"


def test_frames_before_a_violation_come_out_and_none_after_it() -> None:
    splitter = FrameSplitter()
    got: list[RemotingFrame] = []
    with pytest.raises(ProtocolViolation) as first:
        got.extend(splitter.feed(THREE[0] + frame_of(b"{}") + THREE[1]))
    assert [frame.body for frame in got] == [b"first"]
    with pytest.raises(ProtocolViolation) as again:
        list(splitter.feed(THREE[1]))
    assert str(again.value) == str(first.value)


@pytest.mark.parametrize(
    ("said", "language"),
    [
        ("GO", "GO"),
        ("KLINGON", "KLINGON"),
        (9, "GO"),
        (99, "OTHER"),
        (None, "OTHER"),
        (..., "OTHER"),
    ],
)
def test_a_language_we_do_not_know_is_no_harm(said: object, language: str) -> None:
    assert only(json_frame(language=said)).language == language


@pytest.mark.parametrize(("number", "language"), [(9, "GO"), (14, "OTHER"), (-1, "OTHER")])
def test_a_binary_language_we_do_not_know_is_no_harm(number: int, language: str) -> None:
    assert only(binary_frame(language=number)).language == language


@pytest.mark.parametrize(
    "changes",
    [
        {"extFields": None},
        {"extFields": ...},
        {"extFields": {}},
        {"remark": None},
        {"remark": ""},
        {"serializeTypeCurrentRPC": ...},
        {"version": ..., "flag": ...},
        {"somethingNew": {"deep": [1, 2, {}]}},
        {"code": "310", "opaque": "7"},  # Numbers as text.
    ],
)
def test_missing_and_unknown_header_fields_do_no_harm(changes: dict[str, Any]) -> None:
    frame = only(json_frame(b"body", **changes))
    assert (frame.code, frame.opaque, frame.remark, frame.body) == (310, 7, "", b"body")
    assert read_fields(frame.ext) in ({}, FIELDS)


def test_empty_names_and_values_of_a_binary_header_do_not_count() -> None:
    fields = pair(b"", b"1") + pair(b"a", b"") + pair(b"b", b"2")
    assert only(binary_frame(fields=fields)).ext == {"b": "2"}


def test_bytes_after_the_fields_of_a_binary_header_are_passed_over() -> None:
    assert only(frame_of(binary_header() + b"more", b"body", header_type=1)).ext == FIELDS


@pytest.mark.parametrize(
    ("flag", "is_response", "is_one_way"),
    [(0, False, False), (1, True, False), (2, False, True), (3, True, True), (4, False, False)],
)
def test_flags(flag: int, is_response: bool, is_one_way: bool) -> None:  # noqa: FBT001
    frame = only(json_frame(flag=flag))
    assert (frame.is_response, frame.is_one_way) == (is_response, is_one_way)


@given(st.binary(max_size=200))
def test_any_bytes_are_frames_or_a_violation(data: bytes) -> None:
    splitter = FrameSplitter(frame_bytes_max=100)
    with suppress(ProtocolViolation):
        list(splitter.feed(data))
    assert splitter.buffered_bytes < 104


@given(st.binary(max_size=100), st.integers(0, 2))
def test_any_header_is_one_or_a_violation(header: bytes, header_type: int) -> None:
    with suppress(ProtocolViolation):
        only(frame_of(header, header_type=header_type))


@given(st.sampled_from(THREE), st.integers(0, 10_000), st.integers(0, 255))
def test_a_frame_with_one_byte_changed_is_one_or_a_violation(
    frame: bytes, place: int, value: int
) -> None:
    data = bytearray(frame)
    data[4 + place % (len(data) - 4)] = value
    with suppress(ProtocolViolation):
        read_fields(only(bytes(data)).ext)
