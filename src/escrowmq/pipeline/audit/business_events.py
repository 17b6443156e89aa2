"""Events: tell a row's messages apart if a row of the user's table has several.

An order may have one message when it is created and another when it is paid, in one topic and under
one key. Each event is compared separately: its messages, and the rows that must have one.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 -- the name that every Spark reader knows

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.message_columns import PROPERTIES, TAGS

EVENT = "event"

_TAG, _PROPERTY = "tag:", "property:"
_WHERE = re.compile(r"\s+where\s+", re.IGNORECASE)


@dataclass(frozen=True)
class BusinessEvent:
    """One of the messages that a row must have."""

    #: ``tag:NAME`` or ``property:NAME=VALUE``; empty for a message of any kind.
    which: str = ""
    #: An SQL condition for the rows that must have it, besides that of the table.
    where: str = ""

    def __post_init__(self) -> None:
        if self.which and not self.tag and not all(self.named_property):
            raise RequestRefused(
                "bad_option",
                "tag:NAME or property:NAME=VALUE, then optionally: where CONDITION",
                option="--event",
                value=self.which[:256],
            )

    @property
    def tag(self) -> str:
        """The tag of its messages; empty if a property identifies them."""
        return self.which.removeprefix(_TAG) if self.which.startswith(_TAG) else ""

    @property
    def named_property(self) -> tuple[str, str]:
        """The property of its messages and its value; both empty if there is none."""
        if not self.which.startswith(_PROPERTY):
            return "", ""
        name, _, value = self.which.removeprefix(_PROPERTY).partition("=")
        return name, value

    @property
    def column(self) -> str:
        """The column of messages that identifies the event; empty if none is needed."""
        return (TAGS if self.tag else PROPERTIES) if self.which else ""

    def is_of(self, tags: str | None, properties: Mapping[str, str]) -> bool:
        """Whether a message belongs to this event."""
        name, value = self.named_property
        if name:
            return properties.get(name) == value
        return not self.which or tags == self.tag

    def is_of_column(self) -> Column:
        """Whether a row of messages belongs to this event, as a Column."""
        name, value = self.named_property
        if name:
            return F.col(PROPERTIES)[name] == value
        return F.col(TAGS) == self.tag if self.which else F.lit(True)  # noqa: FBT003 -- a column's value


def business_event(text: str) -> BusinessEvent:
    """Parse an event from an option: ``tag:paid``, or ``tag:paid where paid = 1``."""
    which, *where = _WHERE.split(text.strip(), maxsplit=1)
    if not which:
        # An empty event would match any message, so force an error.
        return BusinessEvent(_TAG)
    return BusinessEvent(which, *where)


def by_event(messages: DataFrame, events: tuple[BusinessEvent, ...]) -> DataFrame:
    """Messages with each event that they belong to. Messages without an event are left out."""
    found = [
        messages.where(event.is_of_column()).withColumn(EVENT, F.lit(event.which))
        for event in events
    ]
    return reduce(lambda one, other: one.unionByName(other), found)
