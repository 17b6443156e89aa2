"""A lookup in many messages at once finds the same properties as parsing each message."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escrowmq.protocol.message.properties import parse_properties
from escrowmq.protocol.message.property_columns import PropertyColumns

NAMES = ("KEYS", "UNIQ_KEY", "K", "A_NAME_OF_MORE_THAN_EIGHT", "\u00fc")
PARTS = st.sampled_from([*NAMES, "\x01", "\x02", "value", " ", "XKEYS", ""])
STRINGS = st.lists(PARTS, max_size=9).map("".join)


@settings(max_examples=300)
@given(st.lists(STRINGS, max_size=6), st.text(max_size=3))
def test_the_column_search_finds_the_same_as_parsing(texts: list[str], before: str) -> None:
    strings = [text.encode() for text in texts]
    data = before.encode() + b"".join(strings) + b"KEYS\x01after\x02"
    offsets = np.cumsum([len(before.encode()), *map(len, strings)])
    found = PropertyColumns(data, offsets)
    for name in NAMES:
        rows, starts, ends = found.find(name)
        values = {
            row: data[start:end].decode()
            for row, start, end in zip(rows.tolist(), starts.tolist(), ends.tolist(), strict=True)
        }
        expected = [parse_properties(one).get(name) for one in strings]
        assert values == {row: value for row, value in enumerate(expected) if value is not None}
