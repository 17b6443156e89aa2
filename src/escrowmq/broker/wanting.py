"""What must be in the log before a request can be handled: a topic or a group that it makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from escrowmq.transaction.commands import PutGroup, PutTopic


class Wanted(Exception):
    """Raised by a handler before it has done anything: do this first, then ask it again."""

    def __init__(self, command: PutTopic | PutGroup) -> None:
        super().__init__(command)
        self.command = command
