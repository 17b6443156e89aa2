"""RocketMQ's settings that have a setting of ours, and how to convert their values.

This table is the only one: ``config import``, the hints for unknown settings and the page
docs/reference/rocketmq-settings.md read it. ``left_out.py`` has RocketMQ's other settings.
"""

from __future__ import annotations

from dataclasses import dataclass

from escrowmq.cli.rocketmq.values import (
    Choice,
    IpAddress,
    Number,
    PortOfAddresses,
    Switch,
    Text,
    ValueReader,
)


@dataclass(frozen=True, slots=True)
class SettingName:
    """A setting of RocketMQ, and ours that does the same."""

    theirs: str
    #: Our setting, as ``section.key``.
    ours: str
    value: ValueReader
    #: RocketMQ's default, as in a file; it depends on the version where a text says so.
    default: str
    #: A difference from RocketMQ, or a value that the operator should review.
    note: str = ""
    #: A limit of ours that must be at least as high as this setting, and is raised with it.
    raises: str = ""


_MS, _SECONDS, _HOURS = Number(), Number("seconds", 1_000), Number("hours", 3_600_000)

_BROKER = (
    SettingName("brokerName", "broker.name", Text(), "the host's name"),
    SettingName("brokerClusterName", "broker.cluster", Text(), "DefaultCluster"),
    SettingName(
        "brokerIP1",
        "broker.advertise_host",
        IpAddress(),
        "an address of the host",
        note="an IP address that clients reach",
    ),
    SettingName(
        "bindAddress",
        "broker.host",
        Text(),
        "0.0.0.0",  # noqa: S104 - text for the reference page
        note="an address other than loopback needs `--insecure`",
    ),
    SettingName("listenPort", "broker.port", Number(), "10911"),
    SettingName(
        "namesrvAddr",
        "broker.name_port",
        PortOfAddresses(),
        "none",
        note="the broker is its own name server, at this port of its own address",
    ),
    SettingName("serverChannelMaxIdleTimeSeconds", "broker.idle_ms_max", _SECONDS, "120"),
    SettingName(
        "sendThreadPoolQueueCapacity",
        "writer.messages_max",
        Number(),
        "10000",
        note="requests that wait for the writer, not for a thread",
        raises="writer.inbox_max",
    ),
)

_STORE = (
    SettingName(
        "flushDiskType",
        "store.durability",
        Choice({"SYNC_FLUSH": "fsync", "ASYNC_FLUSH": "os"}),
        "ASYNC_FLUSH",
        note="with `os`, a power cut can lose messages that the broker has confirmed; our default"
        " `fsync` cannot",
    ),
    SettingName("fileReservedTime", "store.retention_ms", _HOURS, "72"),
    SettingName("mappedFileSizeCommitLog", "store.segment_bytes_max", Number(), "1073741824"),
    SettingName(
        "mapedFileSizeCommitLog",
        "store.segment_bytes_max",
        Number(),
        "1073741824",
        note="the spelling up to 4.5.1; later versions ignore it",
    ),
)

_TOPICS = (
    SettingName("autoCreateTopicEnable", "topics.auto_create", Switch(), "true"),
    SettingName("autoCreateSubscriptionGroup", "topics.auto_create_groups", Switch(), "true"),
    SettingName("defaultTopicQueueNums", "topics.queue_count", Number(), "8"),
    SettingName(
        "messageDelayLevel",
        "topics.delay_levels",
        Text(),
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
    ),
)

_TRANSACTION = (
    SettingName(
        "transactionTimeOut",
        "transaction.check_after_ms",
        _MS,
        "6000; 3000 in 4.3.0",
        note="RocketMQ ignores the spelling `transactionTimeout`",
    ),
    SettingName(
        "transactionCheckInterval",
        "transaction.check_interval_ms",
        _MS,
        "30000 since 5.1.1, 60000 before",
        note="the wait of each transaction, not the period of a scan over all of them",
        raises="transaction.check_interval_max_ms",
    ),
    SettingName(
        "transactionCheckMax",
        "transaction.checks_max",
        Number(),
        "15; 5 in 4.3.0",
        note="after the last check, RocketMQ discards the message; here"
        " `transaction.after_last_check` says what happens",
    ),
    SettingName(
        "checkTransactionMessageEnable",
        "transaction.checked_by",
        Choice({"true": "auto", "false": "off"}),
        "true",
        note="a setting of 3.x, which later versions ignore: RocketMQ 4.3 and later always"
        " check, so remove it if you come from one of those",
    ),
)
SETTING_NAMES: tuple[SettingName, ...] = (
    *_BROKER,
    *_STORE,
    *_TOPICS,
    *_TRANSACTION,
)
BY_THEIRS = {one.theirs: one for one in SETTING_NAMES}
