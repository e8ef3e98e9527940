"""Part 5: the multiply-adds that MP-HCNN needs against those that the machine can do.

What the forward pass of section 3 has to multiply for P pairs of texts without any padding, with
Lq and Ld the terms of a query and a post in the view at hand, k the filter's width, N the depth,
E the size of a term's vector and F the number of filters:

* encoding, once for each distinct text: convolution n = 1 … N reads I numbers a term (E at first,
  then F), and its windows at the text's end hold fewer than k terms:
  Σ_{j<k} max(0, L - j) · I · F;
* matching, for each pair and comparison: Lq · Ld · (E + N · F);
* judging, for each pair: the weights of the linear layers, those of the network that reads query
  positions (evidence ``terms``) Lq times.

Look-ups, activations, softmax, pooling and the scaling by IDF are not counted. The engine can do
with less than this, because a window of terms that occurs twice is encoded once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from benchmarks.measuring import Row, alternate
from benchmarks.paper_size import paper_model
from benchmarks.ways import padded_lengths
from benchmarks.workload import Workload
from rerankers.base import TRIGRAMS, WORDS, Reranker
from rerankers.engine.scoring import score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.models.mp_hcnn import Model
from rerankers.text.inputs import TextEncoder

Lengths = Mapping[str, npt.NDArray[np.int64]]
"""View -> terms of each text."""

SIDES = {"cpu": (2048, 1024, 1024), "cuda": (8192, 8192, 8192)}
"""Device -> sizes of the matrix product that measures it."""


@dataclass(frozen=True)
class MultiplyAdds:
    """Numbers of multiply-adds."""

    encoding: int
    matching: int
    judging: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.encoding + self.matching + self.judging


def measure(workload: Workload) -> list[Row]:
    """The engine's share of what the machine can do, at the paper's size and as shipped."""
    loaded = workload.checkpoint
    rows = _share("MP-HCNN, shipped", loaded.model, loaded.encoder, workload)
    return _share("MP-HCNN at the paper's size", *paper_model(workload), workload) + rows


def _share(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    encoded = Tokenized.of(workload.pairs, encoder, model)
    count = len(workload.pairs)
    least, plainly = needed(model, encoded).total, spent_plainly(model, encoded).total
    sizes = SIDES[workload.device]
    timings = alternate(
        {"product": _product(workload.device), "engine": lambda: score_tokenized(model, encoded)},
        workload.rounds,
    )
    rate = float(np.prod(sizes)) / timings["product"].median
    floor = least / rate
    share = least / float(np.prod(sizes)) * timings["engine"].ratio(timings["product"])
    threads = torch.get_num_threads()
    where = f"{threads} thread{'s' if threads > 1 else ''}" if workload.device == "cpu" else "GPU"
    print(
        f"{title}: {least / count / 1e6:,.2f} million multiply-adds a pair are needed, "
        f"{plainly / count / 1e6:,.2f} million with padding; "
        f"large matrix products do {rate / 1e9:,.1f} billion a second ({where}), "
        f"so {count:,} pairs take {floor:.3f} s at least; the engine takes "
        f"{timings['engine'].median:.3f} s, that is {share:.0%} of the machine's rate "
        "(above 100% where windows of terms repeat, as each is encoded once)",
        flush=True,
    )
    return [
        (f"{title}, multiply-adds a pair", f"{least / count / 1e6:,.2f} million "
         f"({plainly / least:.1f} times as many with padding)"),
        (f"{title}, engine's share of the rate of large matrix products",
         f"{share:.0%} of {rate / 1e9:,.1f} billion multiply-adds/s"),
    ]  # fmt: skip


def _product(device: str) -> Any:
    """One large matrix product in single precision, done when it returns."""
    rows, inner, columns = SIDES[device]
    left = torch.ones(rows, inner, device=device)
    right = torch.ones(inner, columns, device=device)

    def run() -> None:
        with torch.inference_mode():
            result = left @ right
            result[0, 0].item()  # waits for a GPU

    return run


def needed(model: Any, encoded: Tokenized) -> MultiplyAdds:
    """What the pairs need without padding, each distinct text encoded once."""
    limits = padded_lengths(model, encoded)
    queries, posts = (
        {view: np.minimum(packed.lengths, limit[view]) for view, packed in inputs.items()}
        for inputs, limit in zip((encoded.queries, encoded.posts), limits, strict=True)
    )
    return MultiplyAdds(
        encoding(model, queries, False) + encoding(model, posts, False),
        matching(
            model,
            {view: lengths[encoded.query_index] for view, lengths in queries.items()},
            {view: lengths[encoded.post_index] for view, lengths in posts.items()},
        ),
        judging(model, {view: lengths[encoded.query_index] for view, lengths in queries.items()}),
    )


def spent_plainly(model: Any, encoded: Tokenized) -> MultiplyAdds:
    """What the plain way multiplies: every pair encodes both texts, padded, in full windows."""
    queries, posts = (
        {view: np.full(len(encoded.query_index), length) for view, length in lengths.items()}
        for lengths in padded_lengths(model, encoded)
    )
    return MultiplyAdds(
        encoding(model, queries, True) + encoding(model, posts, True),
        matching(model, queries, posts),
        judging(model, queries),
    )


def encoding(model: Any, lengths: Lengths, full_windows: bool) -> int:
    """Convolutions over texts of these lengths; ``full_windows`` counts zeros beyond the end."""
    total = 0
    for view, terms in lengths.items():
        tower = _tower(model, view)
        if tower is None:
            continue
        for convolution in tower.convolutions:
            width = convolution.width
            missing = 0 if full_windows else 1
            places = sum(int(np.maximum(terms - missing * j, 0).sum()) for j in range(width))
            total += places * convolution.weight.shape[0] // width * convolution.weight.shape[1]
    return total


def matching(model: Any, queries: Lengths, posts: Lengths) -> int:
    """Similarities of all positions at every depth, for pairs of these lengths ([P] a view)."""
    total = 0
    for places in model.perspectives.values():
        tower: Any = _tower(model, places.query_input)
        sizes = [_vector_size(tower), *(c.weight.shape[1] for c in tower.convolutions)]
        total += int((queries[places.query_input] * posts[places.post_input]).sum()) * sum(sizes)
    return total


def judging(model: Model, queries: Lengths) -> int:
    """Linear layers, for pairs whose queries have these lengths ([P] a view)."""
    pairs = len(next(iter(queries.values())))
    total = pairs * _linear(model.score)
    if model.config.evidence == "terms":
        for name, places in model.perspectives.items():
            total += int(queries[places.query_input].sum()) * _linear(model.position[name])
    return total


def _linear(network: nn.Module) -> int:
    """Weights of the linear layers of a network."""
    return sum(layer.weight.numel() for layer in network.modules() if isinstance(layer, nn.Linear))


def _tower(model: Any, view: str) -> Any:
    """The tower that reads a view, None if it is switched off."""
    towers = dict(model.towers.items())
    return towers.get(WORDS if view == WORDS else TRIGRAMS)


def _vector_size(tower: Any) -> int:
    """Numbers of a term's vector."""
    parameter = next(tower.parameters(), None)
    device = "cpu" if parameter is None else parameter.device
    return int(tower.vectors(torch.zeros(1, dtype=torch.int64, device=device)).shape[1])
