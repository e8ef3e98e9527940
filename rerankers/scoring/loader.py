"""Batches of pairs for a GPU, tokenized ahead of it by several processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch.utils.data import DataLoader, Dataset

from rerankers import features
from rerankers.base import Pairs, Reranker
from rerankers.features import KnownPosts
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder
from rerankers.text.ragged import Rows

QUERY_CLASS, URL_CLASS = 16, 32
"""Characters by which queries and URLs of one length class differ."""

LEAST = 2
"""Batches that are worth a process."""


@dataclass(frozen=True)
class TextBatches(Dataset[Tokenized]):
    """Batches of pairs of about the same lengths, each tokenized when it is taken.

    Attributes:
        model: its inputs are read, nothing on its device.
        pairs: P pairs.
        encoder: of the model's checkpoint.
        features: [P, K] of the model's families; None without families.
        parts: rows of each batch.
    """

    model: Reranker
    pairs: Pairs
    encoder: TextEncoder
    features: npt.NDArray[np.float32] | None
    parts: Sequence[Rows]

    @classmethod
    def of(
        cls,
        model: Reranker,
        pairs: Pairs,
        encoder: TextEncoder,
        known: KnownPosts | None,
        batch_size: int,
    ) -> TextBatches:
        """Batches of ``batch_size`` pairs; the features are computed at once.

        Posts of a class are in the order of their lengths, so that most of those with equal texts
        come together.
        """
        families = model.feature_families
        table = features.table(pairs, families, encoder.idf, known) if families else None
        queries, urls, texts = map(_sizes, (pairs.queries, pairs.urls, pairs.texts))
        keys = (
            pairs.post_index,
            texts[pairs.post_index],
            urls[pairs.post_index] // URL_CLASS,
            queries[pairs.query_index] // QUERY_CLASS,
        )
        order = np.lexsort(keys)
        parts = [order[start : start + batch_size] for start in range(0, len(order), batch_size)]
        return cls(model, pairs, encoder, table.values if table else None, parts)

    def __len__(self) -> int:
        return len(self.parts)

    def __getitem__(self, number: int) -> Tokenized:
        rows, model = self.parts[number], self.model
        pairs = self.pairs.take(rows)
        posts: dict[tuple[str, str], int] = {}
        same = [
            posts.setdefault(post, len(posts)) for post in zip(pairs.texts, pairs.urls, strict=True)
        ]
        texts, urls = zip(*posts, strict=True)
        return Tokenized(
            self.encoder.queries(pairs.queries, model.query_inputs, model.idf),
            self.encoder.posts(texts, urls, model.post_inputs),
            pairs.query_index,
            np.array(same)[pairs.post_index],
            None if self.features is None else self.features[rows],
        )

    def ahead(self, processes: int) -> Iterator[tuple[Rows, Tokenized]]:
        """Rows and texts of each batch; several ``processes`` are at work on the next ones."""
        workers = min(processes, len(self) // LEAST)
        loader = DataLoader(
            self,
            batch_size=None,
            num_workers=workers if workers > 1 else 0,
            collate_fn=lambda batch: batch,
            multiprocessing_context="fork" if workers > 1 else None,
        )
        return zip(self.parts, loader, strict=True)


def _sizes(texts: Sequence[str]) -> Rows:
    """[N] characters of each text."""
    return np.fromiter(map(len, texts), dtype=np.int64, count=len(texts))
