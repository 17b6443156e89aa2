"""Reads the config once and passes it down: flags > environment > TOML file > defaults.

Each section is one frozen dataclass that checks its own values. This module finds the values,
converts them to their types, and remembers where each one came from.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, get_type_hints

from escrowmq.broker.config import AccessConfig, BrokerConfig, TlsConfig, TopicsConfig, WriterConfig
from escrowmq.broker.periodic.backup_schedule import BackupConfig
from escrowmq.broker.watch import alert_config
from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.cli.convert import from_text, from_toml
from escrowmq.cli.rocketmq.hints import hint_for, is_broker_file
from escrowmq.look_up.ledger_config import LedgerConfig, expand, masked
from escrowmq.model.errors import RequestRefused
from escrowmq.model.limits_config import LimitsConfig
from escrowmq.model.log_lines import LogConfig
from escrowmq.pipeline.config import PipelineConfig
from escrowmq.store.config import StoreConfig
from escrowmq.transaction.policy import CheckPolicy

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

#: A package with settings adds its dataclass here.
SECTIONS: Mapping[str, type[DataclassInstance]] = {
    "access": AccessConfig,
    "alerts": AlertsConfig,
    "backup": BackupConfig,
    "broker": BrokerConfig,
    "limits": LimitsConfig,
    "log": LogConfig,
    "pipeline": PipelineConfig,
    "store": StoreConfig,
    "tls": TlsConfig,
    "topics": TopicsConfig,
    "transaction": CheckPolicy,
    "writer": WriterConfig,
}
#: The section that may occur many times, each with its own name: ``[ledger.NAME]``.
LEDGER = "ledger"
# Narrower than TOML: the name must also fit into the name of an environment variable.
_LEDGER_NAME = re.compile(r"ledger\.[a-z][a-z0-9]*(_[a-z0-9]+)*")

#: Settings that may hold a token or a password, each with the function that masks it.
SECRETS: Mapping[str, Callable[[str], str]] = {
    "alerts.url": alert_config.masked,
    "transaction.state_url": masked,
}

#: What to do with a file of RocketMQ.
CONVERT = "if it is the file of a RocketMQ broker, escrowmq config import converts it"

ENV_PREFIX = "ESCROWMQ_"
ENV_FILE = "ESCROWMQ_CONFIG"
DEFAULT = "default"
FLAG = "flag"

Section = TypeVar("Section")
Given = TypeVar("Given")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredValue:
    """One value and where it came from."""

    #: The setting, as ``section.key``.
    name: str
    #: Secrets are masked in ``Config.settings``.
    value: object
    #: ``default``, ``file PATH``, ``env NAME`` or ``flag``.
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """All checked sections, and all settings with their origins."""

    sections: Mapping[str, object]
    settings: tuple[ConfiguredValue, ...]
    #: Keyed by the NAME of ``[ledger.NAME]``.
    ledgers: Mapping[str, LedgerConfig]

    def section(self, kind: type[Section]) -> Section:
        """Return the section of this dataclass: ``config.section(StoreConfig)``."""
        return next(section for section in self.sections.values() if isinstance(section, kind))


def load(
    *, file: Path | None = None, environ: Mapping[str, str], flags: Sequence[str] = ()
) -> Config:
    """Read and check all settings; raise ``RequestRefused`` for the first problem.

    ``flags`` are ``section.key=value``. Without ``file``, ``ESCROWMQ_CONFIG`` may name one.
    """
    if file is None and environ.get(ENV_FILE):
        file = Path(environ[ENV_FILE])
    given: dict[str, ConfiguredValue] = {}
    # Sources in rising priority: a later one replaces the values of an earlier one.
    for source in (_from_file(file), _from_environ(environ), _from_flags(flags)):
        given.update((setting.name, setting) for setting in source)
    secrets = {name: given[name] for name in SECRETS if name in given}
    for name, secret in secrets.items():
        given[name] = replace(secret, value=_secret(secret, environ, str))
    sections = {section: _build(section, given) for section in SECTIONS}
    for name, secret in secrets.items():
        given[name] = replace(secret, value=SECRETS[name](str(secret.value)))
    settings = [
        given.get(f"{section}.{key}")
        or ConfiguredValue(
            name=f"{section}.{key}", value=getattr(sections[section], key), origin=DEFAULT
        )
        for section, key in _known()
    ]
    urls = {name: setting for name, setting in given.items() if name.startswith(f"{LEDGER}.")}
    ledgers = {
        name.split(".")[1]: _secret(urls[name], environ, lambda url: LedgerConfig(url=url))
        for name in sorted(urls)
    }
    settings += [replace(urls[name], value=masked(str(urls[name].value))) for name in sorted(urls)]
    return Config(sections=sections, settings=tuple(settings), ledgers=ledgers)


def _build(section: str, given: Mapping[str, ConfiguredValue]) -> object:
    names = {key: f"{section}.{key}" for known, key in _known() if known == section}
    values = {key: given[name].value for key, name in names.items() if name in given}
    try:
        return replace(SECTIONS[section](), **values)
    except RequestRefused as error:
        culprit = given.get(str(error.fields["key"]))
        origin = culprit.origin if culprit else DEFAULT
        raise RequestRefused("bad_config", error.message, **error.fields, origin=origin) from None


def _secret(
    setting: ConfiguredValue, environ: Mapping[str, str], make: Callable[[str], Given]
) -> Given:
    """Make a value from a setting whose ``${NAME}`` come from the environment."""
    try:
        return make(expand(str(setting.value), environ))
    except RequestRefused as error:
        # The error leaves out the value, which may hold a password or a token.
        raise RequestRefused(
            "bad_config", error.message, key=setting.name, origin=setting.origin
        ) from None


def _from_file(path: Path | None) -> Iterator[ConfiguredValue]:
    if path is None:
        return
    text = ""
    try:
        text = path.read_text(encoding="utf-8")
        tables = tomllib.loads(text)
    except OSError as error:
        why = error.strerror or "cannot be read"
        raise RequestRefused("unreadable_config", why, path=str(path)) from error
    except ValueError as error:  # Not TOML, or not UTF-8.
        why = f"{error}; {CONVERT}" if is_broker_file(text) else str(error)
        raise RequestRefused("unreadable_config", why, path=str(path)) from error
    origin = f"file {path}"
    for section, table in _with_ledgers(tables):
        if not isinstance(table, dict):
            # The error leaves out the value, which may be a misplaced secret.
            why = hint_for(section) or "keys belong in a [section]"
            raise RequestRefused("bad_config", why, key=section, origin=origin)
        _check_section(section, origin)  # An empty table reaches no other check.
        for key, value in table.items():
            yield _setting(section, key, value, from_toml, origin)


def _with_ledgers(tables: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Yield each section of a file, and each ledger as its own section."""
    for section, table in tables.items():
        if section == LEDGER and isinstance(table, dict):
            for name, ledger in table.items():
                # Keep a ledger without a URL: the environment may supply it.
                is_table = isinstance(ledger, dict)
                yield f"{LEDGER}.{name}", {"url": "", **ledger} if is_table else ledger
        else:
            yield section, table


def _from_environ(environ: Mapping[str, str]) -> Iterator[ConfiguredValue]:
    # Container platforms set variables such as ESCROWMQ_PORT for a service named escrowmq, so only
    # those with two underscores are ours. A known setting with one underscore is an error.
    slips = {f"{section}_{key}": f"{section}__{key}".upper() for section, key in _known()}
    for variable in sorted(environ):
        if not variable.startswith(ENV_PREFIX):
            continue
        origin = f"env {variable}"
        name = variable.removeprefix(ENV_PREFIX).lower()
        section, underscores, key = name.replace("__", ".").rpartition(".")
        if underscores:
            yield _setting(section, key, environ[variable], from_text, origin)
        elif name in slips:
            meant = f"did you mean {ENV_PREFIX}{slips[name]}?"
            raise RequestRefused("bad_config", meant, key=variable, origin=origin)
        elif "_" not in name and (hint := hint_for(name)):
            raise RequestRefused("bad_config", hint, key=variable, origin=origin)


def _from_flags(flags: Iterable[str]) -> Iterator[ConfiguredValue]:
    for flag in flags:
        name, equals, text = flag.partition("=")
        section, dot, key = name.rpartition(".")
        if not equals or not dot:
            why = hint_for(name) or "write it as section.key=value"
            raise RequestRefused("bad_config", why, key=name, value=text, origin=FLAG)
        yield _setting(section, key, text, from_text, FLAG)


def _setting(
    section: str, key: str, given: Given, convert: Callable[[object, Given], object], origin: str
) -> ConfiguredValue:
    _check_section(section, origin)
    name = f"{section}.{key}"
    types = get_type_hints(SECTIONS.get(section, LedgerConfig))
    if key not in types:
        theirs = hint_for(key)
        hint = f"; {theirs}" if theirs else _did_you_mean(key, types)
        raise RequestRefused("bad_config", f"no such key{hint}", key=name, origin=origin)
    try:
        return ConfiguredValue(name=name, value=convert(types[key], given), origin=origin)
    except ValueError as error:
        facts = {} if section not in SECTIONS else {"value": given}  # A ledger's URL is a secret.
        raise RequestRefused("bad_config", str(error), key=name, **facts, origin=origin) from None


def _check_section(section: str, origin: str) -> None:
    if section == LEDGER or section.startswith(f"{LEDGER}."):
        if not _LEDGER_NAME.fullmatch(section):
            hint = "write it as [ledger.NAME], with small letters, digits and underscores"
            raise RequestRefused("bad_config", hint, key=section, origin=origin)
    elif section not in SECTIONS:
        hint = _did_you_mean(section, [*SECTIONS, LEDGER])
        raise RequestRefused("bad_config", f"no such section{hint}", key=section, origin=origin)


def _did_you_mean(word: str, known: Iterable[str]) -> str:
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1)
    return f", did you mean {close[0]}?" if close else f", there are {', '.join(known)}"


def _known() -> Iterator[tuple[str, str]]:
    return ((section, field.name) for section, kind in SECTIONS.items() for field in fields(kind))
