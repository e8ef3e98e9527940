"""Checkpoint folders: what is written, what is refused, and that nothing is lost."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import all_pairs, encoder, small_model
from safetensors.torch import load_file, save_file

from rerankers import checkpoint
from rerankers.errors import RerankerError
from rerankers.text.inputs import TextEncoder

FILES = {"config.json", "metrics.json", "model.safetensors", "vocabulary.json"}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A whole checkpoint whose IDF comes from a file."""
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nthe\t900\nwater\t40\n")
    save(tmp_path / "saved", idf)
    return tmp_path / "saved"


def save(directory: Path, idf: Path, seed: int = 0, **options: Any) -> None:
    reader = TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    model = small_model("mp_hcnn", "robust", seed=seed)
    checkpoint.save(directory, "mp_hcnn", model, reader, {"seed": seed}, **options)


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def change(path: Path, **changes: Any) -> None:
    """Change keys of a JSON file; None takes a key away."""
    whole = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in whole.items() if v is not None}))


def test_a_folder_of_json_and_safetensors(saved: Path) -> None:
    assert set(content(saved)) == FILES
    config = json.loads((saved / "config.json").read_text())
    assert config["model"] == "mp_hcnn"
    assert config["config"]["trigram_size"] == 8
    assert config["idf"] == str(saved.parent / "idf.tsv")
    assert json.loads((saved / "metrics.json").read_text()) == {"seed": 0}
    assert sorted(path.name for path in saved.parent.iterdir()) == ["idf.tsv", "saved"]
    assert {path.stat().st_mode & 0o777 for path in saved.iterdir()} == {0o644}
    assert saved.stat().st_mode & 0o777 == 0o755


def test_extras_are_written_with_it(tmp_path: Path, saved: Path) -> None:
    other = tmp_path / "other"
    save(other, tmp_path / "idf.tsv", seed=1, extras={"lambda.json": b'{"weight": 0.5}'})
    assert set(content(other)) == FILES | {"lambda.json"}
    assert checkpoint.load(other).metrics == {"seed": 1}


def test_only_an_empty_folder_is_written(tmp_path: Path, saved: Path) -> None:
    before = content(saved)
    with pytest.raises(RerankerError, match="saved: found files, expected an empty folder"):
        save(saved, tmp_path / "idf.tsv", seed=1)
    assert content(saved) == before


def test_loading_does_not_change_the_random_state_of_results(saved: Path) -> None:
    scores = [checkpoint.load(saved).score(all_pairs()) for _ in range(2)]
    np.testing.assert_array_equal(*scores)


def test_other_word_frequencies_may_be_used(saved: Path) -> None:
    own = encoder().idf
    assert checkpoint.load(saved, idf=own).encoder.idf is own
    assert checkpoint.load(saved).encoder.idf.source == str(saved.parent / "idf.tsv")


def test_idf_by_name() -> None:
    pytest.importorskip("wordfreq")
    assert checkpoint.idf_from("wordfreq").source == "wordfreq:en"
    assert checkpoint.idf_from("wordfreq:de").source == "wordfreq:de"
    with pytest.raises(RerankerError, match="no/such/file"):
        checkpoint.idf_from("no/such/file")


def cut(name: str, keep: float) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * keep)])

    return damage


def other_size(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    key = max(weights)
    save_file(weights | {key: torch.zeros(3, 3)}, folder / "model.safetensors")


def one_missing(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(dict(sorted(weights.items())[1:]), folder / "model.safetensors")


def one_too_many(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    save_file(weights | {"extra": torch.zeros(3)}, folder / "model.safetensors")


def config(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: change(folder / "config.json", **changes)


def setting(**changes: Any) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        whole = json.loads((folder / "config.json").read_text())["config"] | changes
        change(folder / "config.json", config=whole)

    return damage


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    **{f"{name} missing": ((lambda folder, name=name: (folder / name).unlink()), name)
       for name in sorted(FILES)},
    **{f"{name} cut to {keep}": (cut(name, keep), name) for name in sorted(FILES) for keep in (0, 0.5)},
    "no folder": (shutil.rmtree, "config.json"),
    "newer format": (config(format=99), r"config\.json: found checkpoint format 99, expected 1"),
    "no format": (config(format=None), r"config\.json"),
    "a list": (lambda folder: (folder / "config.json").write_text("[]"), r"config\.json: found a"),
    "not UTF-8": (lambda folder: (folder / "config.json").write_bytes(b'{"\xff'), r"config\.json"),
    "unknown model": (config(model="mp_hcmm"), r"config\.json.*'mp_hcmm'.*mp_hcnn"),
    "no model": (config(model=None), r"config\.json"),
    "no settings": (config(config=None), r"config\.json"),
    "no idf": (config(idf=None), r"config\.json"),
    "settings of a list": (config(config=[1]), r"config\.json"),
    "unknown setting": (setting(dept=3), r"config\.json: .*dept"),
    "setting of another type": (setting(depth="two"), r"config\.json"),
    "setting out of range": (setting(hidden=-5), r"config\.json"),
    "other sizes": (setting(hidden=10), r"model\.safetensors: the weights do not fit.*size"),
    "other depth": (setting(depth=1), r"model\.safetensors: the weights do not fit"),
    "a weight of another size": (other_size, r"model\.safetensors: the weights do not fit"),
    "a weight missing": (one_missing, r"model\.safetensors: the weights do not fit.*[Mm]issing"),
    "a weight too many": (one_too_many, r"model\.safetensors: the weights do not fit.*extra"),
    "idf file gone": (lambda folder: (folder.parent / "idf.tsv").unlink(), r"idf\.tsv"),
    "other vocabulary": (lambda folder: change(folder / "vocabulary.json", words=["a"]),
                         r"model\.safetensors: the weights do not fit"),
}  # fmt: skip


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_damaged_checkpoint_is_an_error_that_names_the_file(saved: Path, kind: str) -> None:
    damage, message = DAMAGES[kind]
    damage(saved)
    with pytest.raises(RerankerError, match=message) as error:
        checkpoint.load(saved)
    assert str(saved.parent) in str(error.value)


def test_a_checkpoint_of_another_model_says_what_to_ask_for(saved: Path) -> None:
    with pytest.raises(RerankerError, match=r"saved: found a checkpoint of mp_hcnn, expected .*"
                                            r"knrm; use --reranker mp_hcnn"):  # fmt: skip
        checkpoint.load(saved, "knrm")


def test_weights_with_code_in_them_are_not_read(saved: Path) -> None:
    """A pickle under the weights' name is refused, not run."""
    torch.save({"x": torch.zeros(1)}, saved / "model.safetensors")
    with pytest.raises(RerankerError, match=r"model\.safetensors: found no whole safetensors"):
        checkpoint.load(saved)
