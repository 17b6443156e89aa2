"""Every level plays every scenario with the same result.

The levels are the core, the store, a broker behind sockets with a settler, and a broker that checks
by itself, with each state store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from pathlib import Path

import pytest

from escrowmq.testing import Engine, MemoryEngine
from tests.conformance.broker_checks import BrokerChecksLevel
from tests.conformance.broker_level import BrokerLevel
from tests.conformance.scenario import VERBS, Level, Line, Player, Scenario, milliseconds
from tests.conformance.state_store_levels import MappedLevel, SqlLevel, sql_level_at
from tests.crash.databases import Databases, databases
from tests.unit.broker.checked_hours import hasten

SCENARIOS = sorted(Path(__file__).parent.glob("*.scenario"))
LEVELS: dict[str, Callable[[Path, Databases], AbstractContextManager[Level]]] = {
    "core": lambda *_: nullcontext(MemoryEngine()),
    "engine": lambda *_: nullcontext(Engine()),
    "broker": lambda folder, _: closing(BrokerLevel(folder)),
    "broker checks": lambda folder, _: closing(BrokerChecksLevel(folder)),
    "mapped": lambda folder, _: closing(MappedLevel(folder)),
    "sqlite": lambda folder, _: closing(SqlLevel(folder)),
    "postgresql": lambda folder, made: closing(sql_level_at(made("postgresql", folder))(folder)),
}


@pytest.fixture(scope="module")
def made() -> Iterator[Databases]:
    with databases() as make:
        yield make


@pytest.fixture(autouse=True)
def only_when_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a broker check when the scenario says so, and look ledgers up again at once."""
    monkeypatch.setattr("escrowmq.broker.server.CHECK_S", 3_600.0)
    hasten(monkeypatch.setattr)


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
@pytest.mark.parametrize("level", LEVELS)
def test_a_promise_is_kept(level: str, path: Path, tmp_path: Path, made: Databases) -> None:
    text = path.read_text(encoding="utf-8")
    with LEVELS[level](tmp_path, made) as started:
        played = Player(started).play(Scenario.read(text))
    assert str(played) == text


def test_every_verb_is_played() -> None:
    scenarios = [Scenario.read(path.read_text(encoding="utf-8")) for path in SCENARIOS]
    commands = [text for scenario in scenarios for b in scenario.blocks for text in b.commands]
    assert {Line.read(text).verb for text in commands} == VERBS.keys()


def test_a_scenario_that_tells_it_otherwise_fails() -> None:
    """A runner that accepts everything would prove nothing."""
    text = "# A lie.\n\nhalf key=a\nend half=0 commit\n----\nstored half=0\nrolled back half=0\n"
    played = Player(MemoryEngine()).play(Scenario.read(text))
    assert str(played) != text
    assert played.blocks[0].expected == ["stored half=0", "committed half=0 by=producer"]


@pytest.mark.parametrize(
    ("text", "ms"), [("5ms", 5), ("6s", 6_000), ("2min", 120_000), ("72h", 259_200_000)]
)
def test_durations(text: str, ms: int) -> None:
    assert milliseconds(text) == ms
