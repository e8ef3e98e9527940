"""Options of collections, search engines, and commands that rank."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from tweetrerank.indexes.engines.address import check_url, query_file
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
    """Return the comma-separated addresses of nodes, if all of them are valid."""
    for url in text.split(","):
        check_url(url.strip())
    return text


@dataclass(frozen=True)
class EngineOptions:
    """Options of an index in a search engine."""

    topic: ClassVar[str] = "search engine"

    engine: str | None = option(
        "search in OpenSearch or Elasticsearch at this address, in place of a local "
        "index; several nodes are separated by commas",
        parse=addresses,
        metavar="URL",
    )
    engine_index: str | None = option(
        "its index (default for a collection: tweetrerank-GROUP)", metavar="NAME"
    )
    engine_auth: Path | None = option(
        "file of user and password, or api_key, and ca, as lines such as "
        'user = "reader" (default: $TWEETRERANK_ENGINE_USER, _PASSWORD, _API_KEY, _CA)',
        parse=existing_file,
        metavar="FILE",
    )


@dataclass(frozen=True)
class ForeignOptions(EngineOptions):
    """Options of an index in a search engine, including one made by other software."""

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
        "file of its query, JSON with {{query}} for the topic's text, or id of a "
        "search template with the parameter query (default: match on the text field)",
        parse=query_file,
        metavar="FILE|ID",
    )


_ADDRESS_FIELDS = {
    "engine": "url",
    "engine_index": "index",
    "engine_auth": "auth",
    "text_field": "text_field",
    "url_field": "url_field",
    "time_field": "time_field",
    "id_field": "id_field",
    "query": "query",
}
"""Name of an option -> name of the field of
:class:`tweetrerank.indexes.engines.address.EngineAddress` that it sets."""


def engine_of(options: EngineOptions) -> dict[str, Any]:
    """Return the fields of a search engine's address that the options give."""
    fields = {}
    for option_name, name in _ADDRESS_FIELDS.items():
        value = getattr(options, option_name, None)
        if value is not None:
            fields[name] = value
    return fields


@dataclass(frozen=True)
class CollectionOptions:
    """Options of a collection."""

    topics: str = option(
        "collection (mb2012, trecqa-raw, sample, my-posts.toml, …) or file of topics "
        "(TREC XML or qid<TAB>text)",
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
        "λ, the neural score's share (default: the checkpoint's tuned one; 1 where the "
        "candidates are given without scores)",
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
    """Options of a collection and of a model that ranks its posts."""

    reranker: str = option(
        "model, or none for the first stage alone; fusion finds candidates by several "
        "rankers (default: what was trained on an own collection and is best on its "
        f"held-out topics, else fusion; {DEFAULT_WINDOW} with --candidates, --method "
        f"or --engine, {DEFAULT_RERANKER} with --lambda or --checkpoint)",
        default=AUTO,
    )
    checkpoint: Path | None = option(
        "folder of a trained model (default: the shipped one that has not seen these "
        "topics)",
        parse=Path,
        metavar="DIR",
    )
    idf: str | None = option(
        "word frequencies: wordfreq, posts (of wordfreq and the collection's posts), "
        "or a file (default: as trained)",
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
        """Return the keyword arguments shared by model loading and ranker building."""
        return {
            "device": self.device,
            "threads": self.threads,
            "idf": self.idf,
            "batch_size": self.batch_size,
        }

    def open_collection(self) -> "Collection":
        """Open the collection with the index and judgments that the options name."""
        from tweetrerank.pipeline.collections.named import open_collection

        engine = engine_of(self)
        return open_collection(
            self.topics or None, self.index, self.qrels, self.data, engine
        )


@dataclass(frozen=True)
class RankingOptions(ModelOptions):
    """Options of a collection, a model, and the first stage."""

    topic: ClassVar[str] = "first stage"

    candidates: str | None = option(
        "rerank this TREC run instead of searching; ql and rm3 name a collection's "
        "official runs",
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
        "change another parameter of the first stage (k1, b, fb_terms, fb_docs, "
        "original_weight, beta, …); may be given several times",
        many=True,
        metavar="NAME=VALUE",
        argument_name="parameters",
    )

    def problems(self) -> list[str]:
        """Return a message for each contradiction among the options."""
        problems = []
        if self.candidates and any((self.method, self.mu, self.parameter)):
            problems.append(
                "--candidates: the run is given, so --method, --mu and --parameter "
                "change nothing"
            )
        if self.skip_unknown and not self.candidates:
            problems.append(
                "--skip-unknown: only a run of --candidates can have unknown posts"
            )
        if self.mu and self.method == "bm25":
            problems.append(
                "--mu: bm25 has no μ; use --parameter k1=… and --parameter b=…"
            )
        has_model_option = self.checkpoint or self.weight is not None
        if self.reranker == NONE and has_model_option:
            problems.append(
                "--reranker none: there is nothing for --checkpoint or --lambda to do"
            )
        return problems

    def open_ranker(self, collection: "Collection") -> "Ranker":
        """Build the ranker that the options describe.

        Raises UsageError if the options contradict one another, or if they concern a
        search although the collection has given candidates.
        """
        from tweetrerank.pipeline.ranking.build import RankerSpecification

        problems = self.problems()
        if problems:
            raise UsageError(problems)
        # Do not read the candidates' files here: they may be missing
        if collection.answers is not None:
            self._check_given(collection)
        parameters = list(self.parameter)
        if self.mu:
            parameters.append(f"mu={self.mu}")
        specification = RankerSpecification(
            collection,
            self.reranker,
            first_stage=self.method,
            weight=self.weight,
            candidates=self.candidates,
            skip_unknown=self.skip_unknown,
            parameters=parameters,
            checkpoint=self.checkpoint,
            **self.loading(),
        )
        return specification.build()

    def _check_given(self, collection: "Collection") -> None:
        """Raise UsageError if options of a search are given.

        The collection has given candidates, so it is not searched.
        """
        names = ["method", "mu", "parameter", "index", "engine"]
        if not self.candidates:  # A run has ranks, so that its best hits are defined.
            names.append("hits")
        problems = []
        for name in names:
            if getattr(self, name):
                problems.append(
                    f"--{name}: {collection.name} is not searched, its candidates are "
                    f"given; leave --{name} out"
                )
        if problems:
            raise UsageError(problems)
