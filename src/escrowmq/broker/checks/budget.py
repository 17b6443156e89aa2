"""The limit of unanswered back-checks for each producer group.

Stock producers queue few back-checks and drop the others, so a storm of checks would be counted and
never answered. The budget holds where back-checks leave the broker, no matter which process asked
for them.

An unanswered back-check counts until the next one is due. If its group has answered others since,
the producer works through a queue, so it counts for `PATIENCE` more intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from escrowmq.transaction.commands import Decision
from escrowmq.transaction.policy import CheckPolicy
from escrowmq.transaction.records import NEVER, Answered, Asked, Decided

PATIENCE = 3


@dataclass(slots=True, eq=False)
class _Unanswered:
    """Back-checks of one group."""

    #: By head: when its back-check got in line, and NEVER; after it was sent, when that was, and
    #: when the next one is due.
    sent: dict[int, tuple[int, int]] = field(default_factory=dict)
    last_answer_ms: int = 0


@dataclass(slots=True, eq=False)
class CheckBudget:
    """Back-checks that are in line, being sent, or unanswered. Use it from one event loop only."""

    policy: CheckPolicy
    _groups: dict[str, _Unanswered] = field(default_factory=dict)
    _group_of: dict[int, str] = field(default_factory=dict)

    def room(self, group: str, now_ms: int) -> int:
        """Return how many more back-checks of a group may be sent now."""
        mine = self._groups.get(group)
        if mine is None:
            return self.policy.check_budget_per_group
        if len(mine.sent) >= self.policy.check_budget_per_group:
            for head in [head for head in mine.sent if self._is_over(mine, head, now_ms)]:
                self.release(head)
        return max(self.policy.check_budget_per_group - len(mine.sent), 0)

    def take(self, group: str, head: int, now_ms: int) -> bool:
        """Count a back-check that is about to be sent; return False if the budget is used up."""
        if head not in self._group_of and not self.room(group, now_ms):
            return False
        self._group_of[head] = group
        self._groups.setdefault(group, _Unanswered()).sent[head] = now_ms, NEVER
        return True

    def unanswered(self, group: str, now_ms: int) -> list[int]:
        """Return the heads of a group whose back-checks its producers may still answer."""
        mine = self._groups.get(group)
        if mine is None:
            return []
        return [head for head in mine.sent if not self._is_over(mine, head, now_ms)]

    def awaits(self, head: int) -> bool:
        """Whether a back-check of this transaction was sent and is not answered yet."""
        group = self._group_of.get(head)
        return group is not None and self._groups[group].sent[head][1] != NEVER

    def _is_over(self, mine: _Unanswered, head: int, now_ms: int) -> bool:
        sent_at_ms, next_at_ms = mine.sent[head]
        is_answering = mine.last_answer_ms >= sent_at_ms
        patience_ms = PATIENCE * self.policy.check_interval_ms if is_answering else 0
        return now_ms >= next_at_ms + patience_ms

    def counted(self, head: int, asked: Asked, now_ms: int) -> None:
        """Note that a back-check was sent."""
        group = self._group_of.get(head)
        if group is not None:
            self._groups[group].sent[head] = now_ms, asked.next_check_at_ms

    def release(self, head: int) -> None:
        """Stop counting a back-check: it was answered, lost, or not sent."""
        group = self._group_of.pop(head, None)
        if group is not None:
            mine = self._groups[group]
            del mine.sent[head]
            if not mine.sent:
                del self._groups[group]

    def durable(self, decisions: Sequence[Decision], now_ms: int) -> None:
        """Release the back-checks that these decisions answer."""
        if not self._group_of:
            return
        for decision in decisions:
            for record in decision.records:
                if isinstance(record, Decided | Answered) and record.head in self._group_of:
                    self._groups[self._group_of[record.head]].last_answer_ms = now_ms
                    self.release(record.head)
