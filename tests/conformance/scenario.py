"""Scenarios: readable scripts of promises, which every level must play with the same result.

A file starts with its promise, in lines with ``#``. Then come blocks: commands, a line ``----``,
and the transcript that they must give. Names before ``=`` are options; ``TOPIC/QUEUE=BODY`` is a
message. ``play`` writes the whole file again with the level's results, so that a diff shows every
difference.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.testing import AnsweringEngine, Engine, MemoryEngine, Settler, message
from escrowmq.testing.calls import accepted
from escrowmq.testing.invariants import Witness
from escrowmq.testing.settler import CheckableTransaction, Round, SettlePort
from escrowmq.transaction.commands import AttemptClaim, BatchReply, DecideBatch, End, Verdict
from escrowmq.transaction.states import State
from tests.conformance.broker_checks import BrokerChecksLevel
from tests.conformance.broker_level import BrokerLevel

SEPARATOR = "----"
_UNITS_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}
_DURATION = re.compile(r"(\d+)(ms|s|min|h)")


Level = Engine | MemoryEngine | BrokerLevel
"""Any level that can play a scenario."""


@dataclass(frozen=True, slots=True)
class Line:
    """A command line with its options and messages."""

    verb: str
    words: list[str]
    options: dict[str, str]
    #: Topic, queue and body.
    bodies: list[tuple[str, int, bytes]]

    @classmethod
    def read(cls, text: str) -> Line:
        verb, *rest = text.split()
        words, options, bodies = [], {}, []
        for word in rest:
            name, is_pair, value = word.partition("=")
            topic, is_queue, queue_id = name.partition("/")
            if is_pair and is_queue:
                bodies.append((topic, int(queue_id), value.encode()))
            elif is_pair:
                options[name] = value
            else:
                words.append(word)
        return cls(verb, words, options, bodies)

    @property
    def half(self) -> int:
        return int(self.options["half"])

    def duration_ms(self, name: str) -> int:
        return milliseconds(self.options[name]) if name in self.options else 0


def milliseconds(text: str) -> int:
    match = _DURATION.fullmatch(text)
    assert match, f"not a duration: {text}"
    return int(match[1]) * _UNITS_MS[match[2]]


@dataclass(frozen=True, slots=True)
class Block:
    """Commands and the transcript that they must give."""

    commands: list[str]
    expected: list[str]


@dataclass(frozen=True, slots=True)
class Scenario:
    """A promise and its blocks."""

    promise: str
    blocks: list[Block]

    @classmethod
    def read(cls, text: str) -> Scenario:
        promise, *rest = re.split(r"\n\n+", text.strip())
        assert all(line.startswith("# ") for line in promise.splitlines()), promise
        blocks = []
        for block in rest:
            commands, separator, expected = block.partition(f"\n{SEPARATOR}")
            assert separator, f"no {SEPARATOR} in: {block}"
            blocks.append(Block(commands.splitlines(), expected.split("\n")[1:]))
        return cls(promise, blocks)

    def __str__(self) -> str:
        parts = ["\n".join((*b.commands, SEPARATOR, *b.expected)) for b in self.blocks]
        return "\n\n".join((self.promise, *parts)) + "\n"


class SocketPort:
    """The broker as a settler sees it; its producer, if one is online, always gives this answer."""

    def __init__(self, level: BrokerLevel, answer: Callable[[], Resolution | None]) -> None:
        self._level = level
        self._answer = answer

    def undecided(self) -> Sequence[CheckableTransaction]:
        """Return every transaction that may be checked."""
        return self._level.undecided()

    def obey(self, verdicts: Sequence[Verdict]) -> Sequence[VerdictOutcome]:
        """Apply the verdicts."""
        return self._level.obey(verdicts, self._answer())


@dataclass
class Player:
    """Plays scenarios on one level."""

    level: Level
    answer: Resolution | None = None
    outcome: Resolution | None = None
    _witness: Witness = field(init=False)

    def __post_init__(self) -> None:
        self._witness = Witness(self.level.core)

    def play(self, scenario: Scenario) -> Scenario:
        """Return the scenario with this level's transcripts."""
        blocks = []
        for block in scenario.blocks:
            told = [said for text in block.commands for said in self.do(Line.read(text))]
            blocks.append(Block(block.commands, told))
        return Scenario(scenario.promise, blocks)

    def do(self, line: Line) -> Iterator[str]:
        try:
            yield from VERBS[line.verb](self, line)
        except RequestRefused as refused:
            facts = [f"{name}={refused.fields[name]}" for name in TOLD if name in refused.fields]
            yield " ".join(("refused", refused.code, *facts))
        self._witness.check()

    # Messages.

    def half(self, line: Line) -> Iterator[str]:
        key = line.options["key"]
        number = line.options.get("number")
        held = self.level.prepare(
            key,
            *messages(line, deliver_after_ms=line.duration_ms("after")),
            group=line.options.get("group", "producers"),
            number=None if number is None else int(number),
            ledger=line.options.get("ledger", ""),
        )
        count = f" count={held.count}" if held.count > 1 else ""
        yield f"stored half={held.half_offset}{count}{again(held.repeated)}"

    def append(self, line: Line) -> Iterator[str]:
        delay_ms = line.duration_ms("in")
        at_ms = self.level.clock.now_ms() + delay_ms if delay_ms else 0
        self.level.append(*messages(line, deliver_at_ms=at_ms))
        yield "stored"

    def pull(self, line: Line) -> Iterator[str]:
        (place,) = line.words
        topic, _, queue_id = place.partition("/")
        pulled = self.level.pull(topic, int(queue_id))
        yield f"{place}: {b' '.join(m.body for m in pulled).decode() or 'nothing'}"

    # Decisions.

    def end(self, line: Line) -> Iterator[str]:
        resolution = Resolution(line.words[0])
        by = line.options.get("by", "producer")
        if resolution is Resolution.UNKNOWN:
            ending = End(half_offset=line.half, resolution=resolution, by=by)
            assert accepted(self.level.submit(ending)).reply is None
            yield f"undecided half={line.half}"
            return
        settled = self.level.end(line.half, resolution, by)
        state = settled.state.label.replace("_", " ")
        yield f"{state} half={settled.half_offset} by={settled.by}{again(settled.repeated)}"

    def batch(self, line: Line) -> Iterator[str]:
        claims = [word.split(":") for word in line.words]
        command = DecideBatch(
            app_id=line.options.get("app", "app"),
            query_id=line.options["query"],
            batch_id=int(line.options["id"]),
            attempts=tuple(
                AttemptClaim(transaction_id=key, last_number=int(last), rows=int(rows))
                for key, last, rows in claims
            ),
            by="driver",
        )
        reply = accepted(self.level.submit(command)).reply
        assert isinstance(reply, BatchReply)
        yield f"{reply.outcome.replace('_', ' ')} rows={reply.rows}"

    # Time.

    def advance(self, line: Line) -> Iterator[str]:
        self.level.clock.advance(ms=milliseconds(line.words[0]))
        yield from ()

    def release(self, _line: Line) -> Iterator[str]:
        rows = self.level.release_due()
        yield " ".join(("released", *(f"half={row}" for row in rows))) if rows else "nothing due"

    def settle(self, _line: Line) -> Iterator[str]:
        done = self._round()
        answered = {row: self.level.state(row) for row in done.asked}
        told_of = [
            *(f"back-check half={row} attempt={self._checks(row)}" for row in done.asked),
            *(f"no producer online half={row}" for row in done.no_producer),
            *(
                f"{state.label.replace('_', ' ')} half={row}"
                for row, state in answered.items()
                if state is not State.PREPARED
            ),
            *(f"committed half={row}" for row in done.committed),
            *(f"rolled back half={row}" for row in done.rolled_back),
            *(f"parked half={row}" for row in done.parked),
            *(f"waits half={row}" for row in done.waiting),
        ]
        yield from told_of or ["nothing to settle"]

    def _round(self) -> Round:
        if isinstance(self.level, BrokerChecksLevel):
            return self.level.check(self.answer, self.outcome)
        return Settler(self._port(), self.level.core.policy, lambda _half: self.outcome).run_once()

    def _port(self) -> SettlePort:
        if isinstance(self.level, BrokerLevel):
            return SocketPort(self.level, lambda: self.answer)
        return AnsweringEngine(self.level, self._producer)

    def _producer(self, _half: CheckableTransaction) -> Resolution | None:
        return self.answer

    def _checks(self, row: int) -> int:
        return self.level.core.row(row).checks_sent

    def producer(self, line: Line) -> Iterator[str]:
        self.answer = None if line.words == ["offline"] else Resolution(line.words[1])
        yield from ()

    def ledger(self, line: Line) -> Iterator[str]:
        self.outcome = Resolution(line.words[1])
        yield from ()

    # Operators.

    def park(self, line: Line) -> Iterator[str]:
        self.level.park(line.half)
        yield f"parked half={line.half}"

    def resume(self, line: Line) -> Iterator[str]:
        self.level.resume(line.half)
        yield f"resumed half={line.half}"

    def status(self, line: Line) -> Iterator[str]:
        half = self.level.core.row(line.half)
        state = half.state.label.replace("_", " ")
        yield f"{state} half={line.half} checks={half.checks_sent}"

    def restart(self, _line: Line) -> Iterator[str]:
        self.level = self.level.restart()
        self._witness = Witness(self.level.core)
        yield "restarted"


VERBS: dict[str, Callable[[Player, Line], Iterator[str]]] = {
    name: getattr(Player, name)
    for name in [
        "half",
        "append",
        "pull",
        "end",
        "batch",
        "advance",
        "release",
        "settle",
        "producer",
        "ledger",
        "park",
        "resume",
        "status",
        "restart",
    ]
}

#: Facts of a refusal that a transcript shows.
TOLD = ("half_offset", "by", "number", "expected")


def again(repeated: bool) -> str:  # noqa: FBT001 - a fact, not a switch
    """Return the suffix of an answer that was given before."""
    return " again" if repeated else ""


def messages(
    line: Line, *, deliver_after_ms: int = 0, deliver_at_ms: int = 0
) -> tuple[SentMessage, ...]:
    """Return the messages of a line, or one message with its key as body if the line has none."""
    bodies = line.bodies or [("orders", 0, line.options["key"].encode())]
    return tuple(
        message(
            body,
            topic=topic,
            queue_id=queue_id,
            deliver_after_ms=deliver_after_ms,
            deliver_at_ms=deliver_at_ms,
        )
        for topic, queue_id, body in bodies
    )
