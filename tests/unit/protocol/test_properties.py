"""Property strings, and lookups in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation, RequestRefused
from escrowmq.protocol.message import properties as module
from escrowmq.protocol.message.properties import (
    CACHED_TAG_CHARS_MAX,
    CACHED_TAGS_MAX,
    KEYS,
    PROPERTIES_BYTES_MAX,
    TAGS,
    UNIQ_KEY,
    find_property,
    format_properties,
    half_properties,
    index_facts,
    parse_properties,
    tags_code,
)

#: Without surrogates, which UTF-8 cannot encode.
WORDS = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)
#: Mostly separators and parts of names, so that odd shapes occur.
ODD = st.lists(
    st.sampled_from(["\x01", "\x02", "TAGS", "KEYS", "UNIQ_KEY", "X", " ", "é", "😀"]), max_size=24
).map("".join)


def test_pairs_are_written_with_both_separators() -> None:
    assert format_properties({"KEYS": "a b", "TAGS": "é"}) == b"KEYS\x01a b\x02TAGS\x01\xc3\xa9\x02"
    assert format_properties({}) == b""


@given(st.dictionaries(WORDS, WORDS))
def test_written_values_are_read_back(properties: dict[str, str]) -> None:
    assert parse_properties(format_properties(properties)) == properties


@pytest.mark.parametrize(
    ("name", "value"),
    [("", "v"), ("n", ""), ("", ""), ("n\x01", "v"), ("n", "v\x02"), ("\x02n", "v"), ("n", "\x01")],
)
def test_a_pair_that_would_not_be_read_back_is_refused(name: str, value: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        format_properties({"good": "1", name: value, "also good": "2"})
    assert refused.value.code == "property_illegal"
    assert refused.value.fields == {"name": name, "value": value}


def test_an_empty_name_is_refused_in_the_first_place_too() -> None:
    with pytest.raises(RequestRefused, match="property_illegal"):
        format_properties({"": "v"})


def test_a_name_that_would_be_read_as_two_pairs_is_refused() -> None:
    with pytest.raises(RequestRefused, match="property_illegal"):
        format_properties({"a\x01b\x02c": "d"})


def test_a_half_messages_own_properties_are_written_as_any() -> None:
    pairs = {"__transactionId__": "é key", "REAL_TOPIC": "orders", "REAL_QID": "3"}
    assert half_properties("é key", "orders", 3) == format_properties(pairs)
    for key in ("", "a\x01b", "a\x02b"):
        with pytest.raises(RequestRefused, match="property_illegal"):
            half_properties(key, "orders", 3)


def test_half_a_surrogate_pair_is_refused() -> None:
    with pytest.raises(RequestRefused, match="property_illegal"):
        format_properties({"n": "\ud83d"})


def test_properties_up_to_the_limit_are_written_and_one_byte_more_is_refused() -> None:
    longest = "v" * (PROPERTIES_BYTES_MAX - 3)
    assert len(format_properties({"n": longest})) == PROPERTIES_BYTES_MAX
    with pytest.raises(RequestRefused) as refused:
        format_properties({"n": longest + "v"})
    assert refused.value.code == "properties_too_large"
    assert refused.value.fields == {"bytes": 32_768, "bytes_max": 32_767}


def test_the_limit_counts_bytes_and_not_characters() -> None:
    with pytest.raises(RequestRefused, match="properties_too_large"):
        format_properties({"n": "é" * 16_383})


@pytest.mark.parametrize("read", [parse_properties, index_facts])
def test_properties_that_are_not_utf8_are_a_violation(read: object) -> None:
    assert callable(read)
    with pytest.raises(ProtocolViolation) as violation:
        read(b"TAGS\x01\xff\x02")
    assert violation.value.code == "properties_malformed"
    assert violation.value.fields == {"at": 5}


@given(st.binary(max_size=64))
def test_any_bytes_are_properties_or_a_violation(data: bytes) -> None:
    try:
        parse_properties(data)
    except ProtocolViolation:
        with pytest.raises(ProtocolViolation):
            index_facts(data)
    else:
        index_facts(data)
    find_property(data, b"TAGS")


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"TAGS\x01t\x02", b"t"),  # First.
        (b"a\x01b\x02TAGS\x01t\x02", b"t"),  # Last.
        (b"a\x01b\x02TAGS\x01t", b"t"),  # Without the final separator.
        (b"XTAGS\x01x\x02TAGS\x01t\x02", b"t"),  # After a longer name with the same ending.
        (b"XTAGS\x01x\x02", None),
        (b"TAGSX\x01x\x02", None),
        (b"a\x01TAGS\x02", None),  # As a value.
        (b"a\x01TAGS\x01t\x02", None),  # In a value.
        (b"TAGS\x02", None),  # Without a value.
        (b"TAGS\x01\x02", None),  # With an empty value.
        (b"TAGS\x01", None),
        (b"TAGS\x01one\x02TAGS\x01two\x02", b"two"),  # The last of two wins.
        (b"TAGS\x01one\x02TAGS\x01\x02", b"one"),  # An empty value does not win.
        (b"", None),
    ],
)
def test_one_property_is_found_by_its_whole_name(data: bytes, value: bytes | None) -> None:
    assert find_property(data, b"TAGS") == value


@given(ODD)
def test_every_way_to_look_finds_the_same(text: str) -> None:
    data = text.encode()
    properties = parse_properties(data)
    for name in ("TAGS", "KEYS", "UNIQ_KEY", "X"):
        value = find_property(data, name.encode())
        assert (value.decode() if value else None) == properties.get(name)
    unique_key, keys, tags = index_facts(data)
    assert unique_key == properties.get(UNIQ_KEY, "")
    assert keys == tuple(key for key in properties.get(KEYS, "").split(" ") if key)
    assert tags == properties.get(TAGS, "")


def test_many_empty_pairs_are_passed_in_one_go() -> None:
    """The lookup neither recurses nor restarts its search at each empty pair."""
    assert find_property(b"TAGS\x01t\x02" + b"TAGS\x01\x02" * 5_000, b"TAGS") == b"t"


@pytest.mark.parametrize(
    ("value", "keys"),
    [
        ("one", ("one",)),
        ("one two", ("one", "two")),
        (" one  two ", ("one", "two")),
        ("one\ttwo", ("one\ttwo",)),
        (" ", ()),
    ],
)
def test_keys_are_split_at_spaces(value: str, keys: tuple[str, ...]) -> None:
    assert index_facts(format_properties({KEYS: value})) == ("", keys, "")


def test_a_message_without_properties_is_found_by_nothing() -> None:
    assert index_facts(b"") == ("", (), "")


@pytest.mark.parametrize(
    ("tags", "code"),
    [
        ("", 0),
        ("TagA", 2_598_919),
        ("polygenelubricants", -(2**31)),  # The lowest possible code.
        ("😀", 31 * 0xD83D + 0xDE00),  # Two UTF-16 units, as in Java.
        ("\ud83d", 0xD83D),
    ],
)
def test_a_tags_code_is_javas_hash_code(tags: str, code: int) -> None:
    assert tags_code(tags) == code
    assert tags_code(tags) == code  # From the cache.


def test_the_cache_of_tags_is_bounded() -> None:
    for number in range(CACHED_TAGS_MAX + 1):
        tags_code(f"tag-{number}")
    long_tag = "t" * (CACHED_TAG_CHARS_MAX + 1)
    assert tags_code(long_tag) == tags_code(long_tag)
    assert len(module._tags_codes) <= CACHED_TAGS_MAX
    assert max(map(len, module._tags_codes)) <= CACHED_TAG_CHARS_MAX
    assert tags_code("TagA") == 2_598_919
