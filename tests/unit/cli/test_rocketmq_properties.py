"""The reader of a RocketMQ broker's file reads what ``java.util.Properties`` reads."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.cli.rocketmq.properties import (
    FILE_BYTES_MAX,
    KEYS_MAX,
    parse_properties,
    read_properties,
)
from escrowmq.model.errors import RequestRefused


def pairs(text: str) -> list[tuple[str, str]]:
    return [(one.key, one.value) for one in parse_properties(text, "broker.conf")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Each way to separate a key from its value.
        ("k=v", [("k", "v")]),
        ("k = v", [("k", "v")]),
        ("k:v", [("k", "v")]),
        ("k v", [("k", "v")]),
        ("k\t=\fv", [("k", "v")]),
        ("  k=v", [("k", "v")]),
        # Only the first separator counts, and blanks after the value belong to it.
        ("k=a=b:c", [("k", "a=b:c")]),
        ("k = = v", [("k", "= v")]),
        ("k=v ", [("k", "v ")]),
        # Without a value, and without a key.
        ("k", [("k", "")]),
        ("k=", [("k", "")]),
        ("=v", [("", "v")]),
        # Comments and empty lines.
        ("# a=1\n! b=2\n  # c=3\n\n \t\f\nk=v", [("k", "v")]),
        ("k=v # not a comment", [("k", "v # not a comment")]),
        # A comment does not continue.
        ("# a\\\nk=v", [("k", "v")]),
        # Line ends of all systems.
        ("a=1\nb=2\r\nc=3\rd=4", [("a", "1"), ("b", "2"), ("c", "3"), ("d", "4")]),
        # Other characters that Python takes for line ends do not end a line.
        ("a=1\u0085\u2028\x0b2", [("a", "1\u0085\u2028\x0b2")]),
        # Continuation lines lose their leading blanks, and may look like comments.
        ("k=a\\\n   b", [("k", "ab")]),
        ("k=a\\\r\n\tb", [("k", "ab")]),
        ("k=a \\\n # b", [("k", "a # b")]),
        ("k\\\n=v", [("k", "v")]),
        ("k=a\\\n\nb=c", [("k", "a"), ("b", "c")]),
        ("\\\n# k=v", []),
        ("\\\n\nk=v", [("k", "v")]),
        # Two backslashes are an escape, not a continuation.
        ("k=a\\\\\nb=c", [("k", "a\\"), ("b", "c")]),
        ("k=a\\\\\\\nb", [("k", "a\\b")]),
        # The file ends with a backslash.
        ("k=a\\", [("k", "a")]),
        ("k=a\\\n", [("k", "a")]),
        ("\\", []),
        # Escapes.
        ("k=\\t\\n\\r\\f\\\\\\=\\:\\q", [("k", "\t\n\r\f\\=:q")]),
        ("a\\ b\\=c\\:d=v", [("a b=c:d", "v")]),
        ("k=\\u0041\\u00e9", [("k", "Aé")]),
        ("\\u006b=v", [("k", "v")]),
        ("k=\\ud83d\\ude00", [("k", "\U0001f600")]),
        ("k=\\\\u0041", [("k", "\\u0041")]),
    ],
)
def test_a_text_is_read_as_java_reads_it(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_many_empty_continuation_lines_take_no_time() -> None:
    assert pairs("\\\n" * 200_000 + "k=v") == [("k", "v")]


def test_each_key_has_the_number_of_its_first_line() -> None:
    found = parse_properties("# one\n\na=1\\\n2\nb=3", "broker.conf")
    assert [(one.key, one.line) for one in found] == [("a", 3), ("b", 5)]


@pytest.mark.parametrize(
    "text", ["k=\\u12", "k=\\u12G4", "\\uk=v", "k=\\ud83d", "k=\\ude00\\ud83d"]
)
def test_a_broken_escape_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_properties(f"a=b\n{text}", "broker.conf")
    assert refused.value.code == "unreadable_config"
    assert refused.value.fields == {"path": "broker.conf", "line": 2}


def test_a_key_that_occurs_twice_is_refused() -> None:
    with pytest.raises(RequestRefused) as refused:
        parse_properties("a=secret\nb=2\n\\u0061=3", "broker.conf")
    assert refused.value.code == "bad_config"
    assert (refused.value.fields["key"], refused.value.fields["lines"]) == ("a", "1 and 3")
    assert "secret" not in str(refused.value)


def test_a_file_with_too_many_keys_is_refused() -> None:
    text = "".join(f"k{number}=1\n" for number in range(KEYS_MAX))
    assert len(parse_properties(text, "broker.conf")) == KEYS_MAX
    with pytest.raises(RequestRefused, match=f"has more than {KEYS_MAX} keys"):
        parse_properties(text + "one=more", "broker.conf")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("k=é".encode(), "é"),
        ("k=é".encode("latin-1"), "é"),
        (b"\xef\xbb\xbfk=v", "v"),
        (b"k=v\r\n", "v"),
        (b"", None),
    ],
)
def test_a_file_is_utf_8_or_latin_1(tmp_path: Path, content: bytes, expected: str | None) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(content)
    found = {one.key: one.value for one in read_properties(file)}
    assert found.get("k") == expected


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    for content in (b"k=v\0", "k=v".encode("utf-16"), bytes(range(256))):
        file.write_bytes(content)
        with pytest.raises(RequestRefused, match="unreadable_config: holds zero bytes"):
            read_properties(file)


def test_a_file_that_is_too_large_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_bytes(b"#" * FILE_BYTES_MAX)
    assert read_properties(file) == ()
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(RequestRefused, match="must have at most 1048576 bytes"):
        read_properties(file)
    # The size that the system reports for a device is 0.
    with pytest.raises(RequestRefused, match="must be a regular file"):
        read_properties(Path("/dev/zero"))


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path, why in (
        (tmp_path / "missing", "No such file or directory"),
        (tmp_path, "must be a regular file|Is a directory"),
        # Nothing writes to the pipe, so a reader that opened it would wait for ever.
        (tmp_path / "pipe", "must be a regular file"),
        (Path("a\0b"), "unreadable_config"),
    ):
        with pytest.raises(RequestRefused, match=why) as refused:
            read_properties(path)
        assert refused.value.code == "unreadable_config"


@given(st.text(alphabet="ab\\=: \t\f\r\n#!u01", max_size=40))
def test_no_text_breaks_the_reader(text: str) -> None:
    with suppress(RequestRefused):
        found = parse_properties(text, "broker.conf")
        assert len({one.key for one in found}) == len(found)
