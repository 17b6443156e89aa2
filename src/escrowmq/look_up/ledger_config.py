"""Settings of a ledger, and masking of its password. Keep the imports light."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

from escrowmq.client.database.ledger_sql import dialect_of
from escrowmq.model.errors import RequestRefused

MASK = "***"

_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Groups: the scheme, the user and password, the rest.
_PARTS = re.compile(r"([^:/?#]+://)([^/?#]*)@(.*)", re.DOTALL)
#: The same for masking. It also matches a password that should have been percent-encoded.
_LOOSE_PARTS = re.compile(r"([^:/?#]+://)(.*)@(.*)", re.DOTALL)
_SECRET_IN_QUERY = re.compile(r"(?i)([?&][^=&]*(?:pass|pwd|secret|token|key)[^=&]*=)([^&#]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """Section ``[ledger.NAME]``.

    A database with a ledger. You choose NAME, from lowercase letters, digits and underscores.
    """

    #: The database URL, as `SqlLedger` takes it. `${VARIABLE}` stands for that environment
    #: variable, so that the file need not contain a password.
    url: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        scheme, separator, _ = self.url.partition("://")
        try:
            dialect_of(_dialect_name(scheme) if separator else "")
        except RequestRefused:
            raise RequestRefused(
                "bad_config",
                "must be a URL such as postgresql://host/database or sqlite:////path/to/file",
                key="url",
            ) from None


def _dialect_name(scheme: str) -> str:
    name = scheme.partition("+")[0]
    return "postgresql" if name == "postgres" else name


def expand(url: str, environ: Mapping[str, str]) -> str:
    """Replace each ``${NAME}`` with that environment variable.

    In the user and password part, values are percent-encoded, so a password may contain any
    character. Elsewhere a value is inserted as it is, so it may also be a host or a whole URL.

    Raises:
        RequestRefused: ``bad_config``, with the variable that is not set.
    """
    split = _PARTS.fullmatch(url)
    if split is None:
        return _filled(url, environ)
    scheme, secret, rest = split.groups()
    quoted = {name: quote(value, safe="") for name, value in environ.items()}
    return f"{_filled(scheme, environ)}{_filled(secret, quoted)}@{_filled(rest, environ)}"


def _filled(text: str, values: Mapping[str, str]) -> str:
    for name in _VARIABLE.findall(text):
        if name not in values:
            raise RequestRefused("bad_config", f"${{{name}}} is not in the environment", key="url")
    return _VARIABLE.sub(lambda match: values[match[1]], text)


def masked(url: str) -> str:
    """The URL as it may be shown: variables appear by name, other secrets are masked."""
    split = _LOOSE_PARTS.fullmatch(url)
    if split is not None:
        scheme, secret, rest = split.groups()
        user, colon, password = secret.partition(":")
        url = f"{scheme}{user}{colon}{_mask(password)}@{rest}"
    return _SECRET_IN_QUERY.sub(lambda match: match[1] + _mask(match[2]), url)


def scrubbed(text: str, url: str) -> str:
    """A database driver's error text, without the secrets of the database URL."""
    text = text.replace(url, masked(url))
    split = _LOOSE_PARTS.fullmatch(url)
    secrets = [found[2] for found in _SECRET_IN_QUERY.finditer(url)]
    if split is not None:
        secrets.append(split[2].partition(":")[2])
    for secret in secrets:
        for form in {secret, unquote(secret)} - {""}:
            text = text.replace(form, MASK)
    return text


def _mask(secret: str) -> str:
    return secret if not secret or _VARIABLE.fullmatch(secret) else MASK
