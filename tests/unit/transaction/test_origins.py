"""An origin gets the next number once, and expires when it is unused."""

from __future__ import annotations

import pytest

from escrowmq.model.limits_config import DAY_MS, LimitsConfig
from escrowmq.model.resolution import Resolution
from escrowmq.testing import MemoryEngine, message
from escrowmq.transaction.commands import Decision, End, Prepare
from escrowmq.transaction.expiry_commands import (
    ExpireOrigins,
)
from escrowmq.transaction.memory.origins import EXPIRED, Origins
from escrowmq.transaction.records import NamedOrigin, OriginsExpired

EXPIRE_MS = 30 * DAY_MS


def test_an_origin_is_a_group_with_its_ledger_and_time() -> None:
    origins = Origins()
    first = origins.of("pay", "", 0)
    assert first == NamedOrigin(0, "pay", "", 0)
    for _ in range(2):
        origins.apply(first, 1, 10)
    assert origins.of("pay", "", 0) == 0
    assert origins.of("pay", "uuid", 0) == NamedOrigin(1, "pay", "uuid", 0)
    assert origins.of("pay", "", 1) == NamedOrigin(1, "pay", "", 1)
    assert len(origins) == 1


def test_the_name_of_an_expired_origin_is_known_while_the_log_has_it() -> None:
    origins = Origins()
    origins.apply(NamedOrigin(0, "%SINK%app@home", "", 0), 1, 10)
    origins.apply(NamedOrigin(1, "ship", "", 0), 2, 20)
    assert origins.parts == [0]
    # Replaying a log on a later state changes nothing.
    origins.use(0, 0, 5)
    origins.use(0, 7, 70)
    origins.use(9, 7, 70)
    origins.carry(0, 60)
    origins.carry(0, 80)
    origins.carry(9, 80)
    assert (origins.used_at_ms[0], origins.frames[0]) == (7, 80)
    for _ in range(2):
        origins.expire([0])
    assert (len(origins), origins.parts) == (1, [])
    origins.forget_below(80)
    assert origins[0].group == "%SINK%app@home"
    assert [named.id for named in origins] == [0, 1]
    assert [named.group for named in origins.all_of([1, 0])] == ["ship", "%SINK%app@home"]
    origins.forget_below(81)
    assert origins[0] == NamedOrigin(0, EXPIRED, "", 0)
    assert origins.is_of(0, "anybody")
    assert not origins.is_of(1, "anybody")
    # Its number is not reused.
    assert origins.of("%SINK%app@home", "", 0) == NamedOrigin(2, "%SINK%app@home", "", 0)


def test_origins_survive_a_checkpoint() -> None:
    origins, loaded = Origins(), Origins()
    for number, group in enumerate(["pay", "ship", "count"]):
        origins.apply(NamedOrigin(number, group, "", 0), number, number)
    origins.expire([1])
    loaded.load(origins.named.values(), origins.saved())
    assert loaded.saved() == origins.saved()
    assert loaded.named == origins.named
    assert loaded[1].group == "ship"
    assert loaded.of("new", "", 0) == NamedOrigin(3, "new", "", 0)


# The command.


def hold(engine: MemoryEngine, transaction_id: str, group: str) -> Decision:
    return engine.submit(
        Prepare(group=group, transaction_id=transaction_id, messages=(message(b"a"),))
    )


def expire(engine: MemoryEngine, *numbers: int) -> Decision:
    return engine.submit(ExpireOrigins(numbers=numbers))


def test_an_unused_origin_expires_and_makes_room_for_another() -> None:
    engine = MemoryEngine()
    engine.core.limits = LimitsConfig(origins_max=2)
    hold(engine, "t", "pay")
    engine.commit(0)
    hold(engine, "u", "ship")
    engine.commit(1)
    assert hold(engine, "v", "count").refused is not None
    engine.clock.advance(ms=EXPIRE_MS)
    hold(engine, "w", "ship")
    engine.commit(2)
    # Exactly the limit is not yet over the limit.
    assert expire(engine, 0, 1, 2, 9).records == ()
    engine.clock.advance(ms=1)
    assert expire(engine, 0, 1, 2, 9).records == (OriginsExpired([0]),)
    assert expire(engine, 0).records == ()
    assert hold(engine, "v", "count").refused is None
    assert engine.core.names.origins.of("count", "", 0) == 2


@pytest.mark.parametrize("state", ["prepared", "parked", "waiting"])
def test_an_origin_with_a_half_message_that_is_needed_does_not_expire(state: str) -> None:
    engine = MemoryEngine()
    if state == "waiting":
        delayed = message(b"a", deliver_after_ms=100 * DAY_MS)
        engine.submit(Prepare(group="pay", transaction_id="t", messages=(delayed,)))
        engine.commit(0)
    else:
        hold(engine, "t", "pay")
    if state == "parked":
        engine.park(0)
    engine.clock.advance(ms=EXPIRE_MS + 1)
    assert expire(engine, 0).records == ()
    if state != "waiting":
        engine.submit(End(half_offset=0, resolution=Resolution.ROLLBACK, by="ann", group="pay"))
        assert expire(engine, 0).records == (OriginsExpired([0]),)


def test_a_group_that_returns_gets_a_new_number_and_old_decisions_are_still_told() -> None:
    engine = MemoryEngine()
    hold(engine, "t", "pay")
    engine.commit(0)
    engine.clock.advance(ms=EXPIRE_MS + 1)
    expire(engine, 0)
    assert hold(engine, "u", "pay").refused is None
    assert engine.core.names.origins.of("pay", "", 0) == 1
    again = End(half_offset=0, resolution=Resolution.COMMIT, by="pay", group="pay")
    assert engine.submit(again).refused is None
    other = End(half_offset=0, resolution=Resolution.COMMIT, by="x", group="ship")
    refused = engine.submit(other).refused
    assert refused is not None
    assert refused.code == "producer_group_wrong"
    restarted = engine.restart()
    assert restarted.core.names.origins.saved() == engine.core.names.origins.saved()


def test_a_group_is_known_as_long_as_one_of_its_origins() -> None:
    origins = Origins()
    for number, user in enumerate(["", "shop", "till"]):
        origins.apply(NamedOrigin(number, "pay", "", 0, user), number, number)
    assert origins.groups == {"pay": 3}
    assert origins.of("pay", "", 0, "shop") == 1
    origins.expire([0, 2])
    assert origins.groups == {"pay": 1}
    assert origins.of("pay", "", 0) == NamedOrigin(3, "pay", "", 0)
    origins.expire([1])
    assert origins.groups == {}
