from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.watch.alert_config import AlertsConfig
from escrowmq.cli.config import SECTIONS, Config, load
from escrowmq.cli.config_commands import as_table, shapes_of
from escrowmq.cli.shapes.tool_shapes import SettingShape
from escrowmq.model.errors import RequestRefused
from escrowmq.store.config import StoreConfig
from escrowmq.transaction.policy import CheckPolicy


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "escrowmq.toml"


def origin(config: Config, name: str) -> str:
    return next(setting.origin for setting in config.settings if setting.name == name)


def test_without_anything_given_the_defaults_hold() -> None:
    config = load(environ={})
    assert config.section(StoreConfig) == StoreConfig()
    assert config.section(CheckPolicy) == CheckPolicy()
    assert {setting.origin for setting in config.settings} == {"default"}
    assert {setting.name.partition(".")[0] for setting in config.settings} == SECTIONS.keys()


def test_a_flag_beats_the_environment_which_beats_the_file(file: Path) -> None:
    file.write_text("[store]\nchunk_rows = 16\nretention_bytes = 1\ncopy_after_ms = 5\n")
    environ = {"ESCROWMQ_STORE__CHUNK_ROWS": "32", "ESCROWMQ_STORE__RETENTION_BYTES": "2"}
    config = load(file=file, environ=environ, flags=["store.chunk_rows=64"])
    store = config.section(StoreConfig)
    assert (store.chunk_rows, store.retention_bytes, store.copy_after_ms) == (64, 2, 5)
    assert origin(config, "store.chunk_rows") == "flag"
    assert origin(config, "store.retention_bytes") == "env ESCROWMQ_STORE__RETENTION_BYTES"
    assert origin(config, "store.copy_after_ms") == f"file {file}"
    assert origin(config, "store.durability") == "default"


def test_the_last_of_two_flags_holds() -> None:
    config = load(environ={}, flags=["store.chunk_rows=16", "store.chunk_rows=32"])
    assert config.section(StoreConfig).chunk_rows == 32


def test_a_value_that_equals_the_default_still_has_its_origin() -> None:
    config = load(environ={}, flags=["store.retention_bytes=0"])
    assert origin(config, "store.retention_bytes") == "flag"


def test_the_environment_may_name_the_file(file: Path) -> None:
    file.write_text('[store]\ndurability = "os"\n')
    assert load(environ={"ESCROWMQ_CONFIG": str(file)}).section(StoreConfig).durability == "os"


def test_a_file_given_as_a_flag_replaces_the_one_in_the_environment(file: Path) -> None:
    file.write_text('[store]\ndurability = "os"\n')
    config = load(file=file, environ={"ESCROWMQ_CONFIG": "/does/not/exist"})
    assert config.section(StoreConfig).durability == "os"


def test_variables_of_others_are_left_alone() -> None:
    environ = {"ESCROWMQ_PORT": "tcp://10.0.0.1:9876", "ESCROWMQ_SERVICE_HOST": "10.0.0.1", "X": ""}
    assert load(environ=environ).section(StoreConfig) == StoreConfig()


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("transaction.checks_max=1_0", 10),
        ("transaction.checks_max=+10", 10),
        ("transaction.check_backoff=1.5", 1.5),
        # An integer is valid for a float setting. The reverse is refused.
        ("transaction.check_backoff=2", 2.0),
        ("store.durability=os", "os"),
    ],
)
def test_text_gets_the_type_of_its_key(flag: str, value: object) -> None:
    name = flag.partition("=")[0]
    config = load(environ={}, flags=[flag])
    got = next(setting.value for setting in config.settings if setting.name == name)
    assert (got, type(got)) == (value, type(value))


@pytest.mark.parametrize(
    ("flag", "message", "key"),
    [
        # Wrong type.
        ("store.chunk_rows=many", "must be an integer, without a unit", "store.chunk_rows"),
        ("store.chunk_rows=64MiB", "must be an integer, without a unit", "store.chunk_rows"),
        ("store.chunk_rows=", "must be an integer, without a unit", "store.chunk_rows"),
        ("store.chunk_rows= 64", "must be an integer, without a unit", "store.chunk_rows"),
        ("store.chunk_rows=\u0664", "must be an integer, without a unit", "store.chunk_rows"),
        ("store.chunk_rows=1.5", "must be an integer, without a unit", "store.chunk_rows"),
        (
            "store.chunk_rows=" + "9" * 5_000,
            "must be an integer, without a unit",
            "store.chunk_rows",
        ),
        ("transaction.check_backoff=nan", "must be a finite number", "transaction.check_backoff"),
        ("transaction.check_backoff=x", "must be a finite number", "transaction.check_backoff"),
        ("store.durability=maybe", 'must be "fsync" or "os"', "store.durability"),
        # Right type, out of bounds: the dataclass refuses it.
        ("store.chunk_rows=7", "must be from 8 to 65536", "store.chunk_rows"),
        # Unknown key or section.
        ("store.durabilty=os", "no such key, did you mean durability?", "store.durabilty"),
        ("stor.durability=os", "no such section, did you mean store?", "stor"),
        (
            "zzz.durability=os",
            f"no such section, there are {', '.join(sorted([*SECTIONS, 'ledger']))}",
            "zzz",
        ),
        # Not a setting at all.
        ("store.durability", "write it as section.key=value", "store.durability"),
        ("durability=os", "write it as section.key=value", "durability"),
    ],
)
def test_a_bad_flag_is_refused(flag: str, message: str, key: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        load(environ={}, flags=[flag])
    assert (refused.value.code, refused.value.message) == ("bad_config", message)
    assert (refused.value.fields["key"], refused.value.fields["origin"]) == (key, "flag")


@pytest.mark.parametrize(
    ("text", "message", "key"),
    [
        ("[store]\nchunk_rows = '64'", "must be an integer, without a unit", "store.chunk_rows"),
        # In Python, a bool is an int. The config refuses it.
        ("[store]\nchunk_rows = true", "must be an integer, without a unit", "store.chunk_rows"),
        ("[store]\nchunk_rows = 64.0", "must be an integer, without a unit", "store.chunk_rows"),
        (
            "[transaction]\ncheck_backoff = true",
            "must be a finite number",
            "transaction.check_backoff",
        ),
        (
            "[transaction]\ncheck_backoff = inf",
            "must be a finite number",
            "transaction.check_backoff",
        ),
        ("[store]\ndurability = 1", 'must be "fsync" or "os"', "store.durability"),
        ("[store]\ndurability = []", 'must be "fsync" or "os"', "store.durability"),
        ("durability = 'os'", "keys belong in a [section]", "durability"),
        # An unknown section is refused even if it is empty.
        ("[stor]", "no such section, did you mean store?", "stor"),
        (
            "[store]\ndurabilty = 'os'",
            "no such key, did you mean durability?",
            "store.durabilty",
        ),
    ],
)
def test_a_bad_file_is_refused(file: Path, text: str, message: str, key: str) -> None:
    file.write_text(text)
    with pytest.raises(RequestRefused) as refused:
        load(file=file, environ={})
    assert (refused.value.code, refused.value.message) == ("bad_config", message)
    assert (refused.value.fields["key"], refused.value.fields["origin"]) == (key, f"file {file}")


def test_a_file_that_is_not_there_is_refused(file: Path) -> None:
    with pytest.raises(RequestRefused, match="unreadable_config: No such file or directory"):
        load(file=file, environ={})


@pytest.mark.parametrize("content", [b"[store", b"\xff\xfe"])
def test_a_file_that_is_not_toml_is_refused(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    with pytest.raises(RequestRefused, match="unreadable_config"):
        load(file=file, environ={})


def test_one_underscore_in_place_of_two_is_caught() -> None:
    with pytest.raises(RequestRefused, match=r"did you mean ESCROWMQ_STORE__CHUNK_ROWS\?"):
        load(environ={"ESCROWMQ_STORE_CHUNK_ROWS": "64"})


def test_an_unknown_variable_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"did you mean chunk_rows\?"):
        load(environ={"ESCROWMQ_STORE__CHUNKROWS": "64"})


def test_values_that_contradict_each_other_are_refused_with_an_origin() -> None:
    with pytest.raises(RequestRefused) as refused:
        load(environ={}, flags=["store.retention_ms=1000"])
    assert refused.value.fields == {
        "key": "store.copy_after_ms",
        "value": 3_600_000,
        "origin": "default",
    }


def test_the_table_is_aligned() -> None:
    lines = as_table(load(environ={}, flags=["store.durability=os"])).splitlines()
    assert lines[0].split() == ["KEY", "VALUE", "ORIGIN"]
    # The long value of delay_levels breaks the alignment of its line.
    aligned = [line for line in lines if not line.startswith("topics.delay_levels")]
    assert len({line.rindex(line.split()[-1]) for line in aligned}) == 1
    assert ["store.durability", "os", "flag"] in [line.split() for line in lines]


def test_the_json_keeps_types() -> None:
    settings = shapes_of(load(environ={}, flags=["store.chunk_rows=64"]))
    assert SettingShape(key="store.chunk_rows", value=64, origin="flag") in settings


def test_the_address_of_a_hook_is_filled_in_and_shown_without_its_token() -> None:
    flags = ["alerts.url=https://hooks.example.org/${TOKEN}"]
    config = load(environ={"TOKEN": "secret"}, flags=flags)
    assert config.section(AlertsConfig).url == "https://hooks.example.org/secret"
    shown = {setting.name: setting.value for setting in config.settings}
    assert shown["alerts.url"] == "https://hooks.example.org/***"
    with pytest.raises(RequestRefused, match="TOKEN") as refused:
        load(environ={}, flags=flags)
    assert "hooks" not in str(refused.value)
    with pytest.raises(RequestRefused, match=r"alerts\.url") as refused:
        load(environ={}, flags=["alerts.url=hooks/secret"])
    assert "secret" not in str(refused.value)


def test_the_password_of_the_state_stores_database_is_hidden() -> None:
    flags = ["transaction.state_url=postgresql://me:${PASSWORD}@db/states"]
    config = load(environ={"PASSWORD": "secret"}, flags=flags)
    assert config.section(CheckPolicy).state_url == "postgresql://me:secret@db/states"
    shown = {setting.name: setting.value for setting in config.settings}
    assert shown["transaction.state_url"] == "postgresql://me:${PASSWORD}@db/states"
