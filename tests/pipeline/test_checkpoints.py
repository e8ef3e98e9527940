"""Which checkpoint a collection's searches take, and whether it is a fusion."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Patch

from pipeline.collections.named import find
from pipeline.errors import DataError
from pipeline.ranking.build import default_reranker
from pipeline.ranking.checkpoints import default_directory, directory_for
from pipeline.ranking.tuning import Tuning, tuning_of
from rerankers import checkpoint
from rerankers.errors import RerankerError


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: Patch) -> Path:
    """A folder of shipped fusions in the place of ours: ``all`` has seen mb2012 and stackfaq."""
    folder = tmp_path / "shipped"
    monkeypatch.setattr(checkpoint, "SHIPPED", folder)
    for ending in ("", "-adapted"):
        add(folder / "fusion" / f"all{ending}", "mb2012", "stackfaq-train")
    add(folder / "mp_hcnn" / "all", "mb2012")
    return folder


def add(folder: Path, *trained_on: str) -> Path:
    folder.mkdir(parents=True)
    left_out = None if folder.name.startswith("all") else folder.name.removesuffix("-adapted")
    metrics = {"trained_on": trained_on, "left_out": left_out}
    (folder / "metrics.json").write_text(json.dumps(metrics))
    return folder


def test_adapted_fusions_are_preferred_where_there_is_a_table(shipped: Path) -> None:
    for adapted, name in ((None, "all"), (shipped, "all-adapted")):  # Any file that there is
        collection: Any = SimpleNamespace(key="mine", file=None, adapted_file=adapted)
        assert directory_for("fusion", collection) == shipped / "fusion" / name
        # Other models read no table.
        assert directory_for("mp_hcnn", collection) == shipped / "mp_hcnn" / "all"
    shutil.rmtree(shipped / "fusion" / "all-adapted")
    assert default_directory("fusion", "mine", is_adapted=True).name == "all"


def test_no_fusion_is_taken_that_has_seen_the_collection(shipped: Path) -> None:
    for name in ("mb2012", "stackfaq-train"):
        for is_adapted in (False, True):
            with pytest.raises(DataError, match=f"no fusion trained for {name}"):
                default_directory("fusion", name, is_adapted=is_adapted)
    # A model for one collection was trained without it.
    for adapted in ("mb2012", "mb2012-adapted"):
        made = add(shipped / "fusion" / adapted, "mb2011", "mb2013")
        assert default_directory("fusion", "mb2012", is_adapted=True) == made
        assert default_directory("fusion", "mb2012") == shipped / "fusion" / "mb2012"


def test_what_is_lost_or_of_another_collection_is_refused(shipped: Path, tmp_path: Path) -> None:
    """It is never passed over for a shipped model."""
    mine = tmp_path / "home" / "checkpoints" / "fusion" / "own" / "mine"
    mine.mkdir(parents=True)
    metrics = {"trained_on": ["other"], "collection_file": "other.toml"}
    (mine / "metrics.json").write_text(json.dumps(metrics))

    def refused(message: str) -> None:
        with pytest.raises(RerankerError, match=message):
            default_directory("fusion", "own/mine")

    refused(r"config\.json: found no readable JSON")
    checkpoint.write_config(mine, {"model": "fusion"})
    refused("mine: found a model trained for other, expected one for mine")
    mine.rename(f"{mine}-adapted")
    refused("mine-adapted: found no word vectors adapted to own/mine")
    of_another = tmp_path / "home" / "lambda" / "fusion" / "all" / "own" / "mine.json"
    tuning = Tuning(0.5, {0.0: 0.1}, 0.1, (), "AP", "minmax", 2, 1, (), ("other",))
    replace(tuning, checkpoint="fusion/all").save(of_another)
    with pytest.raises(DataError, match=r"λ of fusion/all tuned on other, expected .* mine"):
        tuning_of(shipped / "fusion" / "all", "own/mine")


def test_searches_take_a_fusion_that_fits(shipped: Path, data_dir: Path) -> None:
    def taken(name: str, fits: bool = True) -> str:
        return default_reranker(find(name, data_dir), not fits)

    assert taken("sample") == taken("mb2013") == "fusion"
    assert taken("mb2012") == "mp_hcnn"  # which the fusion has seen
    assert taken("mb2013", fits=False) == "mp_hcnn"
    assert taken("wikiqa") == "mp_hcnn"  # whose candidates are given
