"""When the pipeline settles, archives and keeps the lake up.  Pure: time is an argument.

What a broker says (``Heard``) goes in; out comes when the next round and the next run shall start.
A round starts at once when something has come due.  What a round could not settle, as with no
producer online or a database that is down, is tried again after ``settle_interval_ms``.  With
nothing due nothing starts.  The lake is kept up once something was archived, and then once in a
while: whoever is started again and again has it done each time.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from escrowmq.pipeline.config import PipelineConfig

#: With something new all the time, rounds rest so many times as long as they take, for the sake of
#: the broker beside them, but not longer than ``settle_interval_ms``.
NEWS_REST = 9
#: With nothing new the same, but not longer than the limit below.
LEFT_OVER_REST = 2
LEFT_OVER_REST_MS_MAX = 60_000
#: Sink attempts are looked at so often even if no batch was decided: their driver may be gone.
ATTEMPTS_MS = 60_000
#: So often consumers are looked at, whose progress is no news in the log.
PROGRESS_MS = 60_000
#: After failures in a row the wait doubles, up to this.
FAILED_MS_MAX = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What a broker said about what there is to do."""

    broker: str
    #: By the broker's clock.
    now_ms: int
    #: Undecided transactions whose next check is due.
    due: int = 0
    undecided: int = 0
    #: Of these, attempts of Spark sinks.
    sink_attempts: int = 0
    #: Another number whenever a batch was decided.
    batches_decided: int = 0
    log_end: int = 0
    #: Whether something came due since the round before.
    is_news: bool = False


@dataclass(slots=True, kw_only=True)
class _Runs:
    """One kind of work: when it last ran, and how it went."""

    interval_ms: int
    began_at_ms: int | None = None
    ended_at_ms: int | None = None
    failures: int = 0

    @property
    def is_running(self) -> bool:
        return self.began_at_ms is not None and self.ended_at_ms is None

    def begin(self, now_ms: int) -> None:
        self.began_at_ms, self.ended_at_ms = now_ms, None

    def end(self, now_ms: int, *, is_failed: bool) -> None:
        self.ended_at_ms = now_ms
        self.failures = self.failures + 1 if is_failed else 0

    def after(self, wait_ms: int) -> int:
        """So long after the last one began; at once if there was none."""
        return 0 if self.began_at_ms is None else self.began_at_ms + wait_ms

    def next_at_ms(self, wait_ms: int) -> int:
        """So long after the last one began, longer after failures, and not before it has ended."""
        if self.failures:
            doubled = self.interval_ms * 2 ** min(self.failures - 1, 20)
            wait_ms = max(wait_ms, min(doubled, max(FAILED_MS_MAX, self.interval_ms)))
        return self.after(wait_ms)


@dataclass(slots=True)
class Pace:
    """Tells when to start what; is told what was heard, and what began and ended."""

    config: PipelineConfig
    heard: dict[str, Heard] = field(default_factory=dict)
    settling: _Runs = field(init=False)
    archiving: _Runs = field(init=False)
    keeping_up: _Runs = field(init=False)
    #: What each broker had said when the last round began.
    _batches: dict[str, int] = field(default_factory=dict)
    _is_stale: set[str] = field(default_factory=set)
    _archived: dict[str, int] = field(default_factory=dict)
    _archiving_up_to: dict[str, int] = field(default_factory=dict)
    _has_progress: bool = False
    _has_archived: bool = False

    def __post_init__(self) -> None:
        self.settling = _Runs(interval_ms=self.config.settle_interval_ms)
        self.archiving = _Runs(interval_ms=self.config.archive_interval_ms)
        self.keeping_up = _Runs(interval_ms=self.config.lake_upkeep_interval_ms)

    # What is told.

    def note(self, heard: Heard) -> None:
        """A broker said so."""
        before = self.heard.get(heard.broker)
        if before is not None and before.is_news and heard.broker not in self._is_stale:
            # News stay news until a round has looked at them.
            heard = replace(heard, is_news=True)
        self.heard[heard.broker] = heard
        self._is_stale.discard(heard.broker)

    def note_away(self, broker: str) -> None:
        """A broker does not answer: what it said before holds no more."""
        self._is_stale.add(broker)

    def note_progress(self) -> None:
        """Consumers went on."""
        self._has_progress = True

    def round_began(self, now_ms: int) -> None:
        """A round looks at everything that is due now."""
        self._batches = {broker: heard.batches_decided for broker, heard in self.heard.items()}
        self._is_stale |= self.heard.keys()
        self.settling.begin(now_ms)

    def archive_began(self, now_ms: int) -> None:
        """A run takes all that is there now."""
        self._archiving_up_to = self.log_ends()
        self._has_progress = False
        self.archiving.begin(now_ms)

    def archive_ended(self, now_ms: int, *, is_failed: bool, is_whole: bool = True) -> None:
        """What it took need not be taken again, if it took all."""
        self.archiving.end(now_ms, is_failed=is_failed)
        self._has_archived |= not is_failed
        if is_whole and not is_failed:
            self._archived = self._archiving_up_to

    # What is asked.

    def log_ends(self) -> dict[str, int]:
        """Where each broker's log ends, as far as is known."""
        return {broker: heard.log_end for broker, heard in self.heard.items()}

    def archive_lag(self) -> dict[str, int]:
        """Bytes of each broker's log that no run has taken yet."""
        return {
            broker: end - self._archived.get(broker, 0) for broker, end in self.log_ends().items()
        }

    def settle_at_ms(self) -> int | None:
        """When the next round shall start; None if nothing is to be done."""
        if self.settling.is_running:
            return None
        fresh = [heard for heard in self.heard.values() if heard.broker not in self._is_stale]
        at_ms = [self.settling.next_at_ms(wait) for one in fresh for wait in self._waits_ms(one)]
        return min(at_ms, default=None)

    def _waits_ms(self, heard: Heard) -> list[int]:
        """How long after the last round this broker's affairs want the next one."""
        waits = []
        if heard.due:
            waits.append(self._rest_ms() if heard.is_news else self._left_over_ms())
        if heard.sink_attempts:
            was_decided = heard.batches_decided != self._batches.get(heard.broker)
            waits.append(self.config.settle_interval_ms if was_decided else ATTEMPTS_MS)
        return waits

    def _rest_ms(self) -> int:
        """With something due all the time, most of the time is still not the pipeline's."""
        if self.settling.began_at_ms is None or self.settling.ended_at_ms is None:
            return 0
        took_ms = self.settling.ended_at_ms - self.settling.began_at_ms
        return max(took_ms, min(took_ms * (1 + NEWS_REST), self.config.settle_interval_ms))

    def _left_over_ms(self) -> int:
        """A million that a dead database holds open are read seldom, though the round is long."""
        if self.settling.began_at_ms is None or self.settling.ended_at_ms is None:
            return 0
        took_ms = self.settling.ended_at_ms - self.settling.began_at_ms
        rest_ms = min(took_ms * LEFT_OVER_REST, LEFT_OVER_REST_MS_MAX)
        return max(took_ms + rest_ms, self.config.settle_interval_ms)

    def archive_at_ms(self) -> int | None:
        """When the next run shall start; None if nothing is new."""
        if self.archiving.is_running or not self.config.archive:
            return None
        has_grown = any(self._archived.get(one, 0) != end for one, end in self.log_ends().items())
        if not has_grown and not self._has_progress:
            return None
        return self.archiving.next_at_ms(self.config.archive_interval_ms)

    def upkeep_at_ms(self) -> int | None:
        """When the lake shall be kept up next; None if nothing was archived yet."""
        # Not "while nothing is archived": under load that would be never.
        if self.keeping_up.is_running or not self._has_archived:
            return None
        return self.keeping_up.next_at_ms(self.config.lake_upkeep_interval_ms)
