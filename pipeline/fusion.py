"""Learned fusion: what it is trained on, and how it ranks.

Neural scores of training topics come from models that have not seen these topics (five folds of
them, Wolpert 1992), since a fusion would trust a model's memory otherwise; those of other topics
come from the model trained on all training topics, which lies in the fusion's folder.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from indexes.methods import METHODS
from pipeline import precomputed
from pipeline.collections.trec import Qrels, Run
from pipeline.command.errors import DataError, UsageError
from pipeline.reranking import Candidates, Progress
from pipeline.training.training_set import JudgedCandidates, TrainingSet, microblog_training_set
from pipeline.union import OFFICIAL, UnionRetriever, joined

if TYPE_CHECKING:
    from indexes.posts import Post
    from pipeline.collections.sources import Source
    from pipeline.reranking import NeuralReranker
    from pipeline.training.folds import FoldModel
    from rerankers.base import Pairs
    from rerankers.text.inputs import TextEncoder

MODELS = {"learned": "fusion", "linear": "linear_fusion"}
"""Kind of fusion on the command line -> model."""

HITS = 1000
"""Candidates that each ranker may bring for a topic."""

MINIMUM_COUNT = 5
"""Posts that must have a word whose vector is kept: rarer ones are in too few to matter."""

NeuralScores = Callable[[str, Candidates], Run]
"""A neural reranker's name and candidates -> its scores."""


@dataclass(frozen=True)
class Rankers:
    """Whose scores a fusion reads.

    Attributes:
        lexical: methods of search, and official runs with ``run_`` before their names.
        neural: rerankers.
        candidate_rankers: those of ``lexical`` whose best posts are the candidates.
    """

    lexical: Sequence[str]
    neural: Sequence[str]
    candidate_rankers: Sequence[str]

    @classmethod
    def of(cls, config: Any) -> "Rankers":
        """Those of a fusion's settings: its ``signal:`` families and ``candidate_rankers``.

        Raises:
            UsageError: there is no ranker of a name, or nothing finds candidates.
        """
        from rerankers import models

        families = config.families.split(",")
        names = [name.partition(":")[2] for name in families if name.startswith("signal:")]
        lexical = [name for name in names if name in METHODS or name.startswith(OFFICIAL)]
        neural = [name for name in names if name not in lexical]
        candidate_rankers = (
            config.candidate_rankers.split(",") if config.candidate_rankers else lexical
        )
        problems = [
            f"signal:{name}: found no ranker of this name, expected one of "
            f"{', '.join([*METHODS, OFFICIAL + 'ql', OFFICIAL + 'rm3', *models.names()])}"
            for name in neural
            if name not in models.names()
        ]
        problems += [
            f"candidate_rankers: found {name}, expected one of {', '.join(lexical)}: methods of search and "
            "runs whose scores are a signal"
            for name in candidate_rankers
            if name not in lexical
        ]
        if not candidate_rankers:
            problems.append(
                "families: found no signal of a method of search or of a run, expected one at "
                "least: it is these that find candidates"
            )
        if problems:
            raise UsageError(problems)
        return cls(lexical, neural, candidate_rankers)


def training_set(
    config: Any, test: str | None, data: Path | None, neural: NeuralScores
) -> TrainingSet:
    """All judged microblog years but ``test``: candidates of all rankers, with their scores.

    Args:
        config: settings of the model to be trained.
        test: collection to leave out; None leaves out none.
        data: data folder.
        neural: scores of the training topics by a reranker that has not seen them.

    Raises:
        UsageError: there is no collection ``test``, or no such ranker.
        DataError: files or judgments are missing.
    """
    from pipeline.collections.sources import open_source

    rankers = Rankers.of(config)
    usual = microblog_training_set(test, data)
    parts: list[Candidates] = []
    qrels: Qrels = {}
    for name in usual.trained_on:
        source = open_source(name, None, None, data)
        assert source.qrels is not None  # Those without are no training collections.
        topics = [topic for topic in source.topics if topic.query_id in source.qrels]
        print(f"candidates of {name} by {', '.join(rankers.lexical)}", file=sys.stderr)
        retriever = UnionRetriever(source, rankers.lexical, rankers.candidate_rankers)
        parts.append(retriever.search(topics, HITS))
        qrels |= source.qrels
    candidates = with_neural(joined(parts), rankers.neural, neural)
    return replace(
        usual,
        candidates=f"the best {HITS} of each of {', '.join(rankers.candidate_rankers)}",
        training=JudgedCandidates(candidates, qrels),
        minimum_count=MINIMUM_COUNT,
    )


def with_neural(candidates: Candidates, names: Sequence[str], neural: NeuralScores) -> Candidates:
    """The candidates with the scores of neural rerankers, of those whose texts are known."""
    textless = {doc_id for doc_id, post in candidates.posts.items() if not post.text}
    readable = {
        query_id: {d: s for d, s in scores.items() if d not in textless}
        for query_id, scores in candidates.run.items()
    }
    part = Candidates(candidates.topics, readable, candidates.posts, {})
    scores = {name: neural(name, part) for name in names}
    return replace(candidates, signals={**candidates.signals, **scores})


def unseen_scores(
    candidates: Candidates, folds: "Sequence[FoldModel]", encoder: "TextEncoder"
) -> Run:
    """Scores of each topic's candidates by the fold's model that has not seen the topic."""
    from rerankers.engine.scoring import score

    pairs, keys = candidates.pairs(), candidates.keys()
    topics = np.array([topic.query_id for topic in candidates.topics])
    run: Run = {}
    for fold in folds:
        rows = np.flatnonzero(np.isin(topics[pairs.query_index], sorted(fold.held_out)))
        values = score(fold.model, pairs.part(rows), encoder)
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            query_id, doc_id = keys[row]
            run.setdefault(query_id, {})[doc_id] = value
    return run


@dataclass(frozen=True)
class Fusion:
    """A trained fusion, and the neural rerankers whose scores it reads.

    Attributes:
        reranker: the fusion itself.
        rankers: all whose scores it reads.
        neural: name -> reranker.
    """

    reranker: "NeuralReranker"
    rankers: Rankers
    neural: "Mapping[str, NeuralReranker]"

    @classmethod
    def of(
        cls, reranker: "NeuralReranker", load: "Callable[[str, Path], NeuralReranker]"
    ) -> "Fusion":
        """The fusion that a reranker is.

        Args:
            reranker: the trained model.
            load: gives the neural reranker of a name and of a folder, which is in the fusion's.

        Raises:
            DataError: the fusion's folder lacks a reranker whose scores it reads.
        """
        from rerankers.checkpoint import part_of

        rankers = Rankers.of(reranker.checkpoint.model.config)
        directory = reranker.checkpoint.directory
        folders = {name: part_of(directory, name) for name in rankers.neural}
        if missing := [name for name, folder in folders.items() if not folder.is_dir()]:
            raise DataError(
                f"{directory}: found no {', '.join(missing)} in this folder, expected one folder "
                "each: the fusion reads their scores; restore it, or train the fusion again"
            )
        neural = {name: load(name, folder) for name, folder in folders.items()}
        return cls(reranker, rankers, neural)

    def search(self, source: "Source") -> Candidates:
        """The candidates of all rankers that search, with their scores.

        Raises:
            UsageError: the source is not searched, or there is no index.
        """
        require_searched(source)
        retriever = UnionRetriever(source, self.rankers.lexical, self.rankers.candidate_rankers)
        return retriever.search(source.topics, HITS)

    def score(
        self, candidates: Candidates, batch_size: int | None = None,
        progress: Progress = lambda pairs_done: None,
    ) -> "FusedScores":  # fmt: skip
        """Score the candidates that :meth:`search` found, by the neural rerankers first.

        Args:
            candidates: with the scores of the rankers that search.
            batch_size: as in :meth:`NeuralReranker.score`.
            progress: called with numbers of pairs whose score by the fusion is there.
        """
        from rerankers.engine.scoring import BATCH_SIZE

        pairs = candidates.pairs()
        neural = self._neural(pairs)
        pairs = replace(pairs, signals={**pairs.signals, **neural})
        fused = self.reranker.checkpoint.score(pairs, batch_size or BATCH_SIZE, progress)
        return FusedScores(candidates, fused, neural)

    def read(self, candidates: Candidates) -> Candidates:
        """The candidates with the scores of the neural rerankers besides."""
        neural = self._neural(candidates.pairs())
        runs = {name: candidates.run_of(scores) for name, scores in neural.items()}
        return replace(candidates, signals={**candidates.signals, **runs})

    def _neural(self, pairs: "Pairs") -> "dict[str, npt.NDArray[np.float32]]":
        """Name -> scores of pairs [P], NaN for posts whose texts are not known."""
        has_text = np.array([bool(text) for text in pairs.texts], dtype=np.bool_)
        rows = np.flatnonzero(has_text[pairs.post_index])
        part = replace(
            pairs, query_index=pairs.query_index[rows], post_index=pairs.post_index[rows],
            signals={},
        )  # fmt: skip
        found = {}
        for name, reranker in self.neural.items():
            found[name] = np.full(len(pairs), np.nan, dtype=np.float32)
            found[name][rows] = reranker.checkpoint.score(part)
        return found

    def precomputed_for(self, posts: "Sequence[Post]", directory: Path) -> "Fusion":
        """The same with what is known of posts beforehand; see :mod:`pipeline.precomputed`."""
        return replace(
            self,
            reranker=precomputed.precomputed_for(self.reranker, posts, directory / "fusion"),
            neural={
                name: precomputed.precomputed_for(reranker, posts, directory / name)
                for name, reranker in self.neural.items()
            },
        )


@dataclass(frozen=True)
class FusedScores:
    """What a fusion, and the neural rerankers whose scores it reads, think of candidates.

    Attributes:
        candidates: P pairs.
        fused: [P] scores, higher is better.
        neural: name -> [P] scores, NaN where a text is not known.
    """

    candidates: Candidates
    fused: "npt.NDArray[np.float32]"
    neural: "Mapping[str, npt.NDArray[np.float32]]"

    def run(self) -> Run:
        """The fusion's ranking."""
        return self.candidates.run_of(self.fused)

    def runs(self) -> dict[str, Run]:
        """Of all whose scores are read: name -> ranking."""
        neural = {name: self.candidates.run_of(scores) for name, scores in self.neural.items()}
        return {**self.candidates.signals, **neural}


def require_searched(source: "Source") -> None:
    """Raise UsageError if the source's candidates are given: no ranker has scores for them."""
    if source.given is not None:
        raise UsageError(
            f"--fusion: {source.name} is not searched, its candidates are given; leave it out"
        )
