"""Checkpoint folders: their content, and reasons to refuse one."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.reranking_samples import (
    all_pairs,
    encoder,
    network,
    small,
    small_model,
)
from safetensors.torch import load_file, save_file

from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.networks.inputs import TextEncoder
from tweetrerank.rerankers.reranker_error import RerankerError

PARTS = {"metrics.json", "model.safetensors", "vocabulary.json"}
"""Files of a network, besides ``config.json``, which names them."""


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A complete checkpoint whose IDF comes from a file."""
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nwater\t40\n")
    reader = TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    model = network(small_model("mp_hcnn", "robust"), reader, metrics={"seed": 0})
    checkpoint.save(tmp_path / "saved", model)
    return tmp_path / "saved"


def config_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return content


def test_a_folder_of_json_and_safetensors(saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == PARTS | {"config.json"}
    config = config_of(saved)
    assert config["model"] == "mp_hcnn"
    assert config["config"]["trigram_size"] == 8
    assert config["idf"] == str(saved.parent / "idf.tsv")
    assert set(config["files"]) == PARTS
    assert json.loads((saved / "metrics.json").read_text()) == {"seed": 0}
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o644}


def test_a_folder_that_is_not_empty_is_refused(saved: Path) -> None:
    message = "saved: found files, expected an empty folder"
    with pytest.raises(RerankerError, match=message):
        checkpoint.save(saved, small("bigram", "count"))


def test_another_model_is_refused(saved: Path) -> None:
    message = (
        r"saved: found a checkpoint of mp_hcnn, expected .*knrm; "
        r"name mp_hcnn as `reranker`"
    )
    with pytest.raises(RerankerError, match=message):
        checkpoint.load(saved, "knrm")


def test_further_files_are_part_of_a_checkpoint(tmp_path: Path) -> None:
    extras = {"held_out.run.gz": b"run"}
    checkpoint.save(tmp_path / "other", small("sm_cnn", "static"), extras)
    assert set(config_of(tmp_path / "other")["files"]) == PARTS | {"held_out.run.gz"}


def test_every_shipped_file_has_its_sha256() -> None:
    named = set()
    for path in SHIPPED.rglob("config.json"):
        for name in ("config.json", *config_of(path.parent)["files"]):
            named.add((path.parent / name).resolve())
    assert named == {path for path in SHIPPED.rglob("*") if path.is_file()}


@pytest.fixture
def shipped_copy(tmp_path: Path) -> Path:
    """A copy of a shipped checkpoint, with the folder that it shares."""
    for name in ("mb2011", "words"):
        shutil.copytree(SHIPPED / "mp_hcnn" / name, tmp_path / "copies" / name)
    return tmp_path / "copies" / "mb2011"


def test_scores_do_not_need_the_held_out_run(shipped_copy: Path) -> None:
    """Installed packages lack it."""
    expected = checkpoint.load(shipped_copy).score(all_pairs())
    (shipped_copy / "held_out.run.gz").unlink()
    scores = checkpoint.load(shipped_copy).score(all_pairs())
    np.testing.assert_array_equal(scores, expected)


def test_a_changed_held_out_run_is_an_error(shipped_copy: Path) -> None:
    (shipped_copy / "held_out.run.gz").write_bytes(b"")
    with pytest.raises(RerankerError, match=r"held_out\.run\.gz: found "):
        checkpoint.load(shipped_copy)


def test_another_missing_file_of_a_shipped_checkpoint(shipped_copy: Path) -> None:
    (shipped_copy / "lambda.json").unlink()
    with pytest.raises(RerankerError, match=r"lambda\.json: found no file"):
        checkpoint.load(shipped_copy)


def assert_a_changed_byte_is_an_error(folder: Path, name: str) -> None:
    content = (folder / name).read_bytes()
    middle = len(content) // 2
    flipped = bytes([content[middle] ^ 1])
    (folder / name).write_bytes(content[:middle] + flipped + content[middle + 1 :])
    message = rf"{folder.name}/{name}.*: found .*, expected "
    with pytest.raises(RerankerError, match=message) as error:
        checkpoint.load(folder)
    if name != "config.json":  # That may be no JSON any more.
        assert "restore it" in str(error.value)
        assert "train again" in str(error.value)
    (folder / name).write_bytes(content)


@pytest.mark.parametrize("name", ["config.json", *sorted(PARTS)])
def test_a_changed_byte_in_any_file_is_an_error(saved: Path, name: str) -> None:
    assert_a_changed_byte_is_an_error(saved, name)
    assert checkpoint.load(saved)


SHARING = SHIPPED / "sm_cnn" / "mb2011"


@pytest.mark.parametrize("name", ["config.json", *config_of(SHARING)["files"]])
def test_a_changed_byte_in_a_shared_file_is_an_error(tmp_path: Path, name: str) -> None:
    copy = tmp_path / "copies" / "copy"
    shutil.copytree(SHARING, copy)
    shutil.copytree(SHARING.parent / "words", copy.parent / "words")
    assert_a_changed_byte_is_an_error(copy, name)
    assert checkpoint.load(copy)


def without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def damage(
    folder: Path,
    files: Mapping[str, bytes | None] | None = None,
    settings: Mapping[str, Any] | None = None,
    weights: Mapping[str, Any] | None = None,
    **keys: Any,
) -> None:
    """Change files, settings, weights and keys of ``config.json``; None removes one.

    The SHA-256 in ``config.json`` are those of the changed weights and keys.
    """
    tensors = load_file(folder / "model.safetensors") | dict(weights or {})
    save_file(without_none(tensors), folder / "model.safetensors")
    config = config_of(folder)
    config["config"] |= settings or {}
    config["sha256"] = None
    checkpoint.write_config(folder, without_none(config | keys))
    for name, content in (files or {}).items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)


FIT = r"model\.safetensors: the weights do not fit.*"
MISSING: dict[str, tuple[dict[str, Any], str]] = {
    f"{name} missing": ({"files": {name: None}}, f"{name}: found no .*, expected ")
    for name in ("config.json", *sorted(PARTS))
}
DAMAGES: dict[str, tuple[dict[str, Any], str]] = MISSING | {
    "a foreign file": (
        {"files": {"model.txt": b"tree"}},
        r"saved: found model\.txt, expected the files alone that .*config\.json names",
    ),
    "an old format": (
        {"format": 1},
        r"config\.json: found checkpoint format 1, expected 2; tr",
    ),
    "not UTF-8": ({"files": {"config.json": b'{"\xff'}}, r"config\.json"),
    "unknown model": ({"model": "mp_hcmm"}, r"config\.json.*'mp_hcmm'.*mp_hcnn"),
    "no settings": ({"config": None}, r"config\.json"),
    "unknown setting": ({"settings": {"dept": 3}}, r"config\.json: .*dept"),
    "setting out of range": ({"settings": {"hidden": -5}}, r"config\.json"),
    "other features": (
        {"features": ["links.has_url"]},
        r"config\.json: .*links\.has_url",
    ),
    "other sizes": ({"settings": {"hidden": 10}}, f"{FIT}size"),
    "a missing weight": ({"weights": {"score.0.bias": None}}, f"{FIT}[Mm]issing"),
    "an additional weight": ({"weights": {"extra": torch.zeros(3)}}, f"{FIT}extra"),
    "idf file gone": ({"files": {"../idf.tsv": None}}, r"idf\.tsv"),
}


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(
    saved: Path, kind: str
) -> None:
    changes, message = DAMAGES[kind]
    damage(saved, **changes)
    with pytest.raises(RerankerError, match=message) as error:
        checkpoint.load(saved)
    assert str(saved.parent) in str(error.value)


def test_a_changed_tuned_weight_is_an_error(saved: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    checkpoint.copy_whole(saved, copy, {"lambda.json": b"{}"})
    (copy / "lambda.json").write_text("{ }")
    message = r"lambda\.json: found .*, expected the SHA-256"
    with pytest.raises(RerankerError, match=message):
        checkpoint.load(copy)


def test_a_tuned_weight_of_an_earlier_version_is_unchecked(saved: Path) -> None:
    (saved / "lambda.json").write_text("{}")
    message = r"lambda\.json: .*config\.json does not name it"
    with pytest.warns(RuntimeWarning, match=message):
        checkpoint.load(saved)
