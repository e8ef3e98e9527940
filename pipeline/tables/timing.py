"""How long reranking takes once the candidates and the scores that it reads are there."""

import dataclasses
import json
import time
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from indexes.files import atomic_file
from pipeline import fusion
from pipeline.experiments import Cell, checkpoint_of
from pipeline.first_stage import FirstStage
from pipeline.runtime import choose_device, provenance
from pipeline.sources import open_source
from pipeline.tables.contract import Workshop

if TYPE_CHECKING:
    from pipeline.reranking import Candidates, NeuralReranker
    from pipeline.sources import Source

TOPICS = 20
"""First topics of a collection that are timed."""

REPEATS = 10
"""The quickest of so many counts: whatever else the machine does only adds."""

FROM_TEXTS, FROM_ENCODED = "ms for 1000", "ms for 1000, posts encoded"
"""What is measured: see :func:`milliseconds`."""


def milliseconds(cell: Cell, workshop: Workshop) -> Mapping[str, float]:
    """Milliseconds for 1000 candidates, from their texts to their scores by the cell's model.

    ``FROM_TEXTS``, and ``FROM_ENCODED`` where ``pipeline.index --encode`` has seen the posts.
    Neither the search nor the scores of rankers and other models that a fusion reads are in it.
    They are measured once on all cores, while no cell is computed, and kept beside the results.

    Raises:
        DataError: the collection's files, or the checkpoint of a model that is read, are missing.
        RerankerError: a checkpoint is damaged.
    """
    path = workshop.directory / "timings" / f"{cell.key}.json"
    kept: dict[str, float] | None = None
    if path.exists():  # What older versions measured was something else.
        kept = json.loads(path.read_text(encoding="utf-8")).get("times")
    if kept is not None:
        return kept
    from pipeline.reranking import NeuralReranker

    device = choose_device(workshop.device)
    source = open_source(cell.collection, None, None, workshop.data)
    source = dataclasses.replace(source, topics=source.topics[:TOPICS])
    reranker = NeuralReranker.load(checkpoint_of(cell, workshop.directory), cell.reranker, device)
    candidates = _candidates(cell, source, reranker, device)
    found = {FROM_TEXTS: _quickest(reranker, candidates)}
    with TemporaryDirectory() as directory:
        found[FROM_ENCODED] = _quickest(
            _with_encodings(reranker, candidates, Path(directory) / "encodings"), candidates
        )
    with atomic_file(path) as stream:
        stream.write(json.dumps({"times": found, **provenance()}, indent=1) + "\n")
    return found


def _candidates(
    cell: Cell, source: "Source", reranker: "NeuralReranker", device: str
) -> "Candidates":
    """Those that the cell's search had."""
    from pipeline.checkpoints import load_reranker

    if cell.is_fusion:
        return fusion.find(
            source,
            reranker,
            lambda name, checkpoint: load_reranker(name, source, checkpoint, device),
        )
    return FirstStage(source, "ql").search(source.topics)


def _with_encodings(
    reranker: "NeuralReranker", candidates: "Candidates", directory: Path
) -> "NeuralReranker":
    """The same, and what is known of the candidates' posts in a folder that is made for it."""
    from rerankers.encoding import encode, open_encodings

    posts = list(candidates.posts.values())
    encode(
        directory, reranker.checkpoint, [post.text for post in posts], [post.url for post in posts]
    )
    encodings = open_encodings(directory, reranker.checkpoint, "measure again")
    return dataclasses.replace(
        reranker, checkpoint=dataclasses.replace(reranker.checkpoint, encodings=encodings)
    )


def _quickest(reranker: "NeuralReranker", candidates: "Candidates") -> float:
    """Milliseconds for 1000 candidates."""
    seconds = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        reranker.score(candidates)
        seconds.append(time.perf_counter() - started)
    count = sum(map(len, candidates.run.values()))
    return round(1e6 * min(seconds) / max(1, count), 1)
