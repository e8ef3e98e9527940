"""How long reranking takes once the candidates and the scores that it reads are there."""

import dataclasses
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
    from indexes.posts import Post
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
    The scores of other models that a fusion reads are in it, the searches are not. They are
    measured once on all cores, while no cell is computed, and kept beside the results.

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
    work = _fusion(reranker, source, device) if cell.is_fusion else _alone(reranker, source)
    found = {FROM_TEXTS: work.quickest()}
    with TemporaryDirectory() as directory:
        found[FROM_ENCODED] = work.encoded(Path(directory)).quickest()
    with atomic_file(path) as stream:
        stream.write(json.dumps({"times": found, **provenance()}, indent=1) + "\n")
    return found


@dataclass(frozen=True)
class _Work:
    """Candidates, and the models whose scores they get: the last one's are those of the cell.

    Attributes:
        candidates: what is found before the time begins.
        models: by their names.
        score: has them score the candidates.
    """

    candidates: "Candidates"
    models: "Mapping[str, NeuralReranker]"
    score: "Callable[[Candidates, Mapping[str, NeuralReranker]], object]"

    def quickest(self) -> float:
        """Milliseconds for 1000 candidates."""
        seconds = []
        for _ in range(REPEATS):
            started = time.perf_counter()
            self.score(self.candidates, self.models)
            seconds.append(time.perf_counter() - started)
        count = sum(map(len, self.candidates.run.values()))
        return round(1e6 * min(seconds) / max(1, count), 1)

    def encoded(self, directory: Path) -> "_Work":
        """The same, and what is known of the candidates' posts in a folder for each model."""
        posts = list(self.candidates.posts.values())
        models = {
            name: _encoded(reranker, posts, directory / name)
            for name, reranker in self.models.items()
        }
        return dataclasses.replace(self, models=models)


def _alone(reranker: "NeuralReranker", source: "Source") -> _Work:
    """QL's candidates, which a model scores."""
    candidates = FirstStage(source, "ql").search(source.topics)
    return _Work(candidates, {"": reranker}, lambda found, models: models[""].score(found))


def _fusion(reranker: "NeuralReranker", source: "Source", device: str) -> _Work:
    """All rankers' candidates, which a fusion scores after the models whose scores it reads."""
    from pipeline.checkpoints import load_reranker

    fused = fusion.Fusion.of(
        reranker, lambda name, folder: load_reranker(name, source, folder, device)
    )

    def score(found: "Candidates", models: "Mapping[str, NeuralReranker]") -> object:
        neural = {name: models[name] for name in fused.neural}
        return models[""].score(dataclasses.replace(fused, neural=neural).read(found))

    return _Work(fused.search(source), {**fused.neural, "": reranker}, score)


def _encoded(
    reranker: "NeuralReranker", posts: "Sequence[Post]", directory: Path
) -> "NeuralReranker":
    """The reranker with what is known of posts in a folder that is made for it, if it has use."""
    from rerankers.encoding import encode, has_use, open_encodings

    if not has_use(reranker.checkpoint.model):
        return reranker
    folder = directory / "encodings"
    encode(folder, reranker.checkpoint, [p.text for p in posts], [p.url for p in posts])
    encodings = open_encodings(folder, reranker.checkpoint, "measure again")
    return dataclasses.replace(
        reranker, checkpoint=dataclasses.replace(reranker.checkpoint, encodings=encodings)
    )
