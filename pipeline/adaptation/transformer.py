"""Sentence transformers in folders: BERT and RoBERTa by a plain forward pass, others by a library.

Texts of equal length are encoded together, so there is neither padding nor a mask, and products are
in bfloat16 where the processor has it. That is more than twice as fast as the library
sentence-transformers on the same cores; the cosine to its encodings in fp32 is above .9999.

BERT: https://aclanthology.org/N19-1423; mean over tokens as a sentence's encoding:
https://aclanthology.org/D19-1410.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from pipeline.command.errors import DataError

FloatArray = npt.NDArray[np.float32]
Embed = Callable[[Sequence[str]], Iterator[tuple[list[int], FloatArray]]]
"""Texts -> for groups of texts their places and their encodings [n, E]; each text comes once."""

BATCH_TOKENS = 4096
"""Tokens that are encoded together."""
CHUNK = 256
"""Texts that a library encodes in one call, after which the progress is reported."""

BERT, ROBERTA = frozenset({"bert"}), frozenset({"camembert", "roberta", "xlm-roberta"})
"""Model types of the same layers; the positions of RoBERTa begin after that of the padding."""

PLAIN = ["Transformer", "Pooling", "Normalize"]
"""Modules that need no library: encodings are brought to unit length in any case."""


@dataclass(frozen=True)
class SentenceModel:
    """The description of a folder: its configuration files.

    Attributes:
        config: ``config.json``; empty if there is none.
        modules: of sentence-transformers, in order.
        pooling: ``mean`` over tokens or ``cls``, the first token; others need the library.
        length: tokens of the longest text, special ones included; longer ones are cut.
        prefix: put before each text.
    """

    folder: Path
    config: dict[str, Any]
    modules: list[str]
    pooling: str
    length: int
    prefix: str

    @classmethod
    def read(cls, folder: Path) -> SentenceModel:
        """Read the files of a folder; raises ValueError if one is no JSON."""
        config = _json(folder / "config.json")
        modules = _json(folder / "modules.json") or []
        paths = {module["type"].rpartition(".")[2]: folder / module["path"] for module in modules}
        lengths = [
            _json(folder / "sentence_bert_config.json").get("max_seq_length"),
            _json(folder / "tokenizer_config.json").get("model_max_length"),
            config.get("max_position_embeddings", 512) - first_position(config),
        ]
        return cls(
            folder,
            config,
            list(paths),
            _pooling(_json(paths.get("Pooling", folder / "1_Pooling") / "config.json")),
            int(min(length for length in lengths if length)),
            _prefix(folder, config),
        )

    @property
    def is_plain(self) -> bool:
        """Whether tokenizer, pooling and modules are those that need no library."""
        return (
            self.modules == PLAIN[: len(self.modules)]
            and self.pooling in ("mean", "cls")
            and (self.folder / "tokenizer.json").is_file()
        )

    @property
    def is_bert(self) -> bool:
        """Whether :class:`Bert` is this transformer."""
        return (
            self.config.get("model_type") in BERT | ROBERTA
            and self.config.get("hidden_act") == "gelu"
            and self.config.get("position_embedding_type", "absolute") == "absolute"
            and (self.folder / "model.safetensors").is_file()
        )


def open_folder(folder: Path, device: str = "cpu") -> Embed:
    """What encodes by a folder of sentence-transformers or with ``model.onnx``.

    Raises:
        DataError: the folder is neither, is damaged, or needs a library that is not installed.
    """
    try:
        model = SentenceModel.read(folder)
        if model.is_plain and model.is_bert:
            return _by_equal_length(model, Bert(model, device))
        onnx = [folder / name for name in ("model.onnx", "onnx/model.onnx")]
        if model.is_plain and (there := [path for path in onnx if path.is_file()]):
            return _by_equal_length(model, _onnx(model, there[0]))
        if model.config or model.modules:
            return _by_library(model, device)
    except DataError:
        raise
    # Each library that reads a file has errors of its own, some of them plain Exceptions.
    except Exception as error:
        raise DataError(
            f"{folder}: cannot be read as a sentence transformer: {type(error).__name__}: {error}"
        ) from error
    raise DataError(
        f"{folder}: found no sentence transformer, expected config.json, model.safetensors and "
        "tokenizer.json, or model.onnx and tokenizer.json"
    )


class Bert:
    """BERT or RoBERTa: E numbers of a token, in A heads of attention.

    Linear products are computed in bfloat16 where the processor has it, sums and norms in fp32.
    """

    def __init__(self, model: SentenceModel, device: str) -> None:
        self.config, self.pooling, self.device = model.config, model.pooling, device
        self.first = first_position(model.config)
        self.dtype = narrow_type(device)
        loaded = load_file(model.folder / "model.safetensors", device=device)
        weights = {re.sub(r"^(bert|roberta)\.", "", k): v.float() for k, v in loaded.items()}
        for layer in range(self.config["num_hidden_layers"]):
            attention = f"encoder.layer.{layer}.attention.self"
            for kind in ("weight", "bias"):
                parts = [weights.pop(f"{attention}.{x}.{kind}") for x in ("query", "key", "value")]
                weights[f"{attention}.{kind}"] = torch.cat(parts)
        narrow = {k for k in weights if k.startswith("encoder.") and "LayerNorm" not in k}
        self.weights = {k: v.to(self.dtype) if k in narrow else v for k, v in weights.items()}

    @torch.inference_mode()
    def __call__(self, ids: npt.NDArray[np.int64]) -> FloatArray:
        """Encodings [B, E] of texts with tokens [B, L]."""
        embeddings = "embeddings.{}_embeddings.weight"
        positions = self.weights[embeddings.format("position")][self.first :]
        x = self.weights[embeddings.format("word")][torch.from_numpy(ids).to(self.device)]
        x = x + positions[: ids.shape[1]] + self.weights[embeddings.format("token_type")][0]
        x = self._norm(x, "embeddings")
        for layer in range(self.config["num_hidden_layers"]):
            x = self._layer(x, f"encoder.layer.{layer}")
        pooled = x.mean(1) if self.pooling == "mean" else x[:, 0]
        found: FloatArray = pooled.cpu().numpy()
        return found

    def _layer(self, x: Tensor, name: str) -> Tensor:
        """Tokens [B, L, E] after attention and a feed-forward network of one hidden layer."""
        heads = self.config["num_attention_heads"]
        parts = self._linear(x, f"{name}.attention.self").unflatten(2, (3, heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)  # [B, A, L, E / A] each
        attended = F.scaled_dot_product_attention(query, key, value)
        attended = attended.transpose(1, 2).flatten(2)  # [B, L, E]
        attended = self._linear(attended, f"{name}.attention.output.dense").float()
        x = self._norm(x + attended, f"{name}.attention.output")
        hidden = F.gelu(self._linear(x, f"{name}.intermediate.dense"))
        return self._norm(
            x + self._linear(hidden, f"{name}.output.dense").float(), f"{name}.output"
        )

    def _linear(self, x: Tensor, name: str) -> Tensor:
        weights = self.weights
        return F.linear(x.to(self.dtype), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def _norm(self, x: Tensor, name: str) -> Tensor:
        weight, bias = (self.weights[f"{name}.LayerNorm.{kind}"] for kind in ("weight", "bias"))
        return F.layer_norm(x, x.shape[-1:], weight, bias, self.config["layer_norm_eps"])


def narrow_type(device: str) -> torch.dtype:
    """bfloat16 where the processor multiplies it faster than fp32, else fp32."""
    if device.startswith("cuda"):
        is_fast = torch.cuda.is_bf16_supported(including_emulation=False)
    else:
        is_fast = torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return torch.bfloat16 if is_fast else torch.float32


def first_position(config: dict[str, Any]) -> int:
    """Row of the first token's position in the table of positions."""
    return config.get("pad_token_id", 1) + 1 if config.get("model_type") in ROBERTA else 0


def in_chunks(
    texts: Sequence[str], call: Callable[[list[str]], FloatArray]
) -> Iterator[tuple[list[int], FloatArray]]:
    """Encodings by a library, for :data:`CHUNK` texts at a time."""
    for start in range(0, len(texts), CHUNK):
        places = list(range(start, min(start + CHUNK, len(texts))))
        yield places, call([texts[place] for place in places])


def _by_equal_length(
    model: SentenceModel, forward: Callable[[npt.NDArray[np.int64]], FloatArray]
) -> Embed:
    """Encodings by a forward pass for texts with tokens [B, L]."""
    tokenizer = Tokenizer.from_file(str(model.folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(model.length)

    def embed(texts: Sequence[str]) -> Iterator[tuple[list[int], FloatArray]]:
        prefixed = [model.prefix + text for text in texts]
        ids = [found.ids for found in tokenizer.encode_batch(prefixed)]
        for places in groups_of_equal_length([len(tokens) for tokens in ids]):
            yield places, forward(np.array([ids[place] for place in places], dtype=np.int64))

    return embed


def groups_of_equal_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Places of texts of one length, shortest first, of :data:`BATCH_TOKENS` together at most."""
    by_length: dict[int, list[int]] = {}
    for place, length in enumerate(lengths):
        by_length.setdefault(length, []).append(place)
    for length, places in sorted(by_length.items()):
        size = max(1, BATCH_TOKENS // length)
        yield from (places[start : start + size] for start in range(0, len(places), size))


def _onnx(model: SentenceModel, path: Path) -> Callable[[npt.NDArray[np.int64]], FloatArray]:
    """The forward pass of an ONNX file with inputs named as those of BERT; its first output counts.

    That has numbers of each token, which are pooled, or of each text.
    """
    try:
        import onnxruntime
    except ImportError as error:
        raise _not_installed("onnxruntime", model.folder, error) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    inputs = {item.name for item in session.get_inputs()}
    output = session.get_outputs()[0].name

    def forward(ids: npt.NDArray[np.int64]) -> FloatArray:
        values = {
            "input_ids": ids,
            "attention_mask": np.ones_like(ids),
            "token_type_ids": np.zeros_like(ids),
        }
        given = {name: value for name, value in values.items() if name in inputs}
        [found] = session.run([output], given)
        if found.ndim == 3:
            found = found.mean(axis=1) if model.pooling == "mean" else found[:, 0]
        return found.astype(np.float32)

    return forward


def _by_library(model: SentenceModel, device: str) -> Embed:
    """Encodings by sentence-transformers, for any other architecture; no pickled file is read."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise _not_installed("sentence-transformers", model.folder, error) from None
    library = SentenceTransformer(
        str(model.folder),
        device=device,
        local_files_only=True,
        model_kwargs={"use_safetensors": True},
    )

    def call(texts: list[str]) -> FloatArray:
        found: FloatArray = library.encode(
            texts, prompt=model.prefix or None, show_progress_bar=False
        )
        return found.astype(np.float32)

    return lambda texts: in_chunks(texts, call)


def _not_installed(library: str, folder: Path, error: ImportError) -> DataError:
    return DataError(
        f"found no {library} ({error}), which {folder} needs; install it by\n"
        "  pip install 'tweetrerank[adapt]'"
    )


def _json(path: Path) -> Any:
    """Content of a JSON file, or an empty mapping if there is none."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _pooling(config: dict[str, Any]) -> str:
    """How tokens become one encoding, by either form of the file; ``mean`` without a file."""
    older = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    if "pooling_mode" in config or not modes:
        return str(config.get("pooling_mode", "mean"))
    return older.get(modes[0], modes[0]) if len(modes) == 1 else "+".join(modes)


def _prefix(folder: Path, config: dict[str, Any]) -> str:
    """What the description puts before a text to find; ``passage: `` for models named E5."""
    settings = _json(folder / "config_sentence_transformers.json")
    prompts = settings.get("prompts") or {}
    for name in ("document", "passage", settings.get("default_prompt_name")):
        if prompts.get(name):
            return str(prompts[name])
    names = f"{config.get('_name_or_path', '')} {folder.resolve().name}".lower()
    return "passage: " if re.search(r"(?<![a-z0-9])e5(?![a-z0-9])", names) else ""
