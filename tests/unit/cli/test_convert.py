"""Setting types that no section uses yet. test_config.py covers the others."""

from __future__ import annotations

from dataclasses import fields
from typing import Literal, get_origin, get_type_hints

import pytest

from escrowmq.cli.config import SECTIONS
from escrowmq.cli.convert import from_text, from_toml


@pytest.mark.parametrize(
    ("kind", "text", "value"), [(bool, "true", True), (bool, "false", False), (str, "a b", "a b")]
)
def test_text_is_read(kind: type, text: str, value: object) -> None:
    assert from_text(kind, text) == value


@pytest.mark.parametrize("text", ["yes", "1", "True", ""])
def test_only_true_and_false_are_truth_values(text: str) -> None:
    with pytest.raises(ValueError, match="must be true or false"):
        from_text(bool, text)


def test_a_number_is_not_a_truth_value() -> None:
    with pytest.raises(ValueError, match="must be true or false"):
        from_toml(bool, 1)


def test_every_setting_has_a_type_that_can_be_read() -> None:
    for kind in SECTIONS.values():
        types = get_type_hints(kind)
        for field in fields(kind):
            readable = types[field.name] in (int, float, bool, str)
            assert readable or get_origin(types[field.name]) is Literal, field.name
