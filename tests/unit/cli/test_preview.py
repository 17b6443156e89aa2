"""A body is shown on one line of limited width, without terminal control characters."""

from __future__ import annotations

import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.cli.preview import _columns, preview

WIDTH = 20


def shown(body: bytes, total_bytes: int | None = None, sys_flag: int = 0) -> str:
    total = len(body) if total_bytes is None else total_bytes
    return preview(body, total, sys_flag=sys_flag, width=WIDTH)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (b'{"order": 42}', '{"order": 42}'),
        (b"one\ntwo\tthree", "one\\ntwo\\tthree"),
        (b"\x1b[31mred", "\\x1b[31mred"),
        ("\u202eevil".encode(), "\\u202eevil"),
        ("Grüße".encode(), "Grüße"),
        (b"\xff\x00\x01", "hex ff0001"),
        (b"x" * WIDTH, "x" * WIDTH),
        (b"x" * (WIDTH + 1), "x" * (WIDTH - 1) + "…"),
        ("漢".encode() * 11, "漢" * 9 + "…"),
        (b"\xff" * 30, "hex " + "f" * 15 + "…"),
    ],
)
def test_a_body_is_shown_on_one_line(body: bytes, text: str) -> None:
    assert shown(body) == text


def test_a_part_of_a_body_ends_with_an_ellipsis() -> None:
    assert shown(b"one", 1_000) == "one…"


def test_a_character_cut_in_the_middle_is_no_broken_text() -> None:
    assert shown("aé".encode()[:2], 1_000) == "a…"
    # At the end of a complete body, half a character is not valid text.
    assert shown("aé".encode()[:2]) == "hex 61c3"


def test_a_compressed_body_is_read_also_where_it_was_cut() -> None:
    text = json.dumps({"order": 42, "lines": list(range(2_000))}).encode()
    packed = zlib.compress(text)
    assert shown(packed[:256], len(packed), sys_flag=1) == '{"order": 42, "line…'
    assert shown(zlib.compress(b"small"), sys_flag=1) == "small"
    assert shown(b"not compressed", sys_flag=1) == "not compressed"


def test_a_small_body_that_inflates_to_gigabytes_is_not_inflated() -> None:
    assert shown(zlib.compress(b"0" * 10_000_000), sys_flag=1) == "0" * (WIDTH - 1) + "…"


@given(st.one_of(st.binary(max_size=400), st.text(max_size=200).map(str.encode)), st.booleans())
def test_no_body_leaves_its_line_or_its_width(body: bytes, is_whole: bool) -> None:  # noqa: FBT001
    text = shown(body, len(body) if is_whole else len(body) + 1)
    assert text.isprintable()
    assert _columns(text) <= WIDTH
    assert len(text) <= 4 * WIDTH * 10
