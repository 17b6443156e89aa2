"""The one way in which EscrowMQ logs: an event and its facts, in the text and as fields.

log = event_log(__name__)
log.warning("broker_away", extra={"address": "10.0.0.7:10911", "why": "refused"})

Any formatter prints ``broker_away address='10.0.0.7:10911' why='refused'``. Structured logging
reads the same from the record: ``record.event``, ``record.address``, ``record.why``.
"""

from __future__ import annotations

import logging
from typing import Any

#: Characters of each fact in the text; the record's field holds the whole value.
FACT_CHARS_MAX = 1_000

EVENT = "event"
#: Attributes that ``logging`` or this module sets on a record: a fact must not overwrite them.
RECORD_ATTRIBUTES = frozenset(
    {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName", EVENT}
)


class EventLog(logging.LoggerAdapter[logging.Logger]):
    """A logger whose messages are event names and whose ``extra`` holds the event's facts."""

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:  # noqa: ANN401 - as logging declares it
        """Log an event. Its text is formatted only when a handler needs it."""
        assert not args, "the facts of an event go into extra"
        if not self.isEnabledFor(level):
            return
        facts = {
            f"{name}_" if name in RECORD_ATTRIBUTES else name: value
            for name, value in (kwargs.pop("extra", None) or {}).items()
        }
        template = " ".join([str(msg), *(f"{name}=%({name}).{FACT_CHARS_MAX}r" for name in facts)])
        # The facts are arguments: tools that group records by template see one group per event.
        values = (facts,) if facts else ()
        # Report the caller's line, one stack frame up.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        kwargs["extra"] = {EVENT: str(msg), **facts}
        self.logger.log(level, template, *values, **kwargs)


def event_log(name: str) -> EventLog:
    """Return the event log of a module: ``event_log(__name__)``."""
    return EventLog(logging.getLogger(name))
