"""Compare a broker's log with what its clients were told and what they saw."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from tests.interop.values import Received


def judge(
    log: Sequence[Received],
    *,
    required: set[str],
    possible: set[str],
    seen: Mapping[str, Sequence[Received]],
) -> None:
    """Assert that nothing is lost, doubled or wrongly visible, and that each consumer saw the log.

    ``required`` are the keys that must be in the log, ``possible`` those whose outcome is unknown;
    ``seen`` is what each consumer was given, perhaps more than once.
    """
    places = sorted((message.queue, message.queue_offset) for message in log)
    ends = Counter(message.queue for message in log)
    assert places == [(queue, at) for queue in sorted(ends) for at in range(ends[queue])], "gaps"
    times = Counter(str(message.keys) for message in log)
    doubled = sorted(key for key, count in times.items() if count > 1)
    assert not doubled, f"twice in the log: {doubled}"
    lost = required - times.keys()
    assert not lost, f"not in the log: {sorted(lost)}"
    wrong = times.keys() - required - possible
    assert not wrong, f"should not be in the log: {sorted(wrong)}"
    by_place = {(message.queue, message.queue_offset): message.keys for message in log}
    for name, given in seen.items():
        keys_at: defaultdict[tuple[int, int], set[str | None]] = defaultdict(set)
        for message in given:
            keys_at[message.queue, message.queue_offset].add(message.keys)
        missed = by_place.keys() - keys_at.keys()
        assert not missed, f"{name} did not get {sorted(missed)}"
        other = {place: keys for place, keys in keys_at.items() if keys != {by_place.get(place)}}
        assert not other, f"{name} saw what is not in the log: {other}"
