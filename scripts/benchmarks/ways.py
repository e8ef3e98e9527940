"""The ways to score pairs: plainly, by the engine, and with posts that have been encoded."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.measuring import Row, Timing, alternate
from benchmarks.workload import Workload
from rerankers import checkpoint
from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Inputs, Pairs, Reranker, Terms
from rerankers.engine import fast_paths
from rerankers.engine.precompute import precompute
from rerankers.engine.precomputed_folder import version_of
from rerankers.engine.precomputed_vectors import PrecomputedVectors
from rerankers.engine.scoring import BATCH_SIZE, score_tokenized
from rerankers.engine.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder, TokenIds

Scores = npt.NDArray[np.float32]
Way = Callable[[], Scores]

PLAIN = "plain, padded"
ENGINE = "engine"
NARROW = "engine, bf16"
STORED = "engine, posts encoded"

_QUERY_SETTINGS = {WORDS: "query_words", TRIGRAMS: "query_trigrams"}
_POST_SETTINGS = {WORDS: "post_words", TRIGRAMS: "post_trigrams", URL_TRIGRAMS: "url_trigrams"}


def compare(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Measure every way that the model can go, and print the outcome.

    ``engine`` begins with texts that have been read; ``engine, posts encoded`` with texts, the
    posts' vectors being on the disk.
    """
    encoded = Tokenized.of(workload.pairs, encoder, model)
    ways: dict[str, Way] = {
        PLAIN: plain(model, encoded), ENGINE: lambda: score_tokenized(model, encoded)
    }  # fmt: skip
    if "bf16" in getattr(fast_paths.way_of(model), "PRECISIONS", ()):
        ways[NARROW] = lambda: score_tokenized(model, encoded, precision="bf16")
    with TemporaryDirectory() as directory:
        name = type(model).__module__.rpartition(".")[2]
        if workload.device == "cpu" and name in fast_paths.encodable():
            ways[STORED] = stored(name, model, encoder, workload.pairs, Path(directory))
        return report(title, alternate(ways, workload.rounds), len(workload.pairs))


def stored(
    name: str, model: Reranker, encoder: TextEncoder, pairs: Pairs, directory: Path
) -> Way:  # fmt: skip
    """Everything but what the posts' vectors on the disk save; they are written here."""
    place = directory / "checkpoint"
    checkpoint.save(place, name, model, encoder, {})
    ready = checkpoint.TrainedReranker(name, model, encoder, {}, place)
    started = time.perf_counter()
    size = precompute(directory / "precomputed", ready, pairs.texts, pairs.urls)
    seconds = time.perf_counter() - started
    print(f"encoding {len(pairs.texts):,} posts: {seconds:.1f} s, {size / 1e6:,.0f} MB")
    found = PrecomputedVectors.open(directory / "precomputed", version_of(place), "measure again")
    with_them = replace(ready, precomputed=found)
    return lambda: with_them.score(pairs)


def report(title: str, timings: Mapping[str, Timing], count: int) -> list[Row]:
    """Print pairs/s of each way, how much faster it is than the first, and how scores differ."""
    (_, first), *_ = timings.items()
    # Without it a difference says nothing: scores of random weights are nearly alike.
    spread = float(np.std(first.result))
    rows = []
    for name, timing in timings.items():
        measured = f"{count / timing.median:,.0f} pairs/s"
        difference = ""
        if timing is not first:
            measured += f" ({timing.ratio(first):.2f} ×)"
            largest = float(np.abs(timing.result - first.result).max(initial=0.0))
            difference = (
                f", scores (standard deviation {spread:.1e}) differ by at most {largest:.1e}"
            )
        print(f"{title}, {name}: {measured}{difference}", flush=True)
        rows.append((f"{title}, {name}", measured))
    return rows


def plain(model: Reranker, encoded: Tokenized) -> Way:
    """Batches in the order of the run; every pair has its own copy of its query.

    Each text is padded to the length that the model reads at most, where it has one (MP-HCNN:
    10/51/68/140/120, section 4.3), else to the longest text.
    """
    query_lengths, post_lengths = padded_lengths(model, encoded)
    device, count = model.device_of(), len(encoded.query_index)

    def run() -> Scores:
        scores = np.zeros(count, dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, count, BATCH_SIZE):
                rows = np.arange(start, min(start + BATCH_SIZE, count))
                queries = in_full(encoded.queries, encoded.query_index[rows], query_lengths, device)
                posts = in_full(encoded.posts, encoded.post_index[rows], post_lengths, device)
                own = torch.arange(len(rows), device=device)
                found = model(queries, posts, own, encoded.features_of(rows, device))
                scores[rows] = found.float().cpu().numpy()
        return scores

    return run


def padded_lengths(model: Reranker, encoded: Tokenized) -> tuple[dict[str, int], dict[str, int]]:
    """What :func:`plain` pads queries and posts to, by view."""
    return (
        _lengths(model, encoded.queries, _QUERY_SETTINGS),
        _lengths(model, encoded.posts, _POST_SETTINGS),
    )


def _lengths(
    model: Reranker, inputs: Mapping[str, TokenIds], settings: Mapping[str, str]
) -> dict[str, int]:
    """View -> terms that every text is padded to."""
    longest = {view: max(1, int(packed.lengths.max(initial=0))) for view, packed in inputs.items()}
    return {
        view: int(getattr(model.config, settings.get(view, ""), length))
        for view, length in longest.items()
    }


def in_full(
    inputs: Mapping[str, TokenIds],
    rows: npt.NDArray[np.int64],
    lengths: Mapping[str, int],
    device: torch.device,
) -> Inputs:
    """The texts ``rows`` [B] of every view, cut or padded to its length."""
    return {
        view: Terms(*(_to_length(part, lengths[view]) for part in packed.batch(rows, device)))
        for view, packed in inputs.items()
    }


def _to_length(part: torch.Tensor, length: int) -> torch.Tensor:
    """[B, L] cut or padded to [B, length]; the weights of posts, [B, 0], are left alone."""
    return F.pad(part[:, :length], (0, max(0, length - part.shape[1]))) if part.shape[1] else part
