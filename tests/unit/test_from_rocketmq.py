"""Every request and command in the tables for RocketMQ users exists."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import typer

from escrowmq.cli.config import load
from escrowmq.cli.main import COMMANDS
from escrowmq.cli.rocketmq.left_out import LEFT_OUT
from escrowmq.cli.rocketmq.names import SETTING_NAMES
from escrowmq.protocol.remoting.codes import RequestCode
from tests.unit.broker.wire import serving
from tests.unit.repository import ROOT

TABLE: dict[str, list[dict[str, Any]]] = tomllib.loads(
    (ROOT / "docs/reference/from-rocketmq.toml").read_text(encoding="utf-8")
)
PAGE = ROOT / "docs/guide/from-rocketmq.md"


def commands() -> set[str]:
    """Return every escrowmq command as a user types it."""
    found = set()
    for name, entry in COMMANDS.items():
        loaded = entry.load()
        if isinstance(loaded, typer.Typer):
            for one in loaded.registered_commands:
                assert one.callback is not None
                found.add(f"{name} {one.name or one.callback.__name__.replace('_', '-')}")
        else:
            found.add(name)
    return found


def settings() -> set[str]:
    return {setting.name for setting in load(environ={}).settings}


def rendered() -> str:
    """Return the two tables of the page."""
    lines = ["| `mqadmin` | Works | Ours | Note |", "|---|---|---|---|"]
    for one in TABLE["command"]:
        ours = f"`escrowmq {one['ours']}`" if "ours" in one else "-"
        works = "yes" if one["works"] else "no"
        names = ", ".join(f"`{name}`" for name in one["mqadmin"].split(", "))
        lines.append(f"| {names} | {works} | {ours} | {one.get('note', '')} |")
    lines += ["", "| Admin API | Ours | Note |", "|---|---|---|"]
    for one in TABLE["api"]:
        ours = f"`escrowmq {one['ours']}`" if "ours" in one else "-"
        lines.append(f"| `{one['method']}` | {ours} | {one['note']} |")
    return re.sub(r" +\|$", " |", "\n".join(lines), flags=re.MULTILINE)


async def test_the_broker_answers_every_request_of_a_command_that_works(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        answered = set(server.broker._handlers)
    for one in (*TABLE["command"], *({"works": True, **api} for api in TABLE["api"])):
        codes = {RequestCode[name] for name in one["requests"]}
        assert codes or not one["works"], one
        assert codes <= answered, one
    # Every request of tools that the broker answers has a row.
    rows = (*TABLE["command"], *TABLE["api"])
    named = {RequestCode[name] for one in rows for name in one["requests"]}
    assert {
        code.name for code in RequestCode if code in answered and code not in named
    } <= NOT_OF_TOOLS


#: Requests of clients, and of tools that no common command uses.
NOT_OF_TOOLS = {
    "SEND_MESSAGE",
    "SEND_BATCH_MESSAGE",
    "END_TRANSACTION",
    "RECALL_MESSAGE",
    "NOTIFICATION",
    "LITE_PULL_MESSAGE",
    "QUERY_CONSUMER_OFFSET",
    "GET_EARLIEST_MSG_STORETIME",
    "CONSUMER_SEND_MSG_BACK",
    "GET_CONSUMER_LIST_BY_GROUP",
    "LOCK_BATCH_MQ",
    "QUERY_ASSIGNMENT",
    "POP_MESSAGE",
    "ACK_MESSAGE",
    "BATCH_ACK_MESSAGE",
    "CHANGE_MESSAGE_INVISIBLETIME",
    "POLLING_INFO",
    "UNLOCK_BATCH_MQ",
    "HEART_BEAT",
    "UNREGISTER_CLIENT",
    "CHECK_CLIENT_CONFIG",
    "CHECK_TRANSACTION_STATE",
    "GET_TOPIC_CONFIG",
    "GET_TOPICS_BY_CLUSTER",
    "GET_SYSTEM_TOPIC_LIST_FROM_NS",
    "GET_SYSTEM_TOPIC_LIST_FROM_BROKER",
    "QUERY_TOPIC_CONSUME_BY_WHO",
    "QUERY_CONSUME_TIME_SPAN",
    "QUERY_TOPICS_BY_CONSUMER",
    "QUERY_SUBSCRIPTION_BY_CONSUMER",
}


def test_every_command_of_ours_exists() -> None:
    known = commands()
    for one in (*TABLE["command"], *TABLE["api"]):
        assert one.get("ours", "status") in known, one
        assert "ours" in one or "note" in one or one["works"], one


def test_commands_and_settings_in_notes_exist() -> None:
    known, keys = commands(), settings()
    notes = [one.get("note", "") for one in (*TABLE["command"], *TABLE["api"])]
    notes += [one.note for one in SETTING_NAMES] + [row.reason for row in LEFT_OUT]
    for note in notes:
        for quoted in re.findall(r"`([^`]+)`", note):
            if re.fullmatch(r"[a-z]+\.[a-z_]+", quoted):
                assert quoted in keys, quoted
            elif quoted.split()[0] in {"escrowmq", *COMMANDS}:
                words = quoted.removeprefix("escrowmq ").split(" --")[0]
                assert words in known, quoted


def test_each_name_is_there_once() -> None:
    names = [name for one in TABLE["command"] for name in one["mqadmin"].split(", ")]
    assert len(names) == len(set(names))


def test_every_command_of_mqadmin_has_a_row() -> None:
    rows = {name for one in TABLE["command"] for name in one["mqadmin"].split(", ")}
    assert rows == {*MQADMIN_5.split(), *MQADMIN_4.split()}


#: Commands that mqadmin of RocketMQ 5.5.0 lists when it is run without a command.
MQADMIN_5 = """
updateTopic updateTopicList deleteTopic updateSubGroup updateSubGroupList setConsumeMode
deleteSubGroup updateBrokerConfig updateTopicPerm topicRoute topicStatus topicClusterList
addBroker removeBroker resetMasterFlushOffset brokerStatus queryMsgById queryMsgByKey
queryMsgByUniqueKey queryMsgByOffset queryMsgTraceById printMsg printMsgByQueue sendMsgStatus
brokerConsumeStats producerConnection consumerConnection consumerProgress consumerStatus
cloneGroupOffset producer clusterList topicList updateKvConfig deleteKvConfig wipeWritePerm
addWritePerm resetOffsetByTime skipAccumulatedMessage updateOrderConf cleanExpiredCQ
deleteExpiredCommitLog cleanUnusedTopic startMonitoring statsAll allocateMQ checkMsgSendRT
clusterRT getNamesrvConfig updateNamesrvConfig getBrokerConfig getConsumerConfig queryCq
sendMessage consumeMessage updateStaticTopic remappingStaticTopic exportMetadata exportConfigs
exportMetrics exportMetadataInRocksDB exportPopRecord haStatus getSyncStateSet getBrokerEpoch
getControllerMetaData getControllerConfig updateControllerConfig electMaster
cleanBrokerMetadata dumpCompactionLog getColdDataFlowCtrInfo updateColdDataFlowCtrGroupConfig
removeColdDataFlowCtrGroupConfig setCommitLogReadAheadMode createUser updateUser deleteUser
getUser listUser copyUser createAcl updateAcl deleteAcl getAcl listAcl copyAcl
rocksDBConfigToJson checkRocksdbCqWriteProgress switchTimerEngine getBrokerLiteInfo
getParentTopicInfo getLiteTopicInfo getLiteClientInfo getLiteGroupInfo triggerLiteDispatch
"""
#: Commands of 4.9 that 5.5 no longer has.
MQADMIN_4 = """
updateAclConfig deleteAclConfig getAclConfig clusterAclConfigVersion updateGlobalWhiteAddr
"""


def test_the_page_shows_the_tables() -> None:
    assert rendered() in PAGE.read_text(encoding="utf-8")


if __name__ == "__main__":
    print(rendered())  # noqa: T201 - for the page
