"""Options of collections, of indexes in search engines, and of the commands that rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tweetrerank.indexes.engines.client import check_url, query_file
from tweetrerank.pipeline.command.options import (
    existing_file,
    fraction,
    option,
    positive_float,
    positive_int,
)
from tweetrerank.pipeline.defaults import (
    AUTO,
    DEFAULT_HITS,
    DEFAULT_METHOD,
    DEFAULT_RERANKER,
    DEFAULT_WINDOW,
    METHODS,
    NONE,
)
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.devices import device_name

if TYPE_CHECKING:
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.ranking.ranker import Ranker


def addresses(text: str) -> str:
    """Addresses of nodes, separated by commas."""
    for url in text.split(","):
        check_url(url.strip())
    return text


@dataclass(frozen=True)
class EngineOptions:
    """Options of an index in a search engine."""

    topic: ClassVar[str] = "search engine"

    engine: str | None = option(
        "search in OpenSearch or Elasticsearch at this address, in place of a local index; several "
        "nodes are separated by commas",
        parse=addresses,
        metavar="URL",
    )
    engine_index: str | None = option(
        "its index (default for a collection: tweetrerank-GROUP)", metavar="NAME"
    )
    engine_auth: Path | None = option(
        'file of user and password, or api_key, and ca, as lines such as user = "reader" (default: '
        "$TWEETRERANK_ENGINE_USER, _PASSWORD, _API_KEY, _CA)",
        parse=existing_file,
        metavar="FILE",
    )


@dataclass(frozen=True)
class ForeignOptions(EngineOptions):
    """The same, and of an index that pipeline.index has not made."""

    topic: ClassVar[str] = "search engine"

    text_field: str | None = option(
        "field of the texts in an index of --engine that is searched as it is",
        metavar="FIELD",
    )
    url_field: str | None = option("its field of links", metavar="FIELD")
    time_field: str | None = option(
        "its field of times, a date or a number, for topics with a time limit",
        metavar="FIELD",
    )
    id_field: str | None = option("its field of ids (default: _id)", metavar="FIELD")
    query: Path | str | None = option(
        "file of its query, JSON with {{query}} for the topic's text, or id of a search template "
        "with the parameter query (default: match on the text field)",
        parse=query_file,
        metavar="FILE|ID",
    )


def engine_of(options: EngineOptions) -> dict[str, Any]:
    """The given fields of an :class:`tweetrerank.indexes.engines.client.EngineAddress`."""
    names = {"engine": "url", "engine_index": "index", "engine_auth": "auth"}
    names |= {
        name: name
        for name in ("text_field", "url_field", "time_field", "id_field", "query")
    }
    found = {names[name]: getattr(options, name, None) for name in names}
    return {name: value for name, value in found.items() if value is not None}


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
    index: Path | None = option(
        "index folder made by pipeline.index", parse=Path, metavar="DIR"
    )
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
    batch_size: int = option("pairs in a forward pass", default=256, parse=positive_int)
    threads: int | None = option(
        "threads, or processes (default: all cores)", parse=positive_int
    )
    device: str = option(
        "where the model runs: auto, cpu, cuda (the first GPU) or cuda:N",
        default="auto",
        parse=device_name,
    )


@dataclass(frozen=True)
class ModelOptions(ScoringOptions, ForeignOptions, CollectionOptions):
    """Options of a collection, and of a model that ranks its posts."""

    reranker: str = option(
        "model, or none for the first stage alone; fusion finds candidates by several rankers "
        "(default: what was trained on an own collection and is best on its held-out topics, else "
        f"fusion; {DEFAULT_WINDOW} with --candidates, --method or --engine, {DEFAULT_RERANKER} "
        "with --lambda or --checkpoint)",
        default=AUTO,
    )
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one that has not seen these topics)",
        parse=Path,
        metavar="DIR",
    )
    idf: str | None = option(
        "word frequencies: wordfreq, posts (of wordfreq and the collection's posts), or a file "
        "(default: as trained)",
        metavar="SOURCE",
    )
    hits: int | None = option(
        f"candidates per topic (default: {DEFAULT_HITS})", parse=positive_int
    )
    skip_unknown: bool = option(
        "leave out posts of a given run that the collection lacks (otherwise an error)",
        flag=True,
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)

    def loading(self) -> dict[str, Any]:
        """Arguments of :func:`tweetrerank.pipeline.ranking.checkpoints.load_model`."""
        names = ("device", "threads", "idf", "batch_size")
        return {name: getattr(self, name) for name in names}

    def open_collection(self) -> "Collection":
        """The collection, with the index and the judgments that the options name."""
        from tweetrerank.pipeline.collections.named import open_collection

        engine = engine_of(self)
        return open_collection(
            self.topics or None, self.index, self.qrels, self.data, engine
        )


@dataclass(frozen=True)
class RankingOptions(ModelOptions):
    """The same, and where candidates come from."""

    topic: ClassVar[str] = "first stage"

    candidates: str | None = option(
        "rerank this TREC run instead of searching; ql and rm3 name a collection's official runs",
        metavar="RUN",
    )
    method: str | None = option(
        f"first stage (default: {DEFAULT_METHOD})",
        choices=METHODS,
        argument_name="first_stage",
    )
    mu: float | None = option(
        "Dirichlet smoothing of ql, rm3 and axiom", parse=positive_float
    )
    parameter: tuple[str, ...] = option(
        "change another parameter of the first stage (k1, b, fb_terms, fb_docs, original_weight, "
        "beta, …); may be given several times",
        many=True,
        metavar="NAME=VALUE",
        argument_name="parameters",
    )

    def problems(self) -> list[str]:
        """Arguments that contradict one another."""
        rules = {
            "--candidates: the run is given, so --method, --mu and --parameter change nothing": (
                self.candidates and (self.method or self.mu or self.parameter)
            ),
            "--skip-unknown: only a run of --candidates can have unknown posts": (
                self.skip_unknown and not self.candidates
            ),
            "--mu: bm25 has no μ; use --parameter k1=… and --parameter b=…": (
                self.mu and self.method == "bm25"
            ),
            "--reranker none: there is nothing for --checkpoint or --lambda to do": (
                self.reranker == NONE and (self.checkpoint or self.weight is not None)
            ),
        }
        return [problem for problem, is_there in rules.items() if is_there]

    def open_ranker(self, collection: "Collection") -> "Ranker":
        """The ranker that the options name; UsageError: they contradict one another, or search a
        collection with given candidates."""
        from tweetrerank.pipeline.ranking.build import ranker

        if problems := self.problems():
            raise UsageError(problems)
        if collection.answers is not None:  # Known without their files
            names = ["method", "mu", "parameter", "index", "engine"]
            names += (
                [] if self.candidates else ["hits"]
            )  # A run has ranks, and so best candidates.
            problem = (
                f"{collection.name} is not searched, its candidates are given; leave"
            )
            if given := [f"--{name}" for name in names if getattr(self, name)]:
                raise UsageError([f"{flag}: {problem} {flag} out" for flag in given])
        names = ["candidates", "checkpoint", "skip_unknown"]
        how: dict[str, Any] = {
            name: getattr(self, name) for name in names
        } | self.loading()
        how["parameters"] = [*self.parameter, *([f"mu={self.mu}"] if self.mu else [])]
        return ranker(collection, self.reranker, self.method, self.weight, **how)
