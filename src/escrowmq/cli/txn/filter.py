"""The filter of ``escrowmq txn commit|rollback --filter``, which selects transactions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.message.properties import split_keys

if TYPE_CHECKING:
    from escrowmq.protocol.native.previews import PreviewRow
    from escrowmq.protocol.native.rows import TransactionRow

OPEN_STATES = ("prepared", "parked")
_STATE_CODES = {0: "prepared", 3: "parked"}
_UNITS_S = {"s": 1, "min": 60, "h": 3_600, "d": 86_400}
_DURATION = re.compile(rf"([0-9]{{1,9}})({'|'.join(_UNITS_S)})")
KEYS = ("group", "topic", "key", "state", "older-than", "younger-than", "id")


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """Conditions that must all hold; an empty condition always holds."""

    group: str
    topic: str
    key: str
    state: str
    id: str
    older_than_ms: int
    younger_than_ms: int

    @property
    def states(self) -> str:
        """States to list, separated by commas; only undecided states can be decided."""
        return self.state or ",".join(OPEN_STATES)

    @property
    def needs_content(self) -> bool:
        """Whether the half messages themselves must be read."""
        return bool(self.topic or self.key)

    def takes_row(self, row: TransactionRow, now_ms: int) -> bool:
        """Return whether the facts about a transaction match."""
        age_ms = now_ms - row.stored_at_ms
        return (
            self.group in ("", row.producer_group)
            and self.id in ("", row.transaction_id)
            and (not self.older_than_ms or age_ms >= self.older_than_ms)
            and (not self.younger_than_ms or age_ms < self.younger_than_ms)
            and _STATE_CODES.get(row.state, "") in self.states.split(",")
        )

    def takes_message(self, message: PreviewRow) -> bool:
        """Return whether this message of the transaction has the topic and the key."""
        has_key = not self.key or self.key in split_keys(message.keys)
        return has_key and self.topic in ("", message.topic)


def parse_filters(given: Sequence[str]) -> TransactionFilter:
    """Parse ``NAME=VALUE`` conditions; one text may hold several, separated by commas."""
    found: dict[str, str] = {}
    for condition in (part for text in given for part in _split(text)):
        name, equals, value = condition.partition("=")
        name, value = name.strip().lower(), value.strip()
        if not equals or name not in KEYS or not value:
            raise _bad(condition, f"write it as NAME=VALUE; names are {', '.join(KEYS)}")
        if name in found:
            raise _bad(condition, f"{name} is given twice; all conditions must hold")
        found[name] = value
    if not found:
        raise _bad("", f"name at least one of {', '.join(KEYS)}")
    state = found.get("state", "")
    if state and state not in OPEN_STATES:
        raise _bad(f"state={state}", f"only {' and '.join(OPEN_STATES)} ones can be decided")
    return TransactionFilter(
        group=found.get("group", ""),
        topic=found.get("topic", ""),
        key=found.get("key", ""),
        id=found.get("id", ""),
        state=state,
        older_than_ms=_duration_ms("older-than", found.get("older-than")),
        younger_than_ms=_duration_ms("younger-than", found.get("younger-than")),
    )


def _split(text: str) -> list[str]:
    """Split only at commas that a condition's name follows, because keys may contain commas."""
    return re.split(rf",\s*(?=(?:{'|'.join(KEYS)})=)", text)


def _duration_ms(name: str, text: str | None) -> int:
    if text is None:
        return 0
    match = _DURATION.fullmatch(text.replace(" ", ""))
    if match is None or not int(match[1]):
        raise _bad(f"{name}={text}", "write a duration such as 30s, 5min, 2h or 1d")
    return int(match[1]) * _UNITS_S[match[2]] * 1_000


def _bad(condition: str, allowed: str) -> RequestRefused:
    return RequestRefused("filter_illegal", allowed, filter=condition[:128])
