"""The settings, fields and description of an index of ours in a search engine.

A text is indexed once for each similarity, as an engine's similarity belongs to a field. Where the
engine lacks the language's analyzer (a bare Elasticsearch), words are cut by Lucene here and
indexed as they are; both give the words of :mod:`indexes.analysis`, but for Thai.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from indexes.engines.address import EngineAddress
from indexes.engines.client import Engine, EngineError
from indexes.errors import CollectionError
from indexes.manifest import IndexManifest
from indexes.methods import BM25, Method, QueryLikelihood
from indexes.posts import Post

TEXT, WORDS, URL, ID, NUMBER = "contents", "words", "url", "id", "number"
"""Fields: the text, its words where they are cut here, the link, the id as a text, as a number."""

CUT_HERE = "whitespace"
"""Analyzer of words that are cut here."""

Ranked = QueryLikelihood | BM25  # Methods of an engine: similarities of its fields

RANKED: Mapping[str, Ranked] = {method.name: method for method in (QueryLikelihood(), BM25())}
"""These methods by their names."""

_META = "tweetrerank"


def similarity(method: Ranked) -> dict[str, Any]:
    """The engine's settings of a method's similarity."""
    if isinstance(method, BM25):
        return {"type": "BM25", "k1": method.k1, "b": method.b}
    return {"type": "LMDirichlet", "mu": method.mu}


@dataclass(frozen=True)
class Layout:
    """An index of ours, as it is to be or as it is."""

    manifest: IndexManifest  # Description of its posts and where they are from
    analyzer: str  # That of the manifest, or :data:`CUT_HERE`
    similarities: Mapping[str, Mapping[str, Any]]  # Method's name -> settings of its similarity
    complete: bool = False  # Whether all posts have been sent
    plain_ids: bool = False
    """Whether ids are whole numbers without zeros before them, so that the number tells the id; to
    sort by a text and to give it back takes an engine most of a search's time."""
    uuid: str = ""  # The engine's own id of the index; "" for one that is to be
    shards: int = 1  # Its number of shards
    window: int = 10_000  # Hits of a search, at most; more are read page by page
    pipeline: str | None = None
    """Search pipeline of every search that names none (OpenSearch); None without one."""

    @classmethod
    def read(cls, address: EngineAddress, description: Mapping[str, Any]) -> Self:
        """Layout of an index, from the engine's ``GET /index``.

        Raises:
            CollectionError: it is not an index of ours, or of another version of this program.
        """
        settings, mappings = description["settings"]["index"], description["mappings"]
        meta = mappings.get("_meta", {}).get(_META)
        if not isinstance(meta, dict):
            fields = ", ".join(list(mappings.get("properties", {}))[:8]) or "none"
            raise CollectionError(
                f"{address}: this index was not made by this program; to search it as it is, "
                f"name its field of texts by `address.text_field` (its fields: {fields}); to make "
                "one, choose another `address.index`"
            )
        manifest = IndexManifest.from_fields(str(address), meta["manifest"])
        similarities = {
            # The engines give back numbers as texts.
            name: {k: v if k == "type" else float(v) for k, v in one.items()}
            for name, one in settings.get("similarity", {}).items()
        }
        return cls(
            manifest,
            meta["analyzer"],
            similarities,
            meta["complete"],
            meta.get("plain_ids", False),
            settings["uuid"],
            int(settings["number_of_shards"]),
            int(settings.get("max_result_window", 10_000)),
            default_pipeline(settings),
        )

    @property
    def field(self) -> str:
        """The field of the words."""
        return WORDS if self.analyzer == CUT_HERE else TEXT

    def field_of(self, method: Method, index: EngineAddress) -> str:
        """The field whose similarity is the method's.

        Raises:
            CollectionError: there is none with these parameters, or the engine lacks the method.
        """
        if not isinstance(method, Ranked):
            raise CollectionError(
                f"{index}: a search engine does not offer {method.name}; use one of "
                f"{', '.join(RANKED)}, or a local index"
            )
        found, wanted = self.similarities.get(method.name, {}), similarity(method)
        if found != wanted:
            raise CollectionError(
                f"{index}: this index ranks {method.name} with {_parameters(found)}, expected "
                f"{_parameters(wanted)}; search with the former, or in a local index"
            )
        return self.field if isinstance(method, QueryLikelihood) else f"{self.field}.{method.name}"

    def body(self) -> dict[str, Any]:
        """The body that creates the index: its settings, fields and description."""
        words = self._words()
        # Also where its words are beside it: callers search the text by queries of their own.
        texts = (
            {TEXT: {"type": "text"}, WORDS: words} if self.analyzer == CUT_HERE else {TEXT: words}
        )
        return {
            "settings": {
                "number_of_shards": self.shards,
                # On one node no replica is missing, on several no post is lost with one of them.
                "auto_expand_replicas": "0-1",
                "refresh_interval": "-1",
                "similarity": {name: dict(one) for name, one in self.similarities.items()},
            },
            "mappings": {
                "_meta": self.meta(),
                "dynamic": "strict",
                "properties": {
                    ID: {"type": "keyword"},
                    NUMBER: {"type": "long"},
                    URL: {"type": "keyword", "index": False, "doc_values": False},
                    **texts,
                },
            },
        }

    def meta(self) -> dict[str, Any]:
        """The description that the engine keeps with the index."""
        return {
            _META: {
                "manifest": self.manifest.fields(),
                "analyzer": self.analyzer,
                "complete": self.complete,
                "plain_ids": self.plain_ids,
            }
        }

    def _words(self) -> dict[str, Any]:
        """The field of the words, for query likelihood; that for BM25 is within it."""

        def field(name: str) -> dict[str, Any]:
            return {
                "type": "text",
                "analyzer": self.analyzer,
                "index_options": "freqs",
                "similarity": name,
            }

        return field(QueryLikelihood.name) | {"fields": {BM25.name: field(BM25.name)}}

    def document(self, post: Post, words: str) -> dict[str, Any]:
        """A post as the engine stores it; ``words`` where they are cut here."""
        found: dict[str, Any] = {ID: post.doc_id, TEXT: post.text, URL: post.url}
        if self.manifest.numeric_ids:
            found[NUMBER] = int(post.doc_id)
        if self.analyzer == CUT_HERE:
            found[WORDS] = words
        return found

    @property
    def sort(self) -> list[dict[str, str]]:
        """Best first; posts of equal score from the highest id to the lowest, as in Lucene."""
        number = [{NUMBER: "desc"}] if self.manifest.numeric_ids else []
        return [{"_score": "desc"}, *number, *([] if self.plain_ids else [{ID: "desc"}])]

    def differences(self, other: "Layout") -> list[str]:
        """Differences between this layout and that of an index that is there (``other``)."""
        found = []
        mine, theirs = self.manifest, other.manifest
        if {s[3] for s in mine.sources} != {s[3] for s in theirs.sources}:
            files = [[source.name for source in one.sources] for one in (theirs, mine)]
            more = " of another content" if files[0] == files[1] else ""
            found.append(f"posts of {', '.join(files[0])}, expected {', '.join(files[1])}{more}")
        elif mine.posts != theirs.posts:
            found.append(f"a collection of {theirs.posts:,} posts, expected {mine.posts:,}")
        if self.similarities != other.similarities:
            found.append("other parameters of its methods")
        for ours, other_one in ((self.analyzer, other.analyzer), (mine.analyzer, theirs.analyzer)):
            if ours != other_one and not found:
                found.append(f"the analyzer {other_one}, expected {ours}")
        return found


def default_pipeline(settings: Mapping[str, Any]) -> str | None:
    """The search pipeline that an index has by its settings, None without one."""
    found = settings.get("search", {}).get("default_pipeline")
    return None if found in (None, "_none") else str(found)


def new_layout(engine: Engine, manifest: IndexManifest) -> Layout:
    """The layout of a new index in this engine, with the manifest's analyzer if it has that."""
    analyzer = manifest.analyzer
    try:
        engine.request("POST", "/_analyze", {"analyzer": analyzer, "text": "tests"})
    except EngineError as error:
        if error.status != 400:
            raise
        analyzer = CUT_HERE
    similarities = {name: similarity(method) for name, method in RANKED.items()}
    return Layout(manifest, analyzer, similarities)


def without_scale(engine: Engine, method: Method) -> float:
    """Divisor that makes the engine's scores Lucene's.

    Elasticsearch and OpenSearch before version 3 have BM25 with the constant factor k1 + 1.
    """
    is_old = engine.kind == "elasticsearch" or engine.version[:1] < (3,)
    return 1.0 + method.k1 if isinstance(method, BM25) and is_old else 1.0


def cut_words(texts: Sequence[str], name: str) -> list[str]:
    """The words of texts as :mod:`indexes.analysis` has them, separated by blanks; needs Java.

    ``name`` is that of the analyzer.
    """
    from indexes.analysis import analyze, analyzer

    with_analyzer = analyzer(name)
    return [" ".join(analyze(text, with_analyzer)) for text in texts]


def _parameters(found: Mapping[str, Any]) -> str:
    return (
        ", ".join(f"{k}={v:g}" for k, v in sorted(found.items()) if k != "type") or "no parameters"
    )
