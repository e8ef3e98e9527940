"""Define the settings and fields of an index that we build in a search engine.

A text is indexed once for each similarity, because in an engine a similarity belongs to
a field. An engine such as a bare Elasticsearch may lack the analyzer of a language.
Then Lucene cuts the words in this process, and the engine indexes them as they are.
Both ways give the words of :mod:`tweetrerank.indexes.analysis`, except for Thai.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.indexes.manifest import IndexManifest
from tweetrerank.indexes.methods import BM25, Method, QueryLikelihood
from tweetrerank.indexes.posts import Post

# Names of fields
TEXT = "contents"
WORDS = "words"  # Words of the text, if they are cut in this process
URL = "url"
ID = "id"  # Id as a text
NUMBER = "number"  # Id as a number
SIGNALS = "signals"  # Object of further numbers, whose fields the engine adds

CUT_HERE = "whitespace"  # Analyzer for words that are cut in this process

Ranked = QueryLikelihood | BM25  # Methods of an engine: similarities of its fields

RANKED: Mapping[str, Ranked] = {
    method.name: method for method in (QueryLikelihood(), BM25())
}
"""Name -> method that an engine offers."""

_META = "tweetrerank"  # Key of our description in an index's mappings

_TYPES = {QueryLikelihood.name: "LMDirichlet", BM25.name: "BM25"}
"""Name of a method -> type of its similarity."""

Similarity = Mapping[str, Any]  # The engine's settings: type and parameters


def _similarity(method: Ranked) -> dict[str, Any]:
    return {"type": _TYPES[method.name], **vars(method)}


@dataclass(frozen=True)
class Layout:
    """The layout of an index that we build in an engine, new or existing."""

    manifest: IndexManifest  # Description of its posts and their sources
    analyzer: str  # The manifest's analyzer, or :data:`CUT_HERE`
    similarities: Mapping[str, Similarity]  # Method's name -> its similarity
    complete: bool = False  # Whether all posts have been sent
    plain_ids: bool = False
    """Whether all ids are whole numbers without leading zeros.

    Then hits are sorted by numbers instead of texts, which would take an engine most of
    the time of a search.
    """

    @classmethod
    def read(cls, address: EngineAddress, description: Mapping[str, Any]) -> Self:
        """Return the layout of an index, given the response to ``GET /INDEX``.

        Raises DataError if the index was made by another program or by another version
        of this one.
        """
        mappings = description["mappings"]
        meta = mappings.get("_meta", {}).get(_META)
        if not isinstance(meta, dict):
            fields = ", ".join(list(mappings.get("properties", {}))[:8]) or "none"
            raise DataError(
                f"{address}: this index was not made by this program; to search it as "
                "it is, name its field of texts by `address.text_field` (its fields: "
                f"{fields}); to make one, choose another `address.index`"
            )
        return cls(
            manifest=IndexManifest.from_fields(str(address), meta["manifest"]),
            analyzer=meta["analyzer"],
            similarities=_similarities_in(description["settings"]["index"]),
            complete=meta["complete"],
            plain_ids=meta.get("plain_ids", False),
        )

    @property
    def field(self) -> str:
        """The field that has the indexed words."""
        return WORDS if self.analyzer == CUT_HERE else TEXT

    def field_of(self, method: Method, index: EngineAddress) -> str:
        """Return the field with the method's similarity.

        Raises DataError if the engine does not offer the method, or if no field has
        the method's parameters.
        """
        if not isinstance(method, Ranked):
            raise DataError(
                f"{index}: a search engine does not offer {method.name}; use one of "
                f"{', '.join(RANKED)}, or a local index"
            )
        actual = self.similarities.get(method.name, {})
        expected = _similarity(method)
        if actual != expected:
            raise DataError(
                f"{index}: this index ranks {method.name} with "
                f"{_parameters(actual) or 'no parameters'}, expected "
                f"{_parameters(expected)}; search with the former, or in a local index"
            )
        if isinstance(method, QueryLikelihood):
            return self.field
        return f"{self.field}.{method.name}"

    def body(self) -> dict[str, Any]:
        """Return the body of the request that creates the index."""
        words: dict[str, Any] = {
            "type": "text",
            "analyzer": self.analyzer,
            "index_options": "freqs",
            "similarity": QueryLikelihood.name,
        }
        words["fields"] = {BM25.name: {**words, "similarity": BM25.name}}
        return {
            "settings": {
                "number_of_shards": 1,  # Word statistics are those of one shard.
                # With one node, no replica is missing. With several, no post is lost if
                # one of them fails.
                "auto_expand_replicas": "0-1",
                "refresh_interval": "-1",
                "similarity": {
                    name: dict(similarity)
                    for name, similarity in self.similarities.items()
                },
            },
            "mappings": {
                "_meta": self.meta(),
                "dynamic": "strict",
                "properties": {
                    ID: {"type": "keyword"},
                    NUMBER: {"type": "long"},
                    URL: {"type": "keyword", "index": False, "doc_values": False},
                    # Searched by callers' queries, even if words are cut here.
                    TEXT: {"type": "text"},
                    self.field: words,
                    SIGNALS: {"type": "object", "dynamic": True},
                },
            },
        }

    def meta(self) -> dict[str, Any]:
        """Return the description that the engine keeps with the index."""
        return {
            _META: {
                "manifest": self.manifest.fields(),
                "analyzer": self.analyzer,
                "complete": self.complete,
                "plain_ids": self.plain_ids,
            }
        }

    def document(self, post: Post, words: str) -> dict[str, Any]:
        """Return a post as the engine stores it.

        ``words`` are stored only if words are cut in this process.
        """
        document: dict[str, Any] = {ID: post.doc_id, TEXT: post.text, URL: post.url}
        if self.manifest.numeric_ids:
            document[NUMBER] = int(post.doc_id)
        if self.analyzer == CUT_HERE:
            document[WORDS] = words
        if post.signals:
            document[SIGNALS] = dict(post.signals)
        return document

    def post(self, document: Mapping[str, Any]) -> Post:
        """Return the post that a :meth:`document` stores."""
        return Post(
            document[ID], document[TEXT], document[URL], document.get(SIGNALS, {})
        )

    def scale(self, engine: Engine, method: Method) -> float:
        """Return the number to divide the engine's scores by to get those of Lucene.

        In Elasticsearch, and in OpenSearch before version 3, BM25 has the constant
        factor k1 + 1.
        """
        if not isinstance(method, BM25):
            return 1.0
        is_old = engine.kind == "elasticsearch" or engine.version[:1] < (3,)
        return 1.0 + method.k1 if is_old else 1.0

    @property
    def sort(self) -> list[dict[str, str]]:
        """The sort keys of a search: score, then id, each from high to low."""
        keys = [{"_score": "desc"}]
        if self.manifest.numeric_ids:
            keys.append({NUMBER: "desc"})
        if not self.plain_ids:
            keys.append({ID: "desc"})
        return keys

    def differences(self, existing: "Layout") -> list[str]:
        """Return how an existing index differs from this layout, for messages.

        The list is empty if it does not differ.
        """
        differences = _differences_of_posts(self.manifest, existing.manifest)
        if self.similarities != existing.similarities:
            differences.append("other parameters of its methods")
        if differences:
            return differences
        pairs = [
            (existing.analyzer, self.analyzer),
            (existing.manifest.analyzer, self.manifest.analyzer),
        ]
        for actual, expected in pairs:
            if actual != expected:
                return [f"the analyzer {actual}, expected {expected}"]
        return []


def _differences_of_posts(
    expected: IndexManifest, existing: IndexManifest
) -> list[str]:
    expected_contents = {source.sha256 for source in expected.sources}
    if expected_contents != {source.sha256 for source in existing.sources}:
        names = ", ".join([source.name for source in existing.sources])
        expected_names = ", ".join([source.name for source in expected.sources])
        more = " of another content" if names == expected_names else ""
        return [f"posts of {names}, expected {expected_names}{more}"]
    if expected.posts != existing.posts:
        return [
            f"a collection of {existing.posts:,} posts, expected {expected.posts:,}"
        ]
    return []


def _similarities_in(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the similarities in the settings of an index, by name."""
    similarities = {}
    for name, parameters in settings.get("similarity", {}).items():
        # The engines return numbers as texts.
        similarities[name] = {
            key: value if key == "type" else float(value)
            for key, value in parameters.items()
        }
    return similarities


def _parameters(similarity: Similarity) -> str:
    """Return the parameters of a similarity for a message."""
    return ", ".join(
        f"{name}={value:g}"
        for name, value in sorted(similarity.items())
        if name != "type"
    )


def new_layout(engine: Engine, manifest: IndexManifest, plain_ids: bool) -> Layout:
    """Return the layout of a new index.

    Its analyzer is that of the manifest if the engine has it, else :data:`CUT_HERE`.
    """
    analyzer = manifest.analyzer
    try:
        engine.request("POST", "/_analyze", {"analyzer": analyzer, "text": "tests"})
    except EngineError as error:
        if error.status != 400:
            raise
        analyzer = CUT_HERE
    similarities = {name: _similarity(method) for name, method in RANKED.items()}
    return Layout(manifest, analyzer, similarities, plain_ids=plain_ids)


def cut_words(texts: Sequence[str], name: str) -> list[str]:
    """Return the words of each text, separated by blanks.

    Lucene's analyzer ``name`` cuts them, which needs Java. See
    :mod:`tweetrerank.indexes.analysis`.
    """
    from tweetrerank.indexes.analysis import analyze, analyzer

    with_analyzer = analyzer(name)
    return [" ".join(analyze(text, with_analyzer)) for text in texts]
