"""Hints for users who give RocketMQ's name of a setting where ours belongs."""

from __future__ import annotations

import re

from escrowmq.cli.rocketmq.left_out import LEFT_OUT
from escrowmq.cli.rocketmq.names import BY_THEIRS, SettingName

_EXACT = {name: row for row in LEFT_OUT for name in row.names.split() if "*" not in name}
#: RocketMQ's names, by their forms in small letters: environment variables lose capitals.
_BY_SMALL = {name.lower(): name for name in (*BY_THEIRS, *_EXACT)}
_KEY_OF_LINE = re.compile(r"^[ \t]*(\w+)[ \t]*=", re.MULTILINE)


def hint_for(name: str) -> str:
    """Say what replaces a setting of RocketMQ; empty if it has no such setting.

    Capitals and underscores do not matter.
    """
    theirs = _BY_SMALL.get(name.replace("_", "").lower())
    if theirs is None:
        return ""
    if row := BY_THEIRS.get(theirs):
        return replacement(row)
    reason = _EXACT[theirs].reason.replace("`", "")
    return f"RocketMQ's {theirs} has no counterpart here: {reason}"


def replacement(row: SettingName) -> str:
    """Say which setting of ours replaces one of RocketMQ's, and how to convert its value."""
    rule = f" ({row.value.rule})" if row.value.rule else ""
    return f"RocketMQ's {row.theirs} is {row.ours} here{rule}"


def is_broker_file(text: str) -> bool:
    """Whether a file that is not TOML has a line with a setting of RocketMQ."""
    return any(name in BY_THEIRS or name in _EXACT for name in _KEY_OF_LINE.findall(text))
