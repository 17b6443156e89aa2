"""Leads a state store after the log: collects what changed, and hands it over in batches.

It belongs to the store's thread. ``next_work`` returns work that waits for a disk or a database;
any one thread may do it, one piece at a time. While the state store is away, changes only leave
their half offsets here; beyond a limit, the whole state store is made equal again, range by
range; ``ranges.py`` reads the ranges.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from escrowmq.model.cut_off import cutting_off
from escrowmq.model.errors import EscrowError, StoreUnusable, Unavailable
from escrowmq.model.event_log import event_log
from escrowmq.store.states.notes import BATCH_ROWS, StateNotes
from escrowmq.store.states.ranges import StateRanges
from escrowmq.store.states.state_rows import origins_of, rows_at
from escrowmq.transaction.state_store import StateBatch, StatePosition, StatesLostTrack

if TYPE_CHECKING:
    from collections.abc import Callable

    from escrowmq.store.store import Store
    from escrowmq.transaction.state_store import StateClaim, StateStore

log = event_log(__name__)

POSITION_BYTES = 1024 * 1024
"""The position moves at least this often, also if no transaction changed."""
WAIT_S = 65.0
"""A call that takes longer is interrupted. A database ends a statement by itself after 60 s."""
LOST_MAX = 3
"""How often a state store may lose track before ``follow_all`` gives up."""


class FollowerWork(msgspec.Struct, frozen=True):
    """Work for the thread of the state store, and what the store's thread does with the result."""

    run: Callable[[], Any]
    then: Callable[[Any], None]


class Follower:
    """One state store, and what it has not seen yet."""

    def __init__(self, store: Store, states: StateStore, claim: Callable[[], StateClaim]) -> None:
        self.states = states
        self._store = store
        self._claim = claim
        #: How far the state store is; None while that is unknown.
        self.position: StatePosition | None = None
        #: Why the state store cannot follow now; None if it can.
        self.problem: EscrowError | None = None
        #: Records that differed from the log, since the start.
        self.disagreed = 0
        #: Records that were written because the state store was behind, since the start.
        self.caught_up = 0
        #: Whether a thread of its own does the work.
        self.is_led = False
        #: How long a call may take that the store's thread makes itself.
        self.wait_s = WAIT_S
        self._is_open = False
        #: Whether all ranges must be compared: first, the state store is asked which it has.
        self._must_replace = True
        #: Whether a difference is an error: the state store said that it is where the log is.
        self._was_current = False
        self._replaced = 0
        #: Rows before this one were handed over.
        self._appended_to = 0
        self.notes = StateNotes(store)
        self.ranges = StateRanges(store, states)
        #: Decisions noted while ranges were made equal: the ranges may have them already.
        self._unsure_notes = 0
        self._batch: StateBatch | None = None
        self._wants_beat = self._wants_low_water = False
        #: Every half message before this one was decided at the last beat; -1 before the first.
        self.low_water = -1
        #: Whether the ranges are only compared: then no change may be outstanding.
        self._is_verifying = False
        #: Durable end of the log when the ranges were asked for.
        self._replacing_from = 0
        #: Times that the state store lost track; results of work from before are void.
        self._times_lost = 0

    # What the state store has not seen yet.

    @property
    def lag_rows(self) -> int:
        """Rows and changes that the state store has not seen."""
        return self._store.table.end - self._appended_to + len(self.notes)

    @property
    def is_equal(self) -> bool:
        """Whether the state store has everything up to its position."""
        return self.is_replaced and self._batch is None

    @property
    def state(self) -> str:
        """What it does: `follows`, `catching_up`, `away` or `refused`."""
        if self.problem is not None:
            return "refused" if isinstance(self.problem, StoreUnusable) else "away"
        return "follows" if self.has_caught_up else "catching_up"

    @property
    def has_caught_up(self) -> bool:
        """Whether the state store was made equal to the core, and follows since."""
        return self.position is not None and (self._is_verifying or self.is_replaced)

    @property
    def is_replaced(self) -> bool:
        """Whether no range waits to be made equal."""
        return self._is_open and not (self._must_replace or self.ranges.bases)

    @property
    def log_offset(self) -> int:
        """The log offset up to which the state store has followed; 0 if that is unknown."""
        if self.is_equal and not self.lag_rows:
            return self._store.durable_end
        return 0 if self.position is None else self.position.log_offset

    # Work.

    def follow_all(self) -> None:
        """Let the state store follow up to the durable end, in this thread; stop at a problem."""
        lost = 0
        while lost < LOST_MAX and (work := self.next_work()) is not None:
            try:
                with cutting_off(self.wait_s, self.interrupt):
                    result = work.run()
            except StatesLostTrack as error:
                lost += 1
                self.failed(error)
            except EscrowError as error:
                self.failed(error)
                return
            else:
                work.then(result)

    def interrupt(self) -> None:
        """End the call under way from another thread, if the state store waits for a network."""
        interrupt = getattr(self.states, "interrupt", None)
        if interrupt is not None:
            interrupt()

    def beat(self) -> None:
        """Have the state store hear from this broker soon, also if nothing changes."""
        self._wants_beat = self._wants_low_water = True

    def verify(self) -> None:
        """Have the whole state store compared with the core soon."""
        if self.is_replaced:
            self._must_replace = self._is_verifying = True

    def next_work(self) -> FollowerWork | None:
        """Return what to do next. Call it when memory holds exactly what is durable."""
        work = self._next_work()
        if work is None:
            return None
        times_lost = self._times_lost

        def then(result: Any) -> None:  # noqa: ANN401 - of the kind of work
            # A scan beside the work may have found that the state store lost track.
            if times_lost == self._times_lost:
                work.then(result)

        return FollowerWork(work.run, then)

    def _next_work(self) -> FollowerWork | None:
        if isinstance(self.problem, StoreUnusable):
            return None
        if self.notes.are_too_many:
            # A state store that is so far behind differs, and that is no error.
            self._must_replace, self._is_verifying, self._was_current = True, False, False
        if not self._is_open:
            return FollowerWork(self._open, self._opened)
        is_behind = self._batch is not None or self.lag_rows > 0
        if not (self._is_verifying and is_behind):
            if self._must_replace:
                return FollowerWork(self.states.parts_held, self._begin_replacing)
            if self.ranges.bases:
                return self._replace_next()
        return self._follow_next()

    def failed(self, error: EscrowError | StatesLostTrack) -> None:
        """Note why work failed; it is tried again unless an operator must act."""
        if isinstance(error, StatesLostTrack):
            # A database that failed over may have lost batches.
            log.warning("state_store_went_back", extra={"store": self.states.name})
            self._times_lost += 1
            # It may have lost this broker's claim as well.
            self._is_open, self._batch, self._is_verifying = False, None, False
            return
        if self.problem is None or self.problem.code != error.code:
            event = "state_store_away" if isinstance(error, Unavailable) else "state_store_refused"
            log.warning(event, extra={"store": self.states.name, "error": str(error)})
        self.problem = error

    def close(self) -> None:
        """Release the state store, and tell it how far it is if it has everything."""
        if self.is_led:
            # The state store's thread never came back, and may still use the state store.
            return
        is_current = self.is_equal and self.problem is None
        position = self.here(self._appended_to) if is_current and not self.lag_rows else None
        try:
            with cutting_off(self.wait_s, self.interrupt):
                self.states.close(position)
        except Unavailable as away:
            log.warning("state_store_away", extra={"store": self.states.name, "error": str(away)})
        except StatesLostTrack:
            # The next start compares everything.
            log.warning("state_store_went_back", extra={"store": self.states.name})

    def give_back(self) -> None:
        """Release the state store as it is."""
        if not self.is_led:
            self.states.close(None)

    def _open(self) -> StatePosition | None:
        return self.states.open(self._claim())

    def _opened(self, position: StatePosition | None) -> None:
        self._is_open = self._must_replace = True
        self._is_verifying = False
        is_current = position is not None and position.log_offset == self._store.recovered_at
        # A state store that lost track differs, and that is no error.
        self._was_current = is_current and not self._times_lost
        self._note_return()

    def _note_return(self) -> None:
        if self.problem is not None:
            log.warning("state_store_back", extra={"store": self.states.name})
        self.problem = None

    def _begin_replacing(self, held: list[int]) -> None:
        self.ranges.begin(held)
        self._replaced = 0
        self._must_replace = False
        self._replacing_from = self._store.durable_end
        if not self._is_verifying:
            self._batch = None
            self.notes.clear()
        self._note_return()

    def _replace_next(self) -> FollowerWork:
        """Read on in the next range, and have it made equal once all of it was read."""
        is_last = len(self.ranges.bases) == 1
        part = self.ranges.read_on(with_files=not self.is_led)
        if part is None:
            # Other work of this thread goes first.
            return FollowerWork(_nothing, _ignored)
        if is_last:
            self._appended_to = min(part.end, part.rows_end)
        replace = self.states.replace
        if self.is_led:
            replace = self.ranges.verified if self._is_verifying else self.ranges.filled
        return FollowerWork(partial(replace, part), self._part_replaced)

    def _part_replaced(self, differed: int) -> None:
        self._replaced += differed
        self.ranges.end_first()
        self._note_return()
        if self.ranges.bases:
            return
        self._unsure_notes = 0 if self._is_verifying else self.notes.decisions
        self._is_verifying = False
        epoch = self._store.core.lineage.epoch
        self.position = StatePosition(epoch, self._replacing_from, self._appended_to)
        # The state store must learn its position, too.
        self._wants_beat = True
        if self._replaced and self._was_current:
            self.disagreed += self._replaced
            facts = {"store": self.states.name, "records": self._replaced}
            log.warning("state_store_disagreed", extra={**facts, "what": "the log wins"})
        elif self._replaced:
            self.caught_up += self._replaced
            facts = {"store": self.states.name, "records": self._replaced}
            log.info("state_store_caught_up", extra=facts)
        # From now on, a difference is an error.
        self._was_current = True

    def _followed(self, unheld: int) -> None:
        batch, self._batch = self._batch, None
        assert batch is not None
        self._note_return()
        self.position = batch.position
        if unheld and self._unsure_notes <= 0:
            facts = {"store": self.states.name, "records": unheld}
            log.warning("state_store_disagreed", extra={**facts, "what": "the log wins"})
            self.disagreed += unheld
            self._must_replace, self._is_verifying, self._was_current = True, False, False
        self._unsure_notes = max(self._unsure_notes - len(batch.decided), 0)

    # Batches.

    def here(self, rows_end: int) -> StatePosition:
        """Return the position of a state store that has everything, up to this row."""
        return StatePosition(self._store.core.lineage.epoch, self._store.durable_end, rows_end)

    def _follow_next(self) -> FollowerWork | None:
        if self._batch is None and self._wants_low_water:
            return FollowerWork(self.states.low_water, self._note_low_water)
        if self._batch is None:
            self._batch = self._next_batch()
        batch = self._batch
        if batch is None:
            return None
        return FollowerWork(lambda: self.states.follow(batch), self._followed)

    def _note_low_water(self, low_water: int) -> None:
        self.low_water, self._wants_low_water = low_water, False
        self._note_return()

    def _next_batch(self) -> StateBatch | None:
        store, known = self._store, self._appended_to
        assert self.position is not None
        end = min(store.table.end, known + BATCH_ROWS)
        if not self.lag_rows:
            moved = store.durable_end - self.position.log_offset
            if moved < POSITION_BYTES and not self._wants_beat:
                return None
        self._wants_beat = False
        appended = rows_at(store, np.arange(known, end))
        decided = self.notes.take_decided(known)
        checked = self.notes.take_checked(known)
        self._appended_to = end
        is_whole = not self.lag_rows
        log_offset = store.durable_end if is_whole else self.position.log_offset
        appended = appended[appended["size"] > 0]
        rows = np.concatenate([appended, decided, checked])
        self.ranges.forget_changed(rows["half_offset"])
        return StateBatch(
            appended=appended,
            decided=decided,
            checked=checked,
            origins=origins_of(store, rows),
            position=StatePosition(store.core.lineage.epoch, log_offset, end),
        )


def _nothing() -> None:
    """Do nothing: the work is only to come back."""


def _ignored(_: None) -> None:
    """Ignore the result of ``_nothing``."""
