"""The map from RocketMQ's settings to ours is complete and true."""

from __future__ import annotations

from fnmatch import fnmatchcase

import pytest

from escrowmq.cli.config import load
from escrowmq.cli.config_import import converted
from escrowmq.cli.rocketmq.left_out import LEFT_OUT, left_out
from escrowmq.cli.rocketmq.names import BY_THEIRS, SETTING_NAMES
from escrowmq.cli.rocketmq.properties import Property
from escrowmq.cli.rocketmq.values import Number
from escrowmq.transaction.policy import CheckPolicy
from tests.unit.cli import rocketmq_keys

KEYS = frozenset(rocketmq_keys.KEYS.split())
OTHER_KEYS = frozenset(rocketmq_keys.OTHER_KEYS.split())
SETTINGS = {setting.name: setting.value for setting in load(environ={}).settings}


def test_every_key_of_rocketmq_is_mapped_or_left_out_for_a_reason() -> None:
    assert [key for key in sorted(KEYS) if key not in BY_THEIRS and left_out(key) is None] == []


def test_the_map_has_only_keys_of_rocketmq() -> None:
    names = [name for row in LEFT_OUT for name in row.names.split()]
    exact = [*BY_THEIRS, *(name for name in names if "*" not in name)]
    assert set(exact) <= KEYS | OTHER_KEYS
    families = [name for name in names if "*" in name]
    assert [one for one in families if not any(fnmatchcase(key, one) for key in KEYS)] == []


def test_each_key_is_there_once() -> None:
    assert len(BY_THEIRS) == len(SETTING_NAMES)
    names = [name for row in LEFT_OUT for name in row.names.split()]
    assert len(names) == len(set(names))
    assert set(names) & BY_THEIRS.keys() == set()


def test_every_setting_of_ours_exists() -> None:
    named = {one.ours for one in SETTING_NAMES} | {one.raises for one in SETTING_NAMES}
    named |= {row.instead for row in LEFT_OUT}
    assert named - {""} <= SETTINGS.keys()


#: Defaults that describe a value of the machine.
DESCRIBED = {"brokerName", "brokerIP1", "namesrvAddr"}


@pytest.mark.parametrize("theirs", sorted(BY_THEIRS.keys() - DESCRIBED))
def test_a_default_of_rocketmq_is_valid_here(theirs: str) -> None:
    value = BY_THEIRS[theirs].default.partition(";")[0].partition(" since")[0]
    assert {row.outcome for row in converted([Property(1, theirs, value)])} == {"mapped"}


def test_units_are_converted() -> None:
    assert BY_THEIRS["fileReservedTime"].value.convert("48") == 48 * 3_600_000
    assert BY_THEIRS["serverChannelMaxIdleTimeSeconds"].value.convert("120") == 120_000
    assert BY_THEIRS["transactionTimeOut"].value.convert("6000") == 6_000
    factors = {one.ours: one.value.factor for one in SETTING_NAMES if type(one.value) is Number}
    assert {ours for ours, factor in factors.items() if factor != 1} == {
        "store.retention_ms",
        "broker.idle_ms_max",
    }


def test_defaults_that_the_docs_call_the_same_are_the_same() -> None:
    policy = CheckPolicy()
    assert (policy.check_after_ms, policy.check_interval_ms, policy.checks_max) == (
        6_000,
        30_000,
        15,
    )
