"""Writes a tiny random sentence transformer to a folder, for tests of teachers."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
WORDS = [*SPECIAL, "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "passage", ":"]

POOLING_KEYS = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    numbers = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(numbers, "[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    # Padding and truncation as in all-MiniLM-L6-v2's file, which must not count
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(folder / "tokenizer.json"))
    description = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    write_json(folder / "tokenizer_config.json", description)


def write_folder(
    folder: Path, model_type: str = "bert", pooling: str = "mean"
) -> torch.nn.Module:
    """Write a tiny random transformer in the layout of sentence-transformers.

    Returns the model as an object of transformers. The test is skipped if that package
    is not installed.
    """
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed"
    )
    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        model_type,
        vocab_size=len(WORDS),
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=24,
        pad_token_id=0,
        initializer_range=0.5,
    )
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    write_modules(folder, pooling)
    return model


def write_modules(folder: Path, pooling: str) -> None:
    """Write the files that add pooling and normalization to a transformer."""
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    modules = [
        {
            "idx": index,
            "name": str(index),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for index, (name, path) in enumerate(paths.items())
    ]
    write_json(folder / "modules.json", modules)
    pooling_mode = {
        "word_embedding_dimension": 16,
        f"pooling_mode_{POOLING_KEYS[pooling]}": True,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling_mode)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12})
