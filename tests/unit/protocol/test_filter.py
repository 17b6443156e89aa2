"""Tag filters of subscriptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.filter import TAGS_MAX, parse_filter
from escrowmq.protocol.message.properties import tags_code

A, B = tags_code("TagA"), tags_code("TagB")


@pytest.mark.parametrize("expression", [None, "", "*"])
def test_everything_is_wanted_with_a_tag_or_without(expression: str | None) -> None:
    assert parse_filter(expression) is None


@pytest.mark.parametrize(
    ("expression", "codes"),
    [
        ("TagA", {A}),
        ("TagA||TagB", {A, B}),
        (" TagA || TagB ", {A, B}),
        ("TagA || || TagB ||", {A, B}),
        ("TagA || TagA", {A}),
        ("* || TagA", {tags_code("*"), A}),  # A star means all only if it is alone.
        ("a|b", {tags_code("a|b")}),
    ],
)
def test_the_tags_of_an_expression_are_wanted(expression: str, codes: set[int]) -> None:
    assert parse_filter(expression) == frozenset(codes)


@pytest.mark.parametrize("expression", ["||", " || ", "   ", "||||"])
def test_an_expression_without_a_tag_is_refused(expression: str) -> None:
    with pytest.raises(ProtocolViolation, match="filter_malformed"):
        parse_filter(expression)


def test_tags_are_limited() -> None:
    tags = [f"t{number}" for number in range(TAGS_MAX)]
    assert len(parse_filter("||".join(tags)) or ()) == TAGS_MAX
    with pytest.raises(ProtocolViolation, match="too many tags"):
        parse_filter("||".join([*tags, "more"]))
    with pytest.raises(ProtocolViolation, match="too many tags"):
        parse_filter("t||" * TAGS_MAX + "more")


@given(st.lists(st.text("aB|* é😀", min_size=1), min_size=1, max_size=5))
def test_a_message_with_one_of_the_tags_is_never_missed(tags: list[str]) -> None:
    clean = [tag.strip() for tag in tags if "|" not in tag and tag.strip() not in {"", "*"}]
    if clean:
        assert parse_filter(" || ".join(clean)) == frozenset(map(tags_code, clean))
