"""A user's table with several events for each row: the request says which message is which."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.audit.business import BusinessTable
from escrowmq.pipeline.audit.business_events import BusinessEvent, business_event
from escrowmq.pipeline.audit.compare import AuditRun
from escrowmq.pipeline.audit.compare_business import compare_business
from escrowmq.pipeline.audit.findings import FindingName
from escrowmq.pipeline.audit.joins import NAME
from escrowmq.pipeline.audit.pins import take_pins
from escrowmq.pipeline.views.facts import DETAIL
from tests.spark.audit_day import Day
from tests.spark.audit_shop import PAID, Shop, opened_shop

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

CREATED, PAID_EVENT = BusinessEvent("tag:created"), BusinessEvent("tag:paid", where="paid = 1")
BY_PROPERTY = (
    BusinessEvent("property:event=created"),
    BusinessEvent("property:event=paid", where="paid = 1"),
)


def tell(shop: Shop, key: str, event: str, *, decided: bool = True) -> None:
    """Send a message about an order."""
    name = f"{key}-{event}-{len(shop.orders.heads)}"
    shop.orders.hold(name, [shop.orders.sent(key=key, TAGS=event, event=event, order=key)])
    if decided:
        shop.orders.commit(name)


def order(shop: Shop, key: str, *events: str, paid: bool) -> None:
    """Add an order and its messages."""
    shop.sql("INSERT INTO orders VALUES (?, ?)", key, int(paid))
    for event in events:
        tell(shop, key, event)


def found(spark: SparkSession, shop: Shop, *events: BusinessEvent, **more: str) -> dict[str, str]:
    """Return the findings by name."""
    table = BusinessTable(url=shop.url, table="orders", key="id", events=events, **more)
    pins = take_pins([shop.broker.broker_address])
    outcome = compare_business(AuditRun(spark, shop.request(lake="", business=table), pins))
    return {row[NAME]: row[DETAIL] for row in outcome.found.collect()}


@pytest.mark.parametrize("events", [(CREATED, PAID_EVENT), BY_PROPERTY], ids=["tag", "property"])
def test_each_event_of_a_row_is_held_against_its_own_messages(
    spark: SparkSession, tmp_path: Path, events: tuple[BusinessEvent, ...]
) -> None:
    created, paid = (event.which for event in events)
    with opened_shop(spark, tmp_path) as shop:
        order(shop, "whole", "created", "paid", paid=True)
        order(shop, "unpaid", "created", paid=False)
        # Messages of events that were not named are ignored.
        tell(shop, "whole", "shipped")
        assert found(spark, shop, *events) == {}
        # A held, undecided message counts as on its way.
        order(shop, "on-its-way", "created", paid=True)
        tell(shop, "on-its-way", "paid", decided=False)
        assert found(spark, shop, *events) == {}
        # A message of another event does not replace it.
        order(shop, "paid-in-silence", "created", paid=True)
        tell(shop, "paid-in-silence", "shipped", decided=False)
        order(shop, "created-twice", "created", "created", paid=False)
        tell(shop, "unpaid", "paid")
        told = found(spark, shop, *events)
        assert told == {
            FindingName.BUSINESS_ROW_WITHOUT_MESSAGE.value: (
                f"orders.id = paid-in-silence; event {paid}; 1 rows, 0 messages"
            ),
            FindingName.BUSINESS_ROW_WITH_SEVERAL.value: (
                f"orders.id = created-twice; event {created}; 1 rows, 2 messages"
            ),
            FindingName.MESSAGE_WITHOUT_BUSINESS_ROW.value: told[
                FindingName.MESSAGE_WITHOUT_BUSINESS_ROW.value
            ],
        }
        phantom = told[FindingName.MESSAGE_WITHOUT_BUSINESS_ROW.value]
        assert f"event {paid}; its key is unpaid" in phantom


def test_events_are_told_apart_where_the_key_is_a_property_too(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        order(shop, "whole", "created", "paid", paid=True)
        order(shop, "paid-in-silence", "created", paid=True)
        told = found(spark, shop, CREATED, PAID_EVENT, message_key="property:order")
        assert told == {
            FindingName.BUSINESS_ROW_WITHOUT_MESSAGE.value: (
                "orders.id = paid-in-silence; event tag:paid; 1 rows, 0 messages"
            )
        }


def test_a_topic_that_no_broker_has_is_noted(spark: SparkSession, tmp_path: Path) -> None:
    with opened_shop(spark, tmp_path) as shop:
        order(shop, "whole", "created", paid=True)
        business = BusinessTable(url=shop.url, table="orders", key="id")
        request = shop.request(lake="", business=business, topics=("ordres",))
        outcome = compare_business(
            AuditRun(spark, request, take_pins([shop.broker.broker_address]))
        )
        assert outcome.notes == ["no broker has the topic ordres; check its spelling"]


def test_an_event_is_given_as_text() -> None:
    assert business_event("tag:created") == CREATED
    assert business_event("tag:paid where paid = 1") == PAID_EVENT
    assert business_event("property:event=paid WHERE paid = 1") == BY_PROPERTY[1]
    assert business_event("property:a=b = c").which == "property:a=b = c"


@pytest.mark.parametrize("text", ["paid", "tag:", "property:event", "property:=paid", ""])
def test_an_event_that_names_neither_tag_nor_property_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        business_event(text)
    assert refused.value.code == "bad_option"
    assert refused.value.fields["option"] == "--event"


def run(shop: Shop, data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command as users do, because tasks of Spark print, too."""
    table = ("--business-table", "orders", "--key", "id", "--business-url", shop.url)
    broker = ("-b", shop.broker.broker_address, "--data-dir", str(data), "--without-lake")
    command = ("audit", *broker, *table, *arguments)
    return subprocess.run(
        [sys.executable, "-m", "escrowmq.cli.main", *command],
        capture_output=True,
        text=True,
        env=os.environ,
        timeout=300,
        check=False,
    )


def test_the_command_takes_events_and_tells_nothing_of_other_topics(
    spark: SparkSession, tmp_path: Path
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        order(shop, "whole", "created", "paid", paid=True)
        order(shop, "paid-in-silence", "created", paid=True)
        others = Day(shop.broker.broker_address, topic="other")
        for queue_id in range(3):
            others.hold(f"of-{queue_id}", [others.sent(queue_id=queue_id)])
            others.commit(f"of-{queue_id}")
        events = ("--event", "tag:created", "--event", "tag:paid where paid = 1")
        done = run(shop, tmp_path / "audit", "--topic", PAID, *events, "-o", "json")
        assert "data_lost" not in done.stderr + done.stdout
        assert done.returncode == 1, done.stderr
        (only,) = json.loads(done.stdout)["findings"]
        assert only["name"] == FindingName.BUSINESS_ROW_WITHOUT_MESSAGE
        assert [case["detail"] for case in only["cases"]] == [
            "orders.id = paid-in-silence; event tag:paid; 1 rows, 0 messages"
        ]
