"""Part 5: multiply-adds that MP-HCNN needs, against those that the machine can do.

The forward pass of section 3 for P pairs of unpadded texts, with Lq and Ld the terms of a query and
a post in one input, k the filter width, N the depth, E the size of a term's vector and F the number
of filters, takes

* for each distinct text and convolution n = 1 … N, with I numbers per term (E at first, then F) and
  shorter windows at the text's end: Σ_{j<k} max(0, L - j) · I · F;
* for the similarities of each pair and comparison: Lq · Ld · (E + N · F);
* for the scoring layers of each pair: their weights; those of the network over query positions
  (evidence ``terms``) Lq times.

Look-ups, activations, softmax, pooling and the scaling by IDF are not counted. The engine can do
with less, as it computes a repeated window of terms once.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.measuring import Row, alternate, printed
from benchmarks.plain import PaddedPairs
from benchmarks.workload import Workload
from rerankers.base import TRIGRAMS, WORDS, Reranker
from rerankers.engine.scoring import score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.models.mp_hcnn import Model
from rerankers.text.inputs import TextEncoder

Lengths = Mapping[str, npt.NDArray[np.int64]]
"""Input -> number of terms of each text."""

SIDES = {"cpu": (2048, 1024, 1024), "cuda": (8192, 8192, 8192)}
"""Device -> sizes of the matrix product that measures its rate."""


def measure(workload: Workload) -> list[Row]:
    """The engine's share of the machine's rate, at the paper's size and as shipped."""
    rows = []
    for title, (model, encoder) in workload.mp_hcnns.items():
        rows += _share(title, model, encoder, workload)
    return rows


def _share(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    tokenized = Tokenized.from_pairs(workload.pairs, encoder, model)
    count = len(workload.pairs)
    least, padded = needed(model, tokenized), needed_padded(model, tokenized)
    timings = alternate(
        {"product": _product(workload.device), "engine": lambda: score_tokenized(model, tokenized)},
        workload.rounds,
    )
    product = float(np.prod(SIDES[workload.device]))
    rate = product / timings["product"].median
    share = least / product * timings["engine"].ratio(timings["product"])
    print(
        f"{title}: {count:,} pairs take {least / rate:.3f} s at the rate of large matrix products, "
        f"the engine takes {timings['engine'].median:.3f} s (a share above 100% is possible as the "
        "engine computes repeated windows of terms once)"
    )
    return printed(
        [
            (
                f"{title}, multiply-adds a pair",
                f"{least / count / 1e6:,.2f} million ({padded / least:.1f} times as many with "
                "padding)",
            ),
            (
                f"{title}, engine's share of the rate of large matrix products",
                f"{share:.0%} of {rate / 1e9:,.1f} billion multiply-adds/s",
            ),
        ]
    )


def _product(device: str) -> Any:
    """A large matrix product in single precision, finished on return."""
    rows, inner, columns = SIDES[device]
    left = torch.ones(rows, inner, device=device)
    right = torch.ones(inner, columns, device=device)

    def run() -> None:
        with torch.inference_mode():
            result = left @ right
            result[0, 0].item()  # waits for a GPU

    return run


def needed(model: Any, tokenized: Tokenized) -> int:
    """Multiply-adds of the pairs without padding, with each distinct text encoded once."""
    padded = PaddedPairs(tokenized, model)
    queries, posts = (
        {name: np.minimum(ids.lengths, limits[name]) for name, ids in inputs.items()}
        for inputs, limits in (
            (tokenized.queries, padded.query_lengths),
            (tokenized.posts, padded.post_lengths),
        )
    )
    of_queries = {name: lengths[tokenized.query_index] for name, lengths in queries.items()}
    of_posts = {name: lengths[tokenized.post_index] for name, lengths in posts.items()}
    encoding = _encoding(model, queries) + _encoding(model, posts)
    return encoding + _similarities(model, of_queries, of_posts) + _scoring(model, of_queries)


def needed_padded(model: Any, tokenized: Tokenized) -> int:
    """Multiply-adds of the plain way: both texts of each pair encoded, padded, in full windows."""
    padded = PaddedPairs(tokenized, model)
    queries, posts = (
        {name: np.full(len(padded.query_index), length) for name, length in lengths.items()}
        for lengths in (padded.query_lengths, padded.post_lengths)
    )
    encoding = _encoding(model, queries, True) + _encoding(model, posts, True)
    return encoding + _similarities(model, queries, posts) + _scoring(model, queries)


def _encoding(model: Any, lengths: Lengths, full_windows: bool = False) -> int:
    """Convolutions over texts; ``full_windows`` counts the zeros beyond the end."""
    total = 0
    for name, terms in lengths.items():
        tower = _tower(model, name)
        if tower is None:
            continue
        for convolution in tower.convolutions:
            width = convolution.width
            missing = 0 if full_windows else 1
            places = sum(int(np.maximum(terms - missing * j, 0).sum()) for j in range(width))
            total += places * convolution.weight.shape[0] // width * convolution.weight.shape[1]
    return total


def _similarities(model: Any, queries: Lengths, posts: Lengths) -> int:
    """Similarities of all positions at every depth; lengths are [P] per input."""
    total = 0
    for places in model.perspectives.values():
        tower: Any = _tower(model, places.query_input)
        sizes = [_vector_size(tower), *(c.weight.shape[1] for c in tower.convolutions)]
        total += int((queries[places.query_input] * posts[places.post_input]).sum()) * sum(sizes)
    return total


def _scoring(model: Model, queries: Lengths) -> int:
    """Linear layers; query lengths are [P] per input."""
    pairs = len(next(iter(queries.values())))
    total = pairs * _linear(model.score)
    if model.config.evidence == "terms":
        for name, places in model.perspectives.items():
            total += int(queries[places.query_input].sum()) * _linear(model.position[name])
    return total


def _linear(network: nn.Module) -> int:
    """Number of weights in a network's linear layers."""
    return sum(layer.weight.numel() for layer in network.modules() if isinstance(layer, nn.Linear))


def _tower(model: Any, name: str) -> Any:
    """The tower of an input, None if it is switched off."""
    towers = dict(model.towers.items())
    return towers.get(WORDS if name == WORDS else TRIGRAMS)


def _vector_size(tower: Any) -> int:
    """Size of a term's vector."""
    parameter = next(tower.parameters(), None)
    device = "cpu" if parameter is None else parameter.device
    return int(tower.vectors(torch.zeros(1, dtype=torch.int64, device=device)).shape[1])
