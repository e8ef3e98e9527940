"""A tiny random sentence transformer in a folder, for tests of teachers."""

import json
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

SPECIAL = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
WORDS = [*SPECIAL, "the", "cat", "sat", "on", "a", "mat", "dog", "ran", "passage", ":"]


def write_json(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    tokenizer = Tokenizer(
        models.WordLevel({w: i for i, w in enumerate(WORDS)}, "[UNK]")
    )
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    # Padding and truncation as in all-MiniLM-L6-v2's file, which must not count.
    tokenizer.enable_padding(length=16)
    tokenizer.enable_truncation(16)
    tokenizer.save(str(folder / "tokenizer.json"))
    description = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    write_json(folder / "tokenizer_config.json", description)


def write_folder(
    folder: Path, model_type: str = "bert", pooling: str = "mean"
) -> torch.nn.Module:
    """A tiny random transformer in a folder of sentence-transformers, and transformers' model."""
    transformers = pytest.importorskip(
        "transformers", reason="transformers is not installed"
    )
    torch.manual_seed(1)
    sizes = {"vocab_size": len(WORDS), "hidden_size": 16, "intermediate_size": 24}
    sizes |= {
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "max_position_embeddings": 24,
    }
    others = {"pad_token_id": 0, "initializer_range": 0.5}
    config = transformers.AutoConfig.for_model(model_type, **sizes, **others)
    model = transformers.AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    write_tokenizer(folder)
    modules = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    listed = [
        {
            "idx": i,
            "name": str(i),
            "path": path,
            "type": f"sentence_transformers.models.{name}",
        }
        for i, (name, path) in enumerate(modules.items())
    ]
    write_json(folder / "modules.json", listed)
    pooling_key = {"mean": "mean_tokens", "cls": "cls_token"}.get(
        pooling, f"{pooling}_tokens"
    )
    description = {"word_embedding_dimension": 16, f"pooling_mode_{pooling_key}": True}
    write_json(folder / "1_Pooling" / "config.json", description)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 12})
    return model
