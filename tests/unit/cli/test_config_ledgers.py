"""Ledgers in the config: each has a name, and their passwords are never shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.cli.config import Config, load
from escrowmq.cli.config_commands import as_table, shapes_of
from escrowmq.model.errors import RequestRefused

SECRET = "s3cr3t"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "escrowmq.toml"


def urls(config: Config) -> dict[str, str]:
    return {name: ledger.url for name, ledger in config.ledgers.items()}


def test_there_are_none_unless_one_is_named() -> None:
    assert load(environ={}).ledgers == {}


def test_each_ledger_has_its_name(file: Path) -> None:
    file.write_text(
        "[ledger.orders]\nurl = 'postgresql://db/orders'\n[ledger.a_b1]\nurl = 'sqlite:///x.db'\n"
    )
    assert urls(load(file=file, environ={})) == {
        "orders": "postgresql://db/orders",
        "a_b1": "sqlite:///x.db",
    }


def test_a_flag_beats_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text("".join(f"[ledger.{name}]\nurl = 'sqlite:///file'\n" for name in "abc"))
    environ = {f"ESCROWMQ_LEDGER__{name}__URL": "sqlite:///environ" for name in ("B", "C")}
    config = load(file=file, environ=environ, flags=["ledger.c.url=sqlite:///flag"])
    assert urls(config) == {"a": "sqlite:///file", "b": "sqlite:///environ", "c": "sqlite:///flag"}
    origins = {setting.name: setting.origin for setting in config.settings}
    assert origins["ledger.b.url"] == "env ESCROWMQ_LEDGER__B__URL"


def test_the_environment_may_have_the_url_of_one_that_the_file_names(file: Path) -> None:
    file.write_text("[ledger.orders]\n")
    environ = {"ESCROWMQ_LEDGER__ORDERS__URL": "sqlite:///x"}
    assert urls(load(file=file, environ=environ)) == {"orders": "sqlite:///x"}


@pytest.mark.parametrize(
    ("url", "expanded"),
    [
        ("postgresql://app:${PW}@db/orders", "postgresql://app:p%40s%2Fs%3Aw%25@db/orders"),
        # Only user and password are quoted. Other variables are inserted unchanged.
        ("postgresql://app:x@${HOST}/orders", "postgresql://app:x@db:5432/orders"),
        ("${WHOLE}", "postgresql://u:p%40@h/d"),
        ("postgresql://${HOST}/${NAME}", "postgresql://db:5432/orders"),
        # Not the syntax of a variable.
        ("sqlite:///$HOME/{x}", "sqlite:///$HOME/{x}"),
    ],
)
def test_variables_stand_for_secrets(url: str, expanded: str) -> None:
    environ = {
        "PW": "p@s/s:w%",
        "HOST": "db:5432",
        "NAME": "orders",
        "WHOLE": "postgresql://u:p%40@h/d",
    }
    assert urls(load(environ=environ, flags=[f"ledger.a.url={url}"])) == {"a": expanded}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        (f"postgresql://app:{SECRET}@db/orders", "postgresql://app:***@db/orders"),
        (
            f"postgresql://db/x?user=a&password={SECRET}&b=1",
            "postgresql://db/x?user=a&password=***&b=1",
        ),
        # A password with characters that should have been quoted.
        (f"postgresql://app:{SECRET}/{SECRET}@{SECRET}@db/x", "postgresql://app:***@db/x"),
        # A variable's name reveals nothing.
        ("postgresql://app:${PW}@db/orders", "postgresql://app:${PW}@db/orders"),
        ("postgresql://app:a${PW}@db/orders", "postgresql://app:***@db/orders"),
        ("sqlite:////var/x.db", "sqlite:////var/x.db"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    config = load(environ={"PW": SECRET}, flags=[f"ledger.a.url={url}"])
    (value,) = (setting.value for setting in config.settings if setting.name == "ledger.a.url")
    assert value == shown
    assert SECRET not in as_table(config) + str(shapes_of(config)) + repr(config)


@pytest.mark.parametrize(
    ("text", "message", "key"),
    [
        (f"[ledger.a]\nurl = '{SECRET}'", "must be a URL such as", "ledger.a.url"),
        (f"[ledger.a]\nurl = 'oracle://u:{SECRET}@h/d'", "must be a URL such as", "ledger.a.url"),
        (f"[ledger.a]\nurl = ['{SECRET}']", "must be a string", "ledger.a.url"),
        ("[ledger.a]", "must be a URL such as", "ledger.a.url"),
        ("[ledger.a]\nurl = 'sqlite:///${NO}'", "${NO} is not in the environment", "ledger.a.url"),
        ("[ledger.a]\nurk = ''", "no such key, did you mean url?", "ledger.a.urk"),
        (f"[ledger]\nurl = '{SECRET}'", "keys belong in a [section]", "ledger.url"),
        ("[ledger.A-b]", "write it as [ledger.NAME]", "ledger.A-b"),
        ("[ledger.a__b]", "write it as [ledger.NAME]", "ledger.a__b"),
    ],
)
def test_a_bad_ledger_is_refused_without_its_secret(
    file: Path, text: str, message: str, key: str
) -> None:
    file.write_text(text)
    with pytest.raises(RequestRefused) as refused:
        load(file=file, environ={})
    assert refused.value.code == "bad_config"
    assert message in refused.value.message
    assert (refused.value.fields["key"], refused.value.fields["origin"]) == (key, f"file {file}")
    assert SECRET not in str(refused.value)
