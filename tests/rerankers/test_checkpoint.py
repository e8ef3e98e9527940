"""Checkpoint folders: their content, and what loading refuses."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.reranking_samples import encoder, network, small, small_model
from safetensors.torch import load_file, save_file

from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.networks.inputs import TextEncoder
from tweetrerank.rerankers.reranker_error import RerankerError

FILES = ("config.json", "metrics.json", "model.safetensors", "vocabulary.json")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A complete checkpoint whose IDF comes from a file."""
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nwater\t40\n")
    reader = TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    model = network(small_model("mp_hcnn", "robust"), reader, metrics={"seed": 0})
    checkpoint.save(tmp_path / "saved", model)
    return tmp_path / "saved"


def test_a_folder_of_json_and_safetensors(saved: Path) -> None:
    assert {path.name for path in saved.iterdir()} == {*FILES}
    config = json.loads((saved / "config.json").read_text())
    found = (config["model"], config["config"]["trigram_size"], config["idf"])
    assert found == ("mp_hcnn", 8, str(saved.parent / "idf.tsv"))
    assert set(config["files"]) == {*FILES[1:]}
    assert json.loads((saved / "metrics.json").read_text()) == {"seed": 0}
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o644}
    with pytest.raises(
        RerankerError, match="saved: found files, expected an empty folder"
    ):
        checkpoint.save(saved, small("bigram", "count"))
    message = r"saved: found a checkpoint of mp_hcnn, expected .*knrm; name mp_hcnn as `reranker`"
    with pytest.raises(RerankerError, match=message):
        checkpoint.load(saved, "knrm")
    checkpoint.save(
        saved.parent / "other", small("sm_cnn", "static"), {"held_out.run.gz": b"run"}
    )
    files = json.loads((saved.parent / "other" / "config.json").read_text())["files"]
    assert set(files) == {*FILES[1:], "held_out.run.gz"}


def test_every_shipped_file_has_its_sha256() -> None:
    named = {
        (path.parent / name).resolve()
        for path in SHIPPED.rglob("config.json")
        for name in ("config.json", *json.loads(path.read_text())["files"])
    }
    assert named == {path for path in SHIPPED.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shared", [False, True])
def test_a_changed_byte_in_any_file_is_an_error(
    saved: Path, tmp_path: Path, shared: bool
) -> None:
    """Also in those that a shipped checkpoint shares with others."""
    folder = SHIPPED / "sm_cnn" / "mb2011" if shared else saved
    copy = tmp_path / "copies" / "copy"
    shutil.copytree(folder, copy)
    if shared:
        shutil.copytree(folder.parent / "words", copy.parent / "words")
    for name in (
        "config.json",
        *json.loads((copy / "config.json").read_text())["files"],
    ):
        content = (copy / name).read_bytes()
        middle = len(content) // 2
        flipped = bytes([content[middle] ^ 1])
        (copy / name).write_bytes(content[:middle] + flipped + content[middle + 1 :])
        with pytest.raises(
            RerankerError, match=rf"copy/{name}.*: found .*, expected "
        ) as error:
            checkpoint.load(copy)
        if name != "config.json":  # That may be no JSON any more.
            assert "restore it" in str(error.value) and "train again" in str(
                error.value
            )
        (copy / name).write_bytes(content)
    assert checkpoint.load(copy)


def damage(folder: Path, **changes: Any) -> None:
    """Change ``weights``, a ``setting``, keys of ``config.json`` and ``written`` files; None
    removes one. The SHA-256 are those of the weights and the keys."""
    written, setting, weights = (
        changes.pop(k, {}) for k in ("written", "setting", "weights")
    )
    tensors = load_file(folder / "model.safetensors") | weights
    save_file(
        {key: v for key, v in tensors.items() if v is not None},
        folder / "model.safetensors",
    )
    config = json.loads((folder / "config.json").read_text())
    config |= {"config": config["config"] | setting, "sha256": None} | changes
    checkpoint.write_config(
        folder, {key: v for key, v in config.items() if v is not None}
    )
    for name, content in written.items():
        (folder / name).unlink(missing_ok=True)
        if content is not None:
            (folder / name).write_bytes(content)


FIT = r"model\.safetensors: the weights do not fit.*"
DAMAGES: dict[str, tuple[dict[str, Any], str]] = {
    **{
        f"{n} missing": ({"written": {n: None}}, f"{n}: found no .*, expected ")
        for n in FILES
    },
    "a foreign file": (
        {"written": {"model.txt": b"tree"}},
        r"saved: found model\.txt, expected the files alone that .*config\.json names",
    ),
    "an old one": (
        {"format": 1},
        r"config\.json: found checkpoint format 1, expected 2; tr",
    ),
    "not UTF-8": ({"written": {"config.json": b'{"\xff'}}, r"config\.json"),
    "unknown model": ({"model": "mp_hcmm"}, r"config\.json.*'mp_hcmm'.*mp_hcnn"),
    "no settings": ({"config": None}, r"config\.json"),
    "unknown setting": ({"setting": {"dept": 3}}, r"config\.json: .*dept"),
    "setting out of range": ({"setting": {"hidden": -5}}, r"config\.json"),
    "other features": (
        {"features": ["links.has_url"]},
        r"config\.json: .*links\.has_url",
    ),
    "other sizes": ({"setting": {"hidden": 10}}, f"{FIT}size"),
    "a missing weight": ({"weights": {"score.0.bias": None}}, f"{FIT}[Mm]issing"),
    "an additional weight": ({"weights": {"extra": torch.zeros(3)}}, f"{FIT}extra"),
    "idf file gone": ({"written": {"../idf.tsv": None}}, r"idf\.tsv"),
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


def test_a_tuned_weight_is_a_file_of_its_checkpoint(
    saved: Path, tmp_path: Path
) -> None:
    """In those of earlier versions it is not named, which a warning says."""
    copy = tmp_path / "copy"
    checkpoint.copy_whole(saved, copy, {"lambda.json": b"{}"})
    (copy / "lambda.json").write_text("{ }")
    with pytest.raises(
        RerankerError, match=r"lambda\.json: found .*, expected the SHA-256"
    ):
        checkpoint.load(copy)
    (saved / "lambda.json").write_text("{}")
    with pytest.warns(
        RuntimeWarning, match=r"lambda\.json: .*config\.json does not name it"
    ):
        checkpoint.load(saved)
