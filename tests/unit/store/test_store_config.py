"""Settings that cannot work are refused by name, before anything is opened."""

from __future__ import annotations

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.store.config import GIB, HOUR_MS, StoreConfig


def test_the_defaults_are_durable_and_keep_three_days() -> None:
    config = StoreConfig()
    assert config.durability == "fsync"
    assert config.segment_bytes_max == GIB
    assert config.retention_ms == 72 * HOUR_MS
    assert config.retention_bytes == 0


def test_durability_is_one_of_two() -> None:
    assert StoreConfig(durability="os").durability == "os"
    with pytest.raises(RequestRefused) as refused:
        StoreConfig(durability="none")  # type: ignore[arg-type]
    assert refused.value.fields == {"key": "store.durability", "value": "none"}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("segment_bytes_max", 4_095),
        ("segment_bytes_max", 64 * GIB + 1),
        ("checkpoint_bytes", 0),
        ("retention_ms", 0),
        ("retention_bytes", -1),
        ("copy_after_ms", -1),
        ("chunk_rows", 7),
        ("chunk_rows", 65_537),
        ("id_window_ms", -1),
    ],
)
def test_a_number_out_of_bounds_is_refused_with_its_key(name: str, value: int) -> None:
    with pytest.raises(RequestRefused) as refused:
        StoreConfig(**{name: value})  # type: ignore[arg-type]
    assert refused.value.code == "bad_config"
    assert refused.value.fields == {"key": f"store.{name}", "value": value}


def test_a_message_cannot_be_copied_after_its_retention() -> None:
    StoreConfig(copy_after_ms=HOUR_MS, retention_ms=HOUR_MS)
    with pytest.raises(RequestRefused) as refused:
        StoreConfig(copy_after_ms=HOUR_MS + 1, retention_ms=HOUR_MS)
    assert refused.value.fields["key"] == "store.copy_after_ms"
