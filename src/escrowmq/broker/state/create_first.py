"""Signal that a topic or group must be created before a request can be handled."""

from __future__ import annotations

from escrowmq.transaction.commands import PutGroup, PutTopic


class CreateFirst(Exception):
    """Raised by a handler that has done nothing yet: run the command, then call it again."""

    def __init__(self, command: PutTopic | PutGroup) -> None:
        super().__init__(command)
        self.command = command
