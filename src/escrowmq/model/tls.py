"""How a client uses TLS: names of files and what to verify. The module opens no file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from os import PathLike, fspath
from typing import Any, Self

from escrowmq.model.errors import RequestRefused

#: Environment variables, by the field that they set. Any of them turns TLS on.
VARIABLES: Mapping[str, str] = {
    "ca_file": "ESCROWMQ_TLS_CA",
    "cert_file": "ESCROWMQ_TLS_CERT",
    "key_file": "ESCROWMQ_TLS_KEY",
    "server_name": "ESCROWMQ_TLS_SERVER_NAME",
}
#: Turns TLS on with the system's CAs, or off in spite of the variables above.
SWITCH = "ESCROWMQ_TLS"
#: ``off`` takes any certificate.
VERIFYING = "ESCROWMQ_TLS_VERIFY"
_SWITCHED = {"on": True, "off": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS of a client. Without arguments, the system's CAs verify the broker."""

    #: PEM file of the CAs that may have signed the broker's certificate, or that certificate
    #: itself; empty means the system's CAs.
    ca_file: str | PathLike[str] = ""
    #: PEM files of the client's certificate and its key, for a broker that asks for one.
    cert_file: str | PathLike[str] = ""
    key_file: str | PathLike[str] = ""
    #: The name that the broker's certificate must have; empty means the address.
    server_name: str = ""
    #: Whether to refuse a broker whose certificate is not good. False protects from listeners, but
    #: not from another server in the broker's place.
    verify: bool = True

    def __post_init__(self) -> None:
        for name in ("ca_file", "cert_file", "key_file"):
            object.__setattr__(self, name, fspath(getattr(self, name)))
        for one, other in (("cert_file", "key_file"), ("key_file", "cert_file")):
            if getattr(self, one) and not getattr(self, other):
                raise RequestRefused("bad_config", f"belongs to tls.{one}", key=f"tls.{other}")


class TlsAddress(str):
    """An address, and the TLS with which to connect to it. It travels to Spark's tasks."""

    __slots__ = ("tls",)

    def __new__(cls, address: str, tls: Tls) -> Self:
        """Return the address."""
        made = super().__new__(cls, address)
        made.tls = tls
        return made

    def __getnewargs__(self) -> tuple[str, Tls]:  # type: ignore[override]  # str has one argument
        """Return what a copy in another process is made of."""
        return str(self), self.tls

    tls: Tls


def tls_of(environ: Mapping[str, str]) -> Tls | None:
    """Return the TLS that environment variables ask for; None if they ask for none."""
    given: dict[str, Any] = {
        name: environ[variable] for name, variable in VARIABLES.items() if environ.get(variable)
    }
    is_on = _switch(environ, SWITCH)
    verify = _switch(environ, VERIFYING)
    if is_on is False or (is_on is None and verify is None and not given):
        return None
    return Tls(**given, verify=verify is not False)


def _switch(environ: Mapping[str, str], variable: str) -> bool | None:
    said = environ.get(variable, "").lower()
    if said and said not in _SWITCHED:
        raise RequestRefused("bad_config", "must be on or off", key=variable, value=said[:64])
    return _SWITCHED.get(said)
