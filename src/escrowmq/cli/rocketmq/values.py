"""Readers of the values in a RocketMQ broker's file: each converts one to a value of ours.

``convert`` raises ``ValueError`` with a text that says what is allowed. The bounds of our settings
are not checked here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Protocol

_INTEGER = re.compile(r"[+-]?[0-9]{1,19}")
_PORT = re.compile(r".+:([0-9]{1,5})")
#: Error for a value with blanks around it, which Java reads as false, or ignores.
_BLANK = "remove the blanks around it: with them, RocketMQ does not read it as written"


class ValueReader(Protocol):
    """Converts the values of one setting."""

    @property
    def rule(self) -> str:
        """What to do by hand to convert a value; empty if it stays the same."""

    def convert(self, text: str) -> bool | int | str:
        """Return our value, or raise ``ValueError``."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text that stays the same. RocketMQ removes the blanks around it, too."""

    rule: str = ""

    def convert(self, text: str) -> str:
        """Return the text without the blanks around it."""
        if not (kept := text.strip()):
            raise ValueError("must not be empty")
        if not kept.isprintable():
            raise ValueError("must have printable characters only")
        return kept


@dataclass(frozen=True, slots=True)
class IpAddress:
    """An address that clients connect to. Stored messages hold it, so it is not a host name."""

    rule: str = ""

    def convert(self, text: str) -> str:
        """Return the address."""
        try:
            is_any = ip_address(text.strip()).is_unspecified
        except ValueError:
            raise ValueError("must be an IP address, not a host name") from None
        if is_any:
            raise ValueError("must be an address that clients can connect to")
        return text.strip()


@dataclass(frozen=True, slots=True)
class Number:
    """An integer, maybe in another unit than ours."""

    #: RocketMQ's unit, if it is another one than ours.
    unit: str = ""
    #: How many of our units one of RocketMQ's has.
    factor: int = 1

    @property
    def rule(self) -> str:
        """How to convert the unit."""
        return f"multiply {self.unit} by {self.factor}" if self.unit else ""

    def convert(self, text: str) -> int:
        """Return the number in our unit."""
        if text != text.strip():
            raise ValueError(_BLANK)
        if not _INTEGER.fullmatch(text):
            raise ValueError("must be an integer of at most 19 digits")
        return int(text) * self.factor


@dataclass(frozen=True, slots=True)
class Switch:
    """A boolean. RocketMQ reads every word other than ``true`` as false."""

    rule: str = ""

    def convert(self, text: str) -> bool:
        """Return the boolean."""
        if text != text.strip():
            raise ValueError(_BLANK)
        if text.lower() not in ("true", "false"):
            raise ValueError("must be true or false; RocketMQ reads any other word as false")
        return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several words, each with a word of ours."""

    #: Our word for each of RocketMQ's.
    words: Mapping[str, str]

    @property
    def rule(self) -> str:
        """Which of RocketMQ's words is which of ours."""
        return ", ".join(f"{theirs} is {ours}" for theirs, ours in self.words.items())

    def convert(self, text: str) -> str:
        """Return our word."""
        if text.strip() not in self.words:
            raise ValueError(f"must be {' or '.join(self.words)}")
        return self.words[text.strip()]


@dataclass(frozen=True, slots=True)
class PortOfAddresses:
    """The port of one or more addresses such as ``10.0.0.1:9876;10.0.0.2:9876``."""

    rule: str = "use the port alone"

    def convert(self, text: str) -> int:
        """Return the port, which all addresses must share."""
        parts = [part.strip() for part in text.split(";") if part.strip()]
        found = [_PORT.fullmatch(part) for part in parts]
        ports = {int(match[1]) for match in found if match}
        if not parts or None in found:
            raise ValueError("must be HOST:PORT, several separated by semicolons")
        if len(ports) > 1:
            raise ValueError("must have the same port in all addresses")
        return ports.pop()
