"""Options of the commands that rank, and the retriever, the reranker and λ that they name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple, TypeVar

from pipeline.collections.own import ENDING
from pipeline.command import runtime
from pipeline.command.engine import ForeignOptions, engine_of
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import existing_file, fraction, option, positive_float, positive_int
from pipeline.ranking.interpolation import NORMALIZATIONS

if TYPE_CHECKING:
    from pipeline.collections.collection import Collection
    from pipeline.ranking.fusion import Fusion
    from pipeline.ranking.ranker import Mixing, NeuralReranker, Reranker, Retriever

METHODS = ("ql", "bm25", "rm3", "axiom")
DEFAULT_METHOD = "ql"
DEFAULT_HITS = 1000
DEFAULT_FUSION = "fusion"
DEFAULT_RERANKER = "mp_hcnn"
"""Where a fusion has no use for the options, or candidates are given."""
AUTO = "auto"
"""The model trained on an own collection that is best on held-out topics, or the default."""
UNTUNED_WEIGHT = 0.5
FUSIONS = ("fusion", "linear_fusion")
"""Models that find their own candidates, by several rankers; see :mod:`pipeline.ranking.fusion`."""


@dataclass(frozen=True)
class CollectionOptions:
    """Options of a collection."""

    topics: str = option(
        "collection (mb2012, trecqa-raw, sample, my-posts.toml, …) or file of topics (TREC XML or "
        "qid<TAB>text)",
        required=True,
        names=("--collection", "--topics"),
        metavar="NAME|FILE",
    )
    index: Path | None = option("index folder made by pipeline.index", parse=Path, metavar="DIR")
    qrels: Path | None = option("judgments of a file of topics", parse=existing_file)


@dataclass(frozen=True)
class ScoringOptions:
    """Options of scoring and mixing."""

    weight: float | None = option(
        "λ, the neural score's share (default: the checkpoint's tuned one; 1 where the candidates "
        "are given without scores)",
        parse=fraction,
        names=("--lambda",),
    )
    normalize: str = option("of scores before mixing", default="minmax", choices=NORMALIZATIONS)
    batch_size: int = option("pairs in a forward pass", default=256, parse=positive_int)
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    device: str = option(
        "where the model runs: auto, cpu, cuda (every GPU) or cuda:N (one)",
        default="auto",
        parse=runtime.device_name,
    )
    precision: str = option("of the model's arithmetic", default="fp32", choices=("fp32", "bf16"))


@dataclass(frozen=True)
class ModelOptions(ScoringOptions, ForeignOptions, CollectionOptions):
    """Options of a collection, and of a model that ranks its posts."""

    reranker: str = option(
        "model, or none for the first stage alone; fusion and linear_fusion find candidates by "
        f"several rankers (default: {DEFAULT_RERANKER}, or what was trained on an own collection "
        "and is best on its held-out topics)",
        default=AUTO,
    )
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one that has not seen these topics)",
        parse=Path,
        metavar="DIR",
    )
    idf: str | None = option(
        "word frequencies: wordfreq, index (the collection's own) or a file (default: as trained)",
        metavar="SOURCE",
    )
    hits: int | None = option(f"candidates per topic (default: {DEFAULT_HITS})", parse=positive_int)
    skip_unknown: bool = option(
        "leave out posts of a given run that the collection lacks (otherwise an error)", flag=True
    )
    precomputed: str | None = option(
        "folder of precomputed posts, or none (default: the index's own for this checkpoint, if "
        "any; see pipeline.index --precompute)",
        metavar="DIR",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)

    def open_collection(self) -> Collection:
        """The collection, with the index and the judgments that the options name."""
        from pipeline.collections.named import open_collection

        return open_collection(self.topics, self.index, self.qrels, self.data, engine_of(self))


@dataclass(frozen=True)
class RankingOptions(ModelOptions):
    """The same, and where candidates come from."""

    topic: ClassVar[str] = "first stage"

    candidates: str | None = option(
        "rerank this TREC run instead of searching; ql and rm3 name a collection's official runs",
        metavar="RUN",
    )
    method: str | None = option(f"first stage (default: {DEFAULT_METHOD})", choices=METHODS)
    mu: float | None = option("Dirichlet smoothing of ql, rm3 and axiom", parse=positive_float)
    parameter: tuple[str, ...] = option(
        "change another parameter of the first stage (k1, b, fb_terms, fb_docs, original_weight, "
        "beta, …); may be given several times",
        many=True,
        metavar="NAME=VALUE",
    )

    def problems(self) -> list[str]:
        """Arguments that contradict one another."""
        problems = []
        if self.candidates and (self.method or self.mu or self.parameter):
            problems.append(
                "--candidates: the run is given, so --method, --mu and --parameter change nothing"
            )
        if self.skip_unknown and not self.candidates:
            problems.append("--skip-unknown: only a run of --candidates can have unknown posts")
        if self.mu and self.method == "bm25":
            problems.append("--mu: bm25 has no μ; use --parameter k1=… and --parameter b=…")
        if self.reranker == "none" and (self.checkpoint or self.weight is not None):
            problems.append("--reranker none: there is nothing for --checkpoint or --lambda to do")
        if self.reranker in FUSIONS:
            given = {
                **self._of_search(),
                "--candidates": self.candidates,
                "--lambda": self.weight is not None,
                "--normalize": self.normalize != "minmax",
            }
            problems += [
                f"{flag}: --reranker {self.reranker} takes the rankers of its training; leave "
                f"{flag} out"
                for flag, value in given.items()
                if value
            ]
        return problems

    def problems_of(self, collection: Collection) -> list[str]:
        """Options of a search that a collection with given candidates has no use for."""
        if collection.given_candidates is None:
            return []
        given = {
            **self._of_search(),
            "--index": self.index,
            "--engine": self.engine,
            # The candidates of a run have ranks, and so best ones.
            "--hits": None if self.candidates else self.hits,
        }
        problems = [
            f"{flag}: {collection.name} is not searched, its candidates are given; leave {flag} out"
            for flag, value in given.items()
            if value
        ]
        if self.idf == "index":
            problems.append(f"--idf index: {collection.name} has no index; use wordfreq or a file")
        return problems

    def _of_search(self) -> dict[str, object]:
        return {"--method": self.method, "--mu": self.mu, "--parameter": self.parameter}


Ranks = TypeVar("Ranks", bound=RankingOptions)


class Setup(NamedTuple):
    """Collection and arguments of :func:`pipeline.ranking.ranker.rerank`."""

    collection: Collection
    retriever: Retriever
    reranker: Reranker | None
    mixing: Mixing


def set_up(options: RankingOptions) -> Setup:
    """Open the collection, its index or run, and the model."""
    options = with_model(options)
    from pipeline.ranking.ranker import Mixing, retriever_for

    if problems := options.problems():
        raise UsageError(problems)
    collection = options.open_collection()
    if problems := options.problems_of(collection):
        raise UsageError(problems)
    if options.reranker in FUSIONS:
        fusion = load_fusion(options, collection)
        return Setup(collection, fusion, fusion, Mixing(origin="fusion"))
    changes = [*options.parameter, *([f"mu={options.mu}"] if options.mu else [])]
    retriever = retriever_for(
        collection, options.candidates, options.method, changes, options.skip_unknown
    )
    if options.reranker == "none":
        return Setup(collection, retriever, None, Mixing())
    reranker = load_model(options, collection)
    return Setup(collection, retriever, reranker, _mixing(options, collection, reranker))


def with_model(options: Ranks, among: Sequence[str] = ()) -> Ranks:
    """The options with the name of a model (one of ``among``) in place of ``auto``."""
    if options.reranker != AUTO:
        return options
    name = DEFAULT_RERANKER
    if options.topics.endswith(ENDING) and not options.checkpoint:
        from pipeline.collections.named import find
        from pipeline.ranking.checkpoints import best_trained
        from rerankers import models

        # A fusion has no use for some options.
        known = [
            model
            for model in among or models.names()
            if not replace(options, reranker=model).problems()
        ]
        collection = find(options.topics, options.data)
        if best := best_trained(collection.key, known):
            name, tuning = best
            print(
                f"{name}, trained on {collection.title}: {tuning.measure} "
                f"{tuning.cross_validated:.4f} on held-out topics, {tuning.curve[0.0]:.4f} without "
                "it",
                file=sys.stderr,
            )
            return replace(options, reranker=name)
    if not options.checkpoint and _has_fusion(replace(options, reranker=DEFAULT_FUSION)):
        name = DEFAULT_FUSION
    return replace(options, reranker=name)


def _has_fusion(options: RankingOptions) -> bool:
    """Whether a fusion is there for the collection, and fits the other options."""
    from pipeline.ranking.checkpoints import directory_for

    if options.problems():
        return False
    collection = options.open_collection()
    if not collection.methods:
        return False
    try:
        return directory_for(options.reranker, collection).is_dir()
    except DataError:
        return False


def load_model(options: ModelOptions, collection: Collection) -> NeuralReranker:
    """The model that the options name, with precomputed posts if there are any."""
    runtime.import_nltk_alone()
    from pipeline.ranking.checkpoints import load_reranker, with_precomputed

    reranker = load_reranker(
        options.reranker,
        collection,
        options.checkpoint,
        options.device,
        options.threads,
        options.idf,
    )
    reranker = replace(reranker, batch_size=options.batch_size, precision=options.precision)
    return with_precomputed(reranker, options.precomputed, collection.index_directory)


def load_fusion(options: RankingOptions, collection: Collection) -> Fusion:
    """The fusion that the options name, with the rerankers whose scores it reads."""
    reranker = load_model(options, collection)
    # A folder of precomputed posts is the fusion's own, not that of the rerankers that it reads.
    precomputed = "none" if options.precomputed == "none" else None

    def load(name: str, folder: Path) -> NeuralReranker:
        part = replace(options, reranker=name, checkpoint=folder, precomputed=precomputed)
        return load_model(part, collection)

    from pipeline.ranking.fusion import Fusion

    return Fusion.load(collection, reranker, load)


def _mixing(options: RankingOptions, collection: Collection, reranker: NeuralReranker) -> Mixing:
    """λ: as given, else as tuned for the checkpoint."""
    from pipeline.ranking.checkpoints import tuned_weight
    from pipeline.ranking.ranker import Mixing

    if options.weight is not None:
        return Mixing(options.weight, options.normalize)
    given = collection.given_candidates is not None
    if given and not options.candidates:
        reason = "nothing to mix: the candidates are given without scores"
        return Mixing(1.0, options.normalize, reason)
    directory = reranker.checkpoint.directory
    if tuned := tuned_weight(directory, options.normalize, collection.key):
        return Mixing(tuned[0], options.normalize, tuned[1])
    # There is no official run of a training part to tune it on.
    advice = (
        "choose one by --lambda"
        if given
        else "run scripts/tune_lambda.py for this checkpoint and normalisation"
    )
    return Mixing(UNTUNED_WEIGHT, options.normalize, f"not tuned: {advice}")
