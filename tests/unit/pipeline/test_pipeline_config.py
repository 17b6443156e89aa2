"""The pipeline's settings, and the lake and checkpoint locations that follow from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig, is_local, places_of, spark_options_of


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        ("local[2,4]", True),
        ("local-cluster[2,1,1024]", True),
        ("spark://host:7077", False),
        ("k8s://https://host", False),
        ("yarn", False),
        ("locality", False),
    ],
)
def test_which_masters_are_on_this_machine(master: str, *, local: bool) -> None:
    assert is_local(master) is local


def test_here_everything_is_in_the_data_directory() -> None:
    places = places_of(PipelineConfig(), Path("/data"))
    assert (places.lake, places.checkpoints) == ("/data/lake", "/data/pipeline/checkpoints")
    assert places.cache == Path("/data/pipeline/cache")


def test_settings_say_otherwise() -> None:
    config = PipelineConfig(lake_uri="s3://b/lake", checkpoint_uri="/c", cache_dir="/k")
    for data in (None, Path("/data")):
        places = places_of(config, data)
        assert (places.lake, places.checkpoints, places.cache) == ("s3://b/lake", "/c", Path("/k"))


def test_without_a_data_directory_the_cache_is_the_users(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    config = PipelineConfig(lake_uri="/l", checkpoint_uri="/c")
    assert places_of(config, None).cache == tmp_path / "escrowmq"


@pytest.mark.parametrize("missing", ["lake_uri", "checkpoint_uri"])
def test_without_a_data_directory_both_places_must_be_said(missing: str) -> None:
    given = {"lake_uri": "/l", "checkpoint_uri": "/c", missing: ""}
    with pytest.raises(RequestRefused) as refused:
        places_of(PipelineConfig(**given), None)  # type: ignore[arg-type] # they are texts
    assert refused.value.fields["key"] == f"pipeline.{missing}"


@pytest.mark.parametrize("missing", ["lake_uri", "checkpoint_uri"])
def test_a_cluster_needs_both_places(missing: str) -> None:
    given = {"lake_uri": "/l", "checkpoint_uri": "/c"}
    PipelineConfig(master="spark://host:7077", **given)  # type: ignore[arg-type] # they are texts
    with pytest.raises(RequestRefused, match="a cluster needs a location") as refused:
        PipelineConfig(master="spark://host:7077", **{**given, missing: ""})  # type: ignore[arg-type] # they are texts
    assert refused.value.fields["key"] == f"pipeline.{missing}"


def test_brokers_are_addresses_with_commas() -> None:
    config = PipelineConfig(brokers="127.0.0.1:10911, name:1,[::1]:65535")
    assert config.broker_addresses == ("127.0.0.1:10911", "name:1", "[::1]:65535")


@pytest.mark.parametrize(
    "brokers", ["", "host", "host:", ":1", "host:0", "host:65536", "a:1,", "::1:2"]
)
def test_a_malformed_address_is_refused(brokers: str) -> None:
    with pytest.raises(RequestRefused, match="must be host:port"):
        PipelineConfig(brokers=brokers)


def test_spark_options_are_words_as_in_a_shell() -> None:
    text = "spark.a=1 'spark.b=two words' spark.c=x=y"
    assert spark_options_of(text) == {"spark.a": "1", "spark.b": "two words", "spark.c": "x=y"}


@pytest.mark.parametrize("text", ["spark.a", "a=1", "'spark.a=1", "spark.a="])
def test_odd_spark_options_are_refused(text: str) -> None:
    with pytest.raises(RequestRefused) as refused:
        PipelineConfig(spark_options=text)
    assert refused.value.fields["key"] == "pipeline.spark_options"


def test_bounds_are_kept() -> None:
    with pytest.raises(RequestRefused, match="must be from 100 to 86400000"):
        PipelineConfig(settle_interval_ms=1)
