"""Decides when the pipeline settles, compares, archives and does the lake's upkeep.

Pure: time is an argument.

The input is what a broker reported (``Heard``). The output is when the next round and the next
archive run start.

A round starts at once when something comes due. Work that a round could not settle, for example
because no producer is online or a database is down, is retried after ``settle_interval_ms``. If
nothing is due, nothing starts. Upkeep of the lake runs after the first archive run, and then at its
interval. A service that is restarted often does the upkeep after each start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from escrowmq.pipeline.config import PipelineConfig
from escrowmq.pipeline.service.runs import ARCHIVE, COMPARE, SETTLE, UPKEEP, WorkRuns
from escrowmq.protocol.native.pipeline_headers import AwaitDueAnswer

#: While new work keeps coming due, the pipeline rests this many times as long as a round took, for
#: the sake of a broker on the same machine. ``settle_interval_ms`` limits the wait.
NEWS_REST = 9
#: The same factor if nothing new came due. The limit below applies to this rest.
LEFT_OVER_REST = 2
LEFT_OVER_REST_MS_MAX = 60_000
#: Sink attempts are examined this often even if no batch was decided, because their driver may be
#: dead.
ATTEMPTS_MS = 60_000
#: How often half and op records are compared with the state store if the log has not grown.
COMPARE_IDLE_MS = 3_600_000
#: How often the service looks at consumers' progress, which does not appear in the log.
PROGRESS_MS = 60_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A broker's report about due work."""

    broker: str
    answer: AwaitDueAnswer
    #: Whether something came due since the last round.
    is_news: bool = False


@dataclass(slots=True)
class Pace:
    """Says when to start each kind of work, from what was heard and what began and ended."""

    config: PipelineConfig
    heard: dict[str, Heard] = field(default_factory=dict)
    settling: WorkRuns = field(init=False)
    archiving: WorkRuns = field(init=False)
    keeping_up: WorkRuns = field(init=False)
    comparing: WorkRuns = field(init=False)
    #: What each broker had reported when the last round began.
    _batches: dict[str, int] = field(default_factory=dict)
    _is_stale: set[str] = field(default_factory=set)
    _archived: dict[str, int] = field(default_factory=dict)
    _archiving_up_to: dict[str, int] = field(default_factory=dict)
    _compared: dict[str, int] = field(default_factory=dict)
    _comparing_up_to: dict[str, int] = field(default_factory=dict)
    #: When the first comparison may start, which leaves the start to more urgent work.
    _compare_from_ms: int | None = None
    _has_progress: bool = False
    _has_archived: bool = False

    def __post_init__(self) -> None:
        self.settling = WorkRuns(interval_ms=self.config.settle_interval_ms)
        self.archiving = WorkRuns(interval_ms=self.config.archive_interval_ms)
        self.keeping_up = WorkRuns(interval_ms=self.config.lake_upkeep_interval_ms)
        self.comparing = WorkRuns(interval_ms=self.config.compare_interval_ms)

    # Inputs.

    def note(self, heard: Heard) -> None:
        """Take in a broker's report."""
        before = self.heard.get(heard.broker)
        if before is not None and before.is_news and heard.broker not in self._is_stale:
            # News stay news until a round has examined them.
            heard = replace(heard, is_news=True)
        self.heard[heard.broker] = heard
        self._is_stale.discard(heard.broker)

    def note_away(self, broker: str) -> None:
        """Note that a broker does not answer. Its last report is no longer valid."""
        self._is_stale.add(broker)

    def note_progress(self) -> None:
        """Note that consumers have advanced."""
        self._has_progress = True

    def round_began(self, now_ms: int) -> None:
        """Note the start of a round, which examines everything that is due now."""
        self._batches = {
            broker: heard.answer.batches_decided for broker, heard in self.heard.items()
        }
        self._is_stale |= self.heard.keys()
        self.settling.begin(now_ms)

    def archive_began(self, now_ms: int) -> None:
        """Note the start of an archive run, which takes all data up to now."""
        self._archiving_up_to = self.log_ends()
        self._has_progress = False
        self.archiving.begin(now_ms)

    def archive_ended(self, now_ms: int, *, is_failed: bool, is_whole: bool = True) -> None:
        """Note the end of an archive run.

        Its data counts as archived only if the run was complete.
        """
        self.archiving.end(now_ms, is_failed=is_failed)
        self._has_archived |= not is_failed
        if is_whole and not is_failed:
            self._archived = self._archiving_up_to

    def compare_began(self, now_ms: int) -> None:
        """Note the start of a comparison, which reads the logs up to now."""
        self._comparing_up_to = self.log_ends()
        self.comparing.begin(now_ms)

    def compare_ended(
        self, now_ms: int, *, is_failed: bool, told: Sequence[Mapping[str, object]] = ()
    ) -> None:
        """Note the end of a comparison, and what its summary tells.

        If it was behind the logs' ends, the next one follows as if the logs had grown.
        """
        self.comparing.end(now_ms, is_failed=is_failed)
        if not is_failed and not any(facts.get("is_behind") for facts in told):
            self._compared = self._comparing_up_to

    def begin_due(self, now_ms: int) -> list[str]:
        """Note the start of all work that is due now, and return its names."""
        if self.heard and self._compare_from_ms is None:
            self._compare_from_ms = now_ms + self.config.compare_interval_ms
        began = {
            SETTLE: (self.settle_at_ms(), self.round_began),
            COMPARE: (self.compare_at_ms(), self.compare_began),
            ARCHIVE: (self.archive_at_ms(), self.archive_began),
            UPKEEP: (self.upkeep_at_ms(), self.keeping_up.begin),
        }
        due = [name for name, (at, _) in began.items() if at is not None and at <= now_ms]
        for name in due:
            began[name][1](now_ms)
        return due

    # Outputs.

    @property
    def is_at_work(self) -> bool:
        """Whether anything but upkeep runs."""
        return any(work.is_running for work in (self.settling, self.comparing, self.archiving))

    def next_ats_ms(self) -> list[int]:
        """When work may start next, for each kind that has any."""
        all_ms = (
            self.settle_at_ms(),
            self.compare_at_ms(),
            self.archive_at_ms(),
            self.upkeep_at_ms(),
        )
        return [at for at in all_ms if at is not None]

    def log_ends(self) -> dict[str, int]:
        """The last known log end of each broker."""
        return {broker: heard.answer.log_end for broker, heard in self.heard.items()}

    def archive_lag(self) -> dict[str, int]:
        """Bytes of each broker's log that are not archived yet."""
        return {
            broker: end - self._archived.get(broker, 0) for broker, end in self.log_ends().items()
        }

    def settle_at_ms(self) -> int | None:
        """When to start the next round; None if nothing is to be done."""
        if self.settling.is_running:
            return None
        fresh = [heard for heard in self.heard.values() if heard.broker not in self._is_stale]
        at_ms = [self.settling.next_at_ms(wait) for one in fresh for wait in self._waits_ms(one)]
        return min(at_ms, default=None)

    def _waits_ms(self, heard: Heard) -> list[int]:
        """How long after the last round's start this broker needs the next one, for each reason."""
        waits = []
        if heard.answer.due:
            waits.append(self._rest_ms() if heard.is_news else self._left_over_ms())
        if heard.answer.sink_attempts:
            was_decided = heard.answer.batches_decided != self._batches.get(heard.broker)
            waits.append(self.config.settle_interval_ms if was_decided else ATTEMPTS_MS)
        return waits

    def _rest_ms(self) -> int:
        """The wait while new work keeps coming due.

        It leaves most of the time to other processes.
        """
        took_ms = self.settling.took_ms
        return max(took_ms, min(took_ms * (1 + NEWS_REST), self.config.settle_interval_ms))

    def _left_over_ms(self) -> int:
        """The wait for left-over work. It grows with the length of the last round.

        If a dead database holds up a million transactions, rounds are long and must run rarely.
        """
        took_ms = self.settling.took_ms
        rest_ms = min(took_ms * LEFT_OVER_REST, LEFT_OVER_REST_MS_MAX)
        return max(took_ms + rest_ms, self.config.settle_interval_ms)

    def archive_at_ms(self) -> int | None:
        """When to start the next archive run; None if nothing is new."""
        if self.archiving.is_running or not self.config.archive:
            return None
        has_grown = any(self._archived.get(one, 0) != end for one, end in self.log_ends().items())
        if not has_grown and not self._has_progress:
            return None
        return self.archiving.next_at_ms(self.config.archive_interval_ms)

    def upkeep_at_ms(self) -> int | None:
        """When to start the next upkeep of the lake; None if nothing was archived yet."""
        # Upkeep does not wait for a pause in archiving, because under load there is none.
        if self.keeping_up.is_running or not self._has_archived:
            return None
        return self.keeping_up.next_at_ms(self.config.lake_upkeep_interval_ms)

    def compare_at_ms(self) -> int | None:
        """When to start the next comparison; None without a broker."""
        if self.comparing.is_running or not self.config.compare:
            return None
        if self.comparing.began_at_ms is None:
            return self._compare_from_ms
        has_grown = self.log_ends() != self._compared
        interval_ms = self.config.compare_interval_ms
        return self.comparing.next_at_ms(
            interval_ms if has_grown else max(interval_ms, COMPARE_IDLE_MS)
        )
