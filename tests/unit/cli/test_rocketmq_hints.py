"""Users who give RocketMQ's name of a setting are told ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.broker.config import BrokerConfig
from escrowmq.cli.config import load
from escrowmq.model.errors import RequestRefused


def refusal(
    *, file: Path | None = None, environ: dict[str, str] | None = None, flags: tuple[str, ...] = ()
) -> RequestRefused:
    with pytest.raises(RequestRefused) as refused:
        load(file=file, environ=environ or {}, flags=flags)
    return refused.value


@pytest.mark.parametrize(
    ("flag", "hint"),
    [
        (
            "transaction.transactionCheckMax=20",
            "no such key; RocketMQ's transactionCheckMax is transaction.checks_max here",
        ),
        ("transactionCheckMax=20", "RocketMQ's transactionCheckMax is transaction.checks_max here"),
        ("brokerName=a", "RocketMQ's brokerName is broker.name here"),
        # In any section, and in snake_case.
        ("store.broker_name=a", "no such key; RocketMQ's brokerName is broker.name here"),
        (
            "store.fileReservedTime=48",
            (
                "no such key; RocketMQ's fileReservedTime is store.retention_ms here"
                " (multiply hours by 3600000)"
            ),
        ),
        (
            "store.flushDiskType=SYNC_FLUSH",
            (
                "no such key; RocketMQ's flushDiskType is store.durability here"
                " (SYNC_FLUSH is fsync, ASYNC_FLUSH is os)"
            ),
        ),
        (
            "broker.brokerRole=SLAVE",
            (
                "no such key; RocketMQ's brokerRole has no counterpart here: EscrowMQ has no"
                " replicas: a broker is one process with one store"
            ),
        ),
        # A mistyped name of ours gets the hint that it always got.
        ("transaction.check_max=20", "no such key, did you mean checks_max?"),
    ],
)
def test_a_name_of_rocketmq_gets_a_hint(flag: str, hint: str) -> None:
    refused = refusal(flags=(flag,))
    assert (refused.code, refused.message) == ("bad_config", hint)


def test_a_name_of_rocketmq_in_a_file_gets_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "escrowmq.toml"
    for text in ("transactionCheckMax = 20", "[transaction]\ntransactionCheckMax = 20"):
        file.write_text(text)
        assert "is transaction.checks_max here" in refusal(file=file).message


def test_a_name_of_rocketmq_in_the_environment_gets_a_hint() -> None:
    for variable in (
        "ESCROWMQ_TRANSACTION__TRANSACTIONCHECKMAX",
        "ESCROWMQ_TRANSACTION__TRANSACTION_CHECK_MAX",
        "ESCROWMQ_TRANSACTIONCHECKMAX",
    ):
        refused = refusal(environ={variable: "20"})
        assert "is transaction.checks_max here" in refused.message
        assert refused.fields["origin"] == f"env {variable}"


def test_variables_that_a_container_platform_sets_are_still_left_alone() -> None:
    # For a service named escrowmq-listen, Kubernetes sets a name that reads like listenPort.
    config = load(environ={"ESCROWMQ_LISTEN_PORT": "tcp://10.0.0.1:80"})
    assert config.section(BrokerConfig) == BrokerConfig()


def test_a_file_of_rocketmq_given_as_config_gets_a_hint(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("# A broker\nbrokerName = broker-a\n")
    assert refusal(file=file).message.endswith("escrowmq config import converts it")
    file.write_text("[store]\ndurability = os\n")
    assert "config import" not in refusal(file=file).message
