"""``escrowmq config import`` converts a RocketMQ broker's file to a config that loads."""

from __future__ import annotations

import csv
import io
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escrowmq.cli.config import Config, load
from escrowmq.cli.config_import import as_toml, converted
from escrowmq.cli.main import main
from escrowmq.cli.rocketmq.names import BY_THEIRS
from escrowmq.cli.rocketmq.properties import Property, parse_properties
from escrowmq.cli.shapes.tool_shapes import ImportedKeyShape

#: The file that RocketMQ 5.3 comes with, without its comments.
SAMPLE = """
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return tmp_path / "broker.conf"


def run(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as left:
        main(["config", "import", *map(str, arguments)])
    return int(left.value.code or 0)


def rows_of(text: str) -> list[ImportedKeyShape]:
    return converted(parse_properties(text, "broker.conf"))


def loaded(config: Config) -> dict[str, Any]:
    """Return the settings that the file gives."""
    return {one.name: one.value for one in config.settings if one.origin.startswith("file")}


def test_the_sample_file_becomes_a_config_that_loads(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text(SAMPLE)
    assert run(source) == 0
    file = tmp_path / "escrowmq.toml"
    file.write_text(capsys.readouterr().out)
    assert loaded(load(file=file, environ={})) == {
        "broker.cluster": "DefaultCluster",
        "broker.name": "broker-a",
        "store.durability": "os",
        "store.retention_ms": 172_800_000,
    }


def test_every_mapped_key_arrives(source: Path, tmp_path: Path) -> None:
    source.write_text(
        "brokerIP1=10.0.0.1\nbindAddress=0.0.0.0\nlistenPort=20911\n"
        "namesrvAddr=10.0.0.1:19876;10.0.0.2:19876\nserverChannelMaxIdleTimeSeconds=60\n"
        "sendThreadPoolQueueCapacity=10000\nflushDiskType=SYNC_FLUSH\n"
        "mappedFileSizeCommitLog=1048576\nautoCreateTopicEnable=false\n"
        "autoCreateSubscriptionGroup=FALSE\ndefaultTopicQueueNums=4\n"
        "messageDelayLevel=1s 5s \\\n  2h\ntransactionTimeOut=10000\n"
        "transactionCheckInterval=60000\ntransactionCheckMax=5\n"
    )
    file = tmp_path / "escrowmq.toml"
    assert run(source, "--write", file) == 0
    assert loaded(load(file=file, environ={})) == {
        "broker.advertise_host": "10.0.0.1",
        "broker.host": "0.0.0.0",
        "broker.port": 20_911,
        "broker.name_port": 19_876,
        "broker.idle_ms_max": 60_000,
        "writer.messages_max": 10_000,
        "writer.inbox_max": 10_000,
        "store.durability": "fsync",
        "store.segment_bytes_max": 1_048_576,
        "topics.auto_create": False,
        "topics.auto_create_groups": False,
        "topics.queue_count": 4,
        "topics.delay_levels": "1s 5s 2h",
        "transaction.check_after_ms": 10_000,
        "transaction.check_interval_ms": 60_000,
        "transaction.checks_max": 5,
    }


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        # Our bounds.
        ("transactionCheckMax=256", "must be from 1 to 255"),
        ("transactionCheckMax=0", "must be from 1 to 255"),
        ("transactionCheckMax=-1", "must be from 1 to 255"),
        ("transactionCheckInterval=86400001", "must be from 1 to 86400000"),
        ("fileReservedTime=9999999999999999999", "must be from 1 to 315360000000"),
        ("listenPort=65536", "must be from 0 to 65535"),
        ("namesrvAddr=host:99999", "must be from 0 to 65535"),
        ("messageDelayLevel=1s 5x", "5x is no delay: write 10s, 5m, 2h or 1d, up to 365d"),
        (f"brokerName={'b' * 128}", "must have at most 127 characters"),
        # A limit that would have to rise above its own bound.
        ("sendThreadPoolQueueCapacity=1000001", "writer.inbox_max must be from 1 to 1000000"),
        # Values that RocketMQ does not read either.
        ("listenPort=many", "must be an integer of at most 19 digits"),
        ("listenPort=", "must be an integer of at most 19 digits"),
        ("listenPort=1_0", "must be an integer of at most 19 digits"),
        ("listenPort=\u0664", "must be an integer of at most 19 digits"),
        (f"listenPort={'9' * 5_000}", "must be an integer of at most 19 digits"),
        (
            "listenPort=10911 ",
            "remove the blanks around it: with them, RocketMQ does not read it as written",
        ),
        (
            "autoCreateTopicEnable=true ",
            "remove the blanks around it: with them, RocketMQ does not read it as written",
        ),
        (
            "autoCreateTopicEnable=yes",
            "must be true or false; RocketMQ reads any other word as false",
        ),
        ("flushDiskType=sync_flush", "must be SYNC_FLUSH or ASYNC_FLUSH"),
        ("brokerName", "must not be empty"),
        ("brokerName=a\\u001b[31m", "must have printable characters only"),
        ("brokerIP1=broker.example.org", "must be an IP address, not a host name"),
        ("brokerIP1=0.0.0.0", "must be an address that clients can connect to"),
        ("namesrvAddr=${NAMESRV}", "must be HOST:PORT, several separated by semicolons"),
        ("namesrvAddr=a:1;b:2", "must have the same port in all addresses"),
    ],
)
def test_a_value_that_is_not_valid_here_is_reported_and_left_out(line: str, reason: str) -> None:
    (row,) = rows_of(line)
    assert (row.outcome, row.reason, row.setting_value) == ("refused", reason, None)
    assert row.setting == BY_THEIRS[row.key].ours
    assert tomllib.loads(as_toml([row], "broker.conf")) == {}


def test_a_limit_rises_with_its_setting() -> None:
    rows = rows_of("transactionCheckInterval=1200000")
    assert [(row.setting, row.setting_value) for row in rows] == [
        ("transaction.check_interval_ms", 1_200_000),
        ("transaction.check_interval_max_ms", 1_200_000),
    ]
    assert len(rows_of("transactionCheckInterval=600000")) == 1


def test_two_keys_for_one_setting_are_reported() -> None:
    first, second = rows_of("mappedFileSizeCommitLog=4096\nmapedFileSizeCommitLog=8192")
    assert (first.outcome, first.setting_value) == ("mapped", 4_096)
    assert (second.outcome, second.reason) == (
        "refused",
        "store.segment_bytes_max is already set by another key of the file",
    )


def test_an_ignored_key_has_its_reason() -> None:
    replicas, wheel, ratio = rows_of("haListenPort=1\ntimerPrecisionMs=1\ndiskMaxUsedSpaceRatio=1")
    assert {row.outcome for row in (replicas, wheel, ratio)} == {"ignored"}
    assert replicas.reason == "EscrowMQ has no replicas: a broker is one process with one store"
    assert "delayed messages" in wheel.reason
    assert ratio.setting == "store.free_bytes_min"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        # RocketMQ's keys have capitals: it ignores this one, which many files have.
        ("transactionTimeout", ", did you mean transactionTimeOut?"),
        ("brokername", ", did you mean brokerName?"),
        ("somethingElse", ""),
        ("", ""),
    ],
)
def test_an_unknown_key_is_reported(key: str, meant: str) -> None:
    (row,) = rows_of(f"{key}=1")
    assert (row.key, row.outcome) == (key, "unknown")
    assert row.reason == f"RocketMQ up to 5.5 has no such key{meant}"


def test_values_of_keys_without_a_setting_are_not_shown(
    source: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text("initAuthenticationUser=hunter2\nmySecret=hunter2\nbrokerName=a\n")
    for output in ("table", "json", "csv"):
        assert run(source, "-o", output) == 1
        told = capsys.readouterr()
        assert "hunter2" not in told.out + told.err


def test_programs_get_rows(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source.write_text("fileReservedTime=48\nautoCreateTopicEnable=false\n")
    assert run(source, "-o", "json") == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first == {
        "line": 1,
        "key": "fileReservedTime",
        "value": "48",
        "outcome": "mapped",
        "setting": "store.retention_ms",
        "setting_value": 172_800_000,
        "reason": "",
    }
    assert second["setting_value"] is False
    assert run(source, "-o", "csv") == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [row["setting"] for row in rows] == ["store.retention_ms", "topics.auto_create"]


def test_a_file_is_written_once(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text("brokerName=first\n")
    file = tmp_path / "escrowmq.toml"
    assert run(source, "--write", file) == 0
    assert capsys.readouterr().out.startswith("LINE  KEY")
    before = file.read_text()
    source.write_text("brokerName=second\n")
    assert run(source, "--write", file) == 2
    assert "--force replaces it" in capsys.readouterr().err
    assert file.read_text() == before
    assert run(source, "--write", file, "--force") == 0
    assert "second" in file.read_text()


def test_the_source_is_never_replaced(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source.write_text("brokerName=a\n")
    alias = tmp_path / "alias"
    alias.symlink_to(source)
    for target in (source, alias):
        assert run(source, "--write", target, "--force") == 2
        assert "another file than the one that is read" in capsys.readouterr().err
    for target in (tmp_path, tmp_path / "missing" / "escrowmq.toml"):
        assert run(source, "--write", target, "--force") == 2
        assert "a file that can be written" in capsys.readouterr().err
    assert source.read_text() == "brokerName=a\n"


def test_a_bad_file_is_an_error(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for content, code in ((b"a=1\na=2", "bad_config"), (b"\0", "unreadable_config")):
        source.write_bytes(content)
        assert run(source) == 2
        assert f"escrowmq: {code}: " in capsys.readouterr().err


#: The reader of the file refuses surrogates.
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=200)
KEYS = st.one_of(st.sampled_from([*BY_THEIRS, "brokerRole"]), TEXTS)
VALUES = st.one_of(TEXTS, st.integers().map(str), st.sampled_from(["true", "os"]))


@given(st.dictionaries(KEYS, VALUES, max_size=8))
def test_the_result_always_loads(
    tmp_path_factory: pytest.TempPathFactory, found: dict[str, str]
) -> None:
    rows = converted(Property(line, *pair) for line, pair in enumerate(found.items(), 1))
    file = tmp_path_factory.mktemp("import") / "escrowmq.toml"
    file.write_text(as_toml(rows, "broker.conf"), encoding="utf-8")
    given_by_file = loaded(load(file=file, environ={}))
    assert given_by_file == {
        row.setting: row.setting_value for row in rows if row.outcome == "mapped"
    }
