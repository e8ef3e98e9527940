"""The ways to score pairs: plainly, by the engine, and by a matcher that is kept."""

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F  # noqa: N812

from benchmarks.measuring import Row, Timing, alternate
from benchmarks.workload import Workload
from rerankers import matchers
from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Reranker, Terms, Views
from rerankers.encoded import Encoded
from rerankers.scoring import BATCH_SIZE, batches_of, score_encoded
from rerankers.views import Packed, TextEncoder

Scores = npt.NDArray[np.float32]
Way = Callable[[], Scores]

PLAIN = "plain, padded"
ENGINE = "engine"
KEPT = "engine, tables kept"

_QUERY_SETTINGS = {WORDS: "query_words", TRIGRAMS: "query_trigrams"}
_POST_SETTINGS = {WORDS: "post_words", TRIGRAMS: "post_trigrams", URL_TRIGRAMS: "url_trigrams"}


def compare(title: str, model: Reranker, encoder: TextEncoder, workload: Workload) -> list[Row]:
    """Measure every way that the model can go, and print the outcome.

    ``engine`` begins with texts that have been read, and so makes a matcher's tables first;
    ``engine, tables kept`` only matches, as a process does that scores again what it knows.
    """
    encoded = Encoded.of(workload.pairs, encoder, model)
    ways: dict[str, Way] = {
        PLAIN: plain(model, encoded), ENGINE: lambda: score_encoded(model, encoded)
    }  # fmt: skip
    if kept := kept_matcher(model, encoded):
        ways[KEPT] = kept
    return report(title, alternate(ways, workload.rounds), len(workload.pairs))


def report(title: str, timings: Mapping[str, Timing], count: int) -> list[Row]:
    """Print pairs/s of each way, how much faster it is than the first, and how scores differ."""
    (_, first), *_ = timings.items()
    rows = []
    for name, timing in timings.items():
        measured = f"{count / timing.median:,.0f} pairs/s"
        difference = ""
        if timing is not first:
            measured += f" ({timing.ratio(first):.2f} ×)"
            largest = float(np.abs(timing.result - first.result).max(initial=0.0))
            difference = f", scores differ by at most {largest:.1e}"
        print(f"{title}, {name}: {measured}{difference}", flush=True)
        rows.append((f"{title}, {name}", measured))
    return rows


def plain(model: Reranker, encoded: Encoded) -> Way:
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


def padded_lengths(model: Reranker, encoded: Encoded) -> tuple[dict[str, int], dict[str, int]]:
    """What :func:`plain` pads queries and posts to, by view."""
    return (
        _lengths(model, encoded.queries, _QUERY_SETTINGS),
        _lengths(model, encoded.posts, _POST_SETTINGS),
    )


def kept_matcher(model: Reranker, encoded: Encoded) -> Way | None:
    """Matching alone, by a matcher made beforehand; None where the model has none here."""
    with torch.inference_mode():
        matcher = matchers.find(model, encoded)
    if matcher is None:
        return None

    def run() -> Scores:
        scores = np.zeros(len(encoded.query_index), dtype=np.float32)
        with torch.inference_mode():
            for rows in batches_of(encoded, BATCH_SIZE):
                scores[rows] = matcher.scores_of(rows).float().cpu().numpy()
        return scores

    return run


def _lengths(
    model: Reranker, views: Mapping[str, Packed], settings: Mapping[str, str]
) -> dict[str, int]:
    """View -> terms that every text is padded to."""
    longest = {view: max(1, int(packed.lengths.max(initial=0))) for view, packed in views.items()}
    return {
        view: int(getattr(model.config, settings.get(view, ""), length))
        for view, length in longest.items()
    }


def in_full(
    views: Mapping[str, Packed],
    rows: npt.NDArray[np.int64],
    lengths: Mapping[str, int],
    device: torch.device,
) -> Views:
    """The texts ``rows`` [B] of every view, cut or padded to its length."""
    return {
        view: Terms(*(_to_length(part, lengths[view]) for part in packed.padded(rows, device)))
        for view, packed in views.items()
    }


def _to_length(part: torch.Tensor, length: int) -> torch.Tensor:
    """[B, L] cut or padded to [B, length]; the weights of posts, [B, 0], are left alone."""
    return F.pad(part[:, :length], (0, max(0, length - part.shape[1]))) if part.shape[1] else part
