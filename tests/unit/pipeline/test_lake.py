"""A commit to a lake table is atomic, happens once, and never overrides another writer's."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, Transaction

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.pipeline.lake import delta as lake_module
from escrowmq.pipeline.lake.delta import Lake
from escrowmq.pipeline.lake.files import TableFiles, WrittenFile
from escrowmq.pipeline.lake.tables import MESSAGES, TABLES, table_named
from tests.unit.pipeline.lake_rows import MIDNIGHT_MS, message, rows_of
from tests.unit.repository import ROOT

APP = "test"


def freely(_: DeltaTable) -> Sequence[Transaction]:
    return ()


def once(number: int) -> lake_module.Entitlement:
    """Allow a commit of batch `number` unless the table has this batch or a later one."""

    def entitled(delta: DeltaTable) -> Sequence[Transaction] | None:
        last = delta.transaction_version(APP)
        return [Transaction(APP, number)] if last is None or last < number else None

    return entitled


def written(lake: Lake, *offsets: int, topic: str = "T") -> list[WrittenFile]:
    lake.open(MESSAGES)
    files = TableFiles(MESSAGES, lake.uri_of(MESSAGES), lake.storage)
    files.add(rows_of(MESSAGES, *(message(topic, offset) for offset in offsets)))
    return files.finish()


def offsets_in(lake: Lake) -> list[int]:
    found = lake.find(MESSAGES)
    assert found is not None
    rows: list[int] = found.to_pyarrow_table().column("queue_offset").to_pylist()
    return sorted(rows)


def test_a_table_is_made_when_it_is_first_needed(tmp_path: Path) -> None:
    lake = Lake(tmp_path / "lake")
    assert lake.find(MESSAGES) is None
    delta = lake.open(MESSAGES)
    assert delta.metadata().name == "messages"
    assert delta.metadata().partition_columns == ["topic", "date"]
    # Every reader of Delta tables supports version 1.
    assert delta.protocol().min_reader_version == 1
    assert lake.open(MESSAGES).version() == 0


@pytest.mark.parametrize("name", TABLES)
def test_every_table_can_be_made(tmp_path: Path, name: str) -> None:
    table = table_named(name)
    delta = Lake(tmp_path).open(table)
    assert [field.name for field in delta.schema().fields] == table.arrow_schema().names
    assert table.dated_by in table.ranged_by


def test_a_table_that_is_not_ours_is_refused_by_name() -> None:
    with pytest.raises(RequestRefused) as caught:
        table_named("message")
    assert caught.value.code == "no_such_table"
    assert "messages" in str(caught.value)


def test_files_are_part_of_the_table_once_they_are_committed(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    files = written(lake, 1, 2)
    assert offsets_in(lake) == []
    assert lake.commit(MESSAGES, files, freely)
    assert offsets_in(lake) == [1, 2]


def test_a_batch_that_is_there_is_not_committed_again(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.commit(MESSAGES, written(lake, 1), once(0))
    assert not lake.commit(MESSAGES, written(lake, 1), once(0))
    assert lake.commit(MESSAGES, written(lake, 2), once(1))
    assert offsets_in(lake) == [1, 2]


def test_two_drivers_cannot_both_commit_a_batch(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    files = written(lake, 1)

    def overtaken(delta: DeltaTable) -> Sequence[Transaction] | None:
        answer = once(0)(delta)
        # Another driver commits after this driver's check and before its commit.
        lake.commit(MESSAGES, written(lake, 1), once(0))
        return answer

    assert not lake.commit(MESSAGES, files, overtaken)
    assert offsets_in(lake) == [1]


def test_a_commit_that_meets_a_deletion_is_made_after_it(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit(MESSAGES, written(lake, 1), freely)
    deleted: list[object] = []

    def meanwhile(delta: DeltaTable) -> Sequence[Transaction] | None:
        if not deleted:
            deleted.append(lake.open(MESSAGES).delete("date < '2026-11-02'"))
        return once(0)(delta)

    assert lake.commit(MESSAGES, written(lake, 2), meanwhile)
    assert offsets_in(lake) == [2]


def test_a_constant_committer_is_not_waited_for_without_limit(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    tries: list[int] = []

    def overtaken(_: DeltaTable) -> Sequence[Transaction] | None:
        tries.append(1)
        lake.commit(MESSAGES, [], lambda _: [Transaction(APP, len(tries))])
        return [Transaction(APP, 1_000)]

    with pytest.raises(Unavailable) as caught:
        lake.commit(MESSAGES, written(lake, 1), overtaken)
    assert caught.value.code == "lake_busy"
    assert len(tries) == lake_module.COMMIT_TRIES_MAX
    assert offsets_in(lake) == []


def test_a_few_rows_can_be_appended_at_once(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    assert lake.append(MESSAGES, rows_of(MESSAGES, message("T", 1), message("U", 2)), freely)
    assert offsets_in(lake) == [1, 2]


def test_odd_names_of_topics_come_back_as_they_went(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    topics = ["%RETRY%group", "a=b", "a/b", "a b", "grün", "%25"]
    rows = [message(topic, number) for number, topic in enumerate(topics)]
    lake.append(MESSAGES, rows_of(MESSAGES, *rows), freely)
    table = lake.open(MESSAGES).to_pyarrow_table()
    found = dict(zip(table.column("queue_offset"), table.column("topic"), strict=True))
    assert [found[number].as_py() for number in sorted(found, key=lambda n: n.as_py())] == topics


def test_a_place_that_cannot_be_written_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text("a file")
    with pytest.raises(Unavailable) as caught:
        Lake(tmp_path).open(MESSAGES)
    assert caught.value.code == "lake_unreachable"
    assert caught.value.fields["table"] == "messages"


def test_files_say_which_rows_a_reader_may_pass_over(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    lake.commit(MESSAGES, written(lake, 1, 2), freely)
    lake.commit(MESSAGES, written(lake, 8, 9), freely)
    actions = pa.table(lake.open(MESSAGES).get_add_actions(flatten=True)).to_pylist()
    ranges = [(each["min.queue_offset"], each["max.queue_offset"]) for each in actions]
    assert sorted(ranges) == [(1, 2), (8, 9)]
    assert {each["min.visible_at_ms"] for each in actions} == {MIDNIGHT_MS}


def test_columns_without_statistics_are_found_by_filters(tmp_path: Path) -> None:
    lake = Lake(tmp_path)
    rows = [message("T", 1, tags="a"), message("T", 2, tags="b"), message("T", 3)]
    lake.append(MESSAGES, rows_of(MESSAGES, *rows), freely)
    for _ in range(2):
        delta = lake.open(MESSAGES)
        assert delta.to_pyarrow_table(filters=[("tags", "=", "b")]).num_rows == 1
        dataset = delta.to_pyarrow_dataset()
        assert dataset.count_rows(filter=pc.field("tags").is_null()) == 1
        assert dataset.count_rows(filter=pc.field("queue_offset") > 1) == 2
        # The second pass checks that the filters also work after a merge of files.
        delta.optimize.compact()


@pytest.mark.parametrize("name", TABLES)
def test_the_guide_tells_every_column(name: str) -> None:
    page = (ROOT / "docs/guide/lake.md").read_text(encoding="utf-8")
    table = table_named(name)
    by = ", ".join(f"`{column}`" for column in table.partitioned_by)
    assert f"| `{name}` | {by} | `{table.dated_by}` |" in page
    for column, (kind, about) in table.columns.items():
        assert f"| `{column}` | {kind} | {about} |" in page
