"""Options of ``format("escrowmq")``: read and checked once, on the driver, before anything runs.

Spark passes options as strings and lowercases their names. An error names the option and the
allowed values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from difflib import get_close_matches
from typing import Any

from escrowmq.model.errors import RequestRefused
from escrowmq.model.tls import Tls, TlsAddress

#: Options of Spark itself. Spark adds some to ours, and so do the settings of a SparkSession (the
#: object through which a program uses Spark). They are accepted, and nothing here reads them.
_SPARK = frozenset({"path", "checkpointlocation", "queryname", "outputmode", "mergeschema"})
#: Options about TLS, by the field that they set. The files are on the driver and on each executor.
_TLS = {
    "tlsCa": "ca_file",
    "tlsCert": "cert_file",
    "tlsKey": "key_file",
    "tlsServerName": "server_name",
}
_ADDRESSES = "host:port, several separated by commas"


class Options:
    """The options that a user gave, under the names that we document."""

    def __init__(self, given: Mapping[str, str], known: Collection[str]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        names = {name.lower(): name for name in (*known, *_TLS)}
        for name in self._given:
            if name not in names and name not in _SPARK:
                close = get_close_matches(name, names, n=1)
                hint = f"did you mean {names[close[0]]}? " if close else ""
                there = ", ".join(sorted(names.values()))
                raise bad_option(name, f"not an option here; {hint}there are {there}")

    def text(self, name: str, default: str | None = None) -> str:
        """A string; required if it has no default."""
        value = self._given.get(name.lower(), default)
        if not value and default is None:
            raise bad_option(name, "it must be given")
        assert value is not None
        return value

    def whole(self, name: str, default: int, *, low: int, high: int) -> int:
        """An integer."""
        given = self._given.get(name.lower())
        if given is None:
            return default
        try:
            value = int(given)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise bad_option(name, f"a whole number from {low} to {high}", given)
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """A boolean."""
        value = self._given.get(name.lower(), str(default)).lower()
        if value not in ("true", "false"):
            raise bad_option(name, "one of true, false", value)
        return value == "true"

    def flag_or_none(self, name: str) -> bool | None:
        """A boolean, or None if the user did not give it."""
        return self.flag(name, default=False) if self.is_given(name) else None

    def is_given(self, name: str) -> bool:
        """Whether the user gave this option."""
        return name.lower() in self._given

    def names(self, name: str, between: str = ",") -> tuple[str, ...]:
        """Words separated by commas, or by `between`; empty if the option is not given."""
        given = self._given.get(name.lower(), "")
        return tuple(word for word in (one.strip() for one in given.split(between)) if word)

    def brokers(self) -> tuple[str, ...]:
        """The addresses in ``broker``."""
        addresses = self.names("broker")
        if not addresses:
            raise bad_option("broker", f"it must be given: {_ADDRESSES}")
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not host or not port.isdecimal() or not 0 < int(port) < 2**16:
                raise bad_option("broker", _ADDRESSES, address)
        tls = self._tls()
        return addresses if tls is None else tuple(TlsAddress(one, tls) for one in addresses)

    def _tls(self) -> Tls | None:
        """What the options say about TLS; None leaves it to the environment of each process."""
        given: dict[str, Any] = {
            field: self.text(name) for name, field in _TLS.items() if self.is_given(name)
        }
        for name, other in (("tlsCert", "tlsKey"), ("tlsKey", "tlsCert")):
            if self.is_given(name) and not self.is_given(other):
                raise bad_option(other, f"it belongs to {name}")
        return Tls(**given) if given else None


def refuse_twins(brokers: Iterable[tuple[str, str]]) -> None:
    """Refuse two brokers with one name, because the name tells the rows of two brokers apart."""
    addresses: dict[str, str] = {}
    for name, address in brokers:
        if name in addresses:
            raise RequestRefused(
                "broker_named_twice",
                "give each broker once; two brokers have two names",
                broker=name,
                addresses=[addresses[name], address],
            )
        addresses[name] = address


def bad_option(name: str, allowed: str, value: str | None = None) -> RequestRefused:
    """The error that says which option is wrong, and what it may be."""
    facts = {} if value is None else {"value": value[:256]}
    return RequestRefused("bad_option", allowed, option=name, **facts)
