"""Collections: topics, the posts that they search or the candidates that come with them, judgments.

Two kinds answer the same questions: :class:`SearchedCollection` (named, an own collection that a
file describes, or a file of topics and an index), and :class:`AnswerCollection` (named, its
candidates are given).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from indexes.engines.address import index_name
from indexes.manifest import IndexManifest
from indexes.methods import METHODS
from indexes.posts import (
    FILES,
    LABELS,
    Answer,
    Post,
    read_answer_folder,
    read_pair_folder,
    read_posts,
)
from indexes.records import listed
from indexes.store import POSTS_FILE, PostStore
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import Qrels, Run, joined_qrels
from pipeline.defaults import DEFAULT_MEASURES
from pipeline.errors import DataError, UsageError

if TYPE_CHECKING:
    from indexes.engines.address import EngineAddress
    from indexes.engines.building import Built
    from indexes.methods import Posts, SearchIndex
    from rerankers.features.judged import JudgedPosts
    from rerankers.text.spaces import AdaptedSpace


OWN = "own/"  # Folder of own collections among indexes and checkpoints
ENDING = ".toml"  # Of the file of an own collection
CORPUS = "corpus.jsonl"  # File of the posts of a folder in BEIR's form


def is_own(name: str | Path) -> bool:
    """Whether this names an own collection: the file of one, or a folder in BEIR's form."""
    return str(name).endswith(ENDING) or beir_file(Path(name), CORPUS) is not None


def beir_file(folder: Path, name: str) -> Path | None:
    """A file of this name, or compressed; None without one."""
    return next((p for end in ("", ".gz") if (p := folder / f"{name}{end}").is_file()), None)


def home_directory() -> Path:
    """Folder of what can be made again, indexes: ``$TWEETRERANK_HOME`` or the user's cache."""
    given = os.environ.get("TWEETRERANK_HOME")
    return Path(given) if given else _platform_folder("user_cache_path")


def models_directory() -> Path:
    """Folder of what was trained: ``$TWEETRERANK_HOME`` or the user's folder of data."""
    given = os.environ.get("TWEETRERANK_HOME")
    return Path(given) if given else _platform_folder("user_data_path")


@cache
def _platform_folder(kind: str) -> Path:
    """The platform's folder for this; one for temporary files where there is none to write to."""
    import platformdirs

    try:
        found: Path = getattr(platformdirs, kind)("tweetrerank")
        nearest = next(path for path in (found, *found.parents) if path.exists())
        if found.exists() or os.access(nearest, os.W_OK):
            return found
        why = f"{nearest} cannot be written"
    except RuntimeError:
        why = "this user has no home folder"
    folder = Path(tempfile.gettempdir(), f"tweetrerank-{os.getuid()}")
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    if folder.stat().st_uid != os.getuid():
        raise DataError(f"{folder}: found a folder of another user; set TWEETRERANK_HOME")
    print(f"note: {why}; {folder} is used, or set TWEETRERANK_HOME", file=sys.stderr)
    return folder


def data_directory(explicit: Path | None = None) -> Path:
    """Folder of the collections' data.

    ``explicit`` (from ``--data``), or ``$TWEETRERANK_DATA``, or ``data`` in the home folder.
    """
    if explicit is not None:
        return explicit
    given = os.environ.get("TWEETRERANK_DATA")
    return Path(given) if given else home_directory() / "data"


def text_number(text: str) -> int:
    """A number by which a post's text is known again."""
    return crc32(text.encode(errors="replace"))


NO_FILE = Path("general")
"""In place of a file of word vectors: those of :func:`rerankers.text.spaces.general`."""


def default_vectors(data: Path | None = None) -> Path:
    """File of the word vectors that models are trained with unless another is named."""
    return data_directory(data) / "embeddings" / "glove.6B.100d.bin.gz"


class Collection(ABC):
    """Topics, posts, judgments and candidates. Missing or malformed files raise DataError."""

    name: str  # As on the command line; of own topics, the file's name without its ending
    title: str  # For reports
    topics_path: Path  # Without a file of topics, ``file`` or ``index_directory``
    qrels_path: Path | None  # File of judgments
    measures: Sequence[str]  # Usual measures of its runs, by ir_measures' names
    runs: Mapping[str, Path]  # Name -> official first-stage run
    index_directory: Path | None
    """Folder of the index, built or not; None if nothing is searched. Of an index in a search
    engine, the folder of what is kept of it here."""
    engine: EngineAddress | None = None  # The index in a search engine; None for one in a folder
    skips_own_id: bool = False  # See :class:`SearchedCollection`
    language: str | None = None  # Of topics and posts (``en``), ``und`` if it is not known
    file: Path | None = None  # That describes an own collection, or its folder

    @property
    def key(self) -> str:
        """Name of the folder of its checkpoints, below that of their model."""
        return self.name

    @property
    def adapted_path(self) -> Path | None:
        """File of word vectors adapted to the posts, made or not: beside the index."""
        found = self.index_directory
        return found and found.with_name(f"{found.name}.adapted.safetensors")

    @cached_property
    def adapted_space(self) -> AdaptedSpace | None:
        """Word vectors adapted to the posts by ``pipeline.adapt``, None without them."""
        if (path := self.adapted_file) is None:
            return None
        from rerankers.text.spaces import AdaptedSpace

        return AdaptedSpace.load(path)

    @property
    def adapted_file(self) -> Path | None:
        """File of word vectors adapted to the posts, None if they were not made.

        Raises:
            RerankerError: they were made from the posts of another collection, or are damaged.
        """
        path, posts = self.adapted_path, (self.index_directory or Path()) / POSTS_FILE
        if path is None or not path.exists():
            return None
        from rerankers.errors import RerankerError
        from rerankers.text.spaces import description_of

        made = description_of(path)
        sample = dict[str, int](json.loads(made.get("sample", "{}")))
        present = len(sample)
        if sample and posts.is_file():
            with PostStore(posts) as store:
                known = store.get_many(sample).values()
            present = sum(text_number(post.text) == sample[post.doc_id] for post in known)
        name = made.get("collection", self.key)
        if (self.file and name != self.key) or 2 * present < len(sample):
            raise RerankerError(
                f"{path}: found word vectors made from {made.get('posts')} posts of {name} "
                f"({present} of {len(sample)} drawn ones are in {self.title}), expected vectors of "
                "these posts; run pipeline.adapt again"
            )
        return path

    @property
    @abstractmethod
    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""

    @abstractmethod
    def posts(self) -> Iterator[Post]:
        """All posts, each once."""

    @property
    def has_topics(self) -> bool:
        """Whether the collection comes with topics."""
        return self.topics_path not in (self.file, self.index_directory)

    @property
    @abstractmethod
    def topics(self) -> list[Topic]:
        """The topics, in the order of their file."""

    @property
    @abstractmethod
    def qrels(self) -> Qrels | None:
        """The judgments, or None without a file of them."""

    @property
    def training_qrels(self) -> Qrels | None:
        """The judgments of these and other topics, or None without a file of them."""
        return self.qrels

    @cached_property
    def training_topics(self) -> list[Topic]:
        """The judged topics that a model may be trained on."""
        return [topic for topic in self.topics if topic.query_id in (self.training_qrels or {})]

    def check_judged_posts(self) -> None:
        """Say how many judged posts are not in the collection, once."""
        return

    def missing(self) -> list[Path]:
        """Absent files of topics, runs and posts; judgments may be absent."""
        return []

    def require_files(self) -> None:
        """Raise DataError with advice if a file is missing."""
        if missing := self.missing():
            from pipeline.collections.downloads import by_hand

            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            advice = by_hand(missing[0]) or (
                f"fetch the data with\n  tweetrerank fetch {self.name}\n"
                "or name a folder that has them by --data or TWEETRERANK_DATA"
            )
            raise DataError(f"{self.name}: {missing[0]}{more} not found; {advice}")

    @cached_property
    def given_candidates(self) -> Run | None:
        """Candidates that come with the topics, all with the score 0; None if they are searched."""
        return None

    def find_posts(self, doc_ids: Sequence[str]) -> Mapping[str, Post]:
        """doc_id -> post, of those ids that the collection has; reads all posts."""
        posts = {post.doc_id: post for post in self.posts()}
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    def open_index(self) -> SearchIndex:
        """The index of the posts; that of a named collection is built at the first use.

        Raises:
            UsageError: the candidates are given, and nothing is searched.
            CollectionError: the index is damaged, or does not fit the posts.
        """
        raise self.not_searched()

    @property
    def methods(self) -> Sequence[str]:
        """Names of the methods that the index offers; () if nothing is searched, or by another."""
        if self.index_directory is None:
            return ()
        if self.engine is None:
            return tuple(METHODS)
        from indexes.engines.layout import RANKED

        return tuple(RANKED) if self.engine.has_methods else ()

    def not_searched(self) -> UsageError:
        """The error of a search in a collection with given candidates."""
        return UsageError(
            f"found {self.name}, expected a collection whose posts are searched: the candidates of "
            "this one are given, and it needs no index "
            f"(python -m pipeline.search --topics {self.name} ranks them)"
        )


@dataclass(frozen=True)
class SearchedCollection(Collection):
    """A collection with an index of its posts; without files of them, the index is all there is."""

    name: str
    title: str
    topics_path: Path
    qrels_path: Path | None
    runs: Mapping[str, Path]
    index_group: str = ""  # Collections of a group share their posts and so their index
    pair_folders: Sequence[Path] = ()
    """Folders of parallel files with the group's posts, see
    :func:`indexes.posts.read_pair_folder`."""
    post_paths: Sequence[Path] = ()
    """Files of JSON lines with the posts, in place of ``pair_folders``."""
    post_columns: Mapping[str, str] = field(default_factory=dict)
    """Field of a post -> its column or key in these files, where it has another name."""
    further_topics: Sequence[Path] = ()  # Files beside ``topics_path``
    further_qrels: Sequence[Path] = ()  # Files beside ``qrels_path``
    measures: Sequence[str] = DEFAULT_MEASURES
    data: Path | None = None  # Data folder of the ``--data`` option, for messages
    own_index: Path | None = None  # Index to search in place of the shared one
    engine: EngineAddress | None = None  # Index to search in a search engine
    file: Path | None = None
    training_path: Path | None = None  # File of the topics to train on; None takes all topics
    training_qrels_path: Path | None = None
    """File of the judgments to train on, where they are not in ``qrels_path``; then the topics that
    each file judges are searched or trained on."""
    judged_only: bool = False  # Whether models are trained on few candidates without a judgment
    language: str | None = None
    skips_own_id: bool = False  # Whether a post with the id of a query is none of its results
    own_adapted: Path | None = None
    """File of adapted word vectors in place of that of the collection."""

    @property
    def adapted_path(self) -> Path | None:
        """File of word vectors adapted to the posts; of an own collection, among the models."""
        if self.own_adapted or not self.file:
            return self.own_adapted or super().adapted_path
        return models_directory() / "adapted" / f"{self.key}.safetensors"

    @property
    def key(self) -> str:
        """Name of the folder of its checkpoints."""
        return f"{OWN}{self.name}" if self.file else self.name

    @property
    def index_directory(self) -> Path:  # type: ignore[override]
        """``own_index``, or the group's folder under ``$TWEETRERANK_HOME``."""
        if self.engine:
            return engine_directory(self.engine)
        return self.own_index or home_directory() / "indexes" / self.index_group

    @property
    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""
        if self.qrels_path is None:
            return f"{self.title} has no judgments; name a file of them by qrels or --qrels"
        if self.training_qrels:
            return (
                f"{self.title}: {self.qrels_path} judges training topics only, none of those here"
            )
        return (
            f"{self.name} has no judgments here ({self.qrels_path} is absent), so its runs cannot "
            "be evaluated"
        )

    @cached_property
    def topics(self) -> list[Topic]:
        """The topics to search, in the order of their file."""
        if self.training_qrels_path is None:
            return self._all_topics
        return [topic for topic in self._all_topics if topic.query_id in self._searched_qrels]

    @cached_property
    def _all_topics(self) -> list[Topic]:
        self.require_files()
        if not self.has_topics:
            raise DataError(f"{self.title}: found no topics, expected a file of them")
        return read_topics(self.topics_path, *self.further_topics)

    @cached_property
    def _topics_to_train(self) -> list[Topic]:
        return read_topics(self.training_path) if self.training_path else self._all_topics

    @cached_property
    def _searched_qrels(self) -> Qrels:
        return self._judgments(self.qrels_path, *self.further_qrels)

    def _judgments(self, *paths: Path | None) -> Qrels:
        """The judgments of those files that are there, under the topics' own ids."""
        present, ids = [path for path in paths if path and path.exists()], None
        if present and self.has_topics:
            ids = [topic.query_id for topic in (*self._all_topics, *self._topics_to_train)]
        return joined_qrels(present, ids)

    @cached_property
    def training_qrels(self) -> Qrels | None:
        """The judgments of topics to search and to train on, or None without a file of them."""
        qrels = {query_id: {**grades} for query_id, grades in self._searched_qrels.items()}
        for query_id, grades in self._judgments(self.training_qrels_path).items():
            qrels.setdefault(query_id, {}).update(grades)
        return qrels or None

    @cached_property
    def qrels(self) -> Qrels | None:
        """The judgments of the topics that are searched; None without any.

        The others are no failures of a run, as they would be in trec_eval: nobody searched them.
        """
        found = self.training_qrels
        if found is None:
            return None
        searched = {topic.query_id for topic in self.topics}
        lacking = [query_id for query_id in found if query_id not in searched]
        if lacking and not (self.training_path or self.training_qrels_path):
            print(
                f"{self.qrels_path}: judged topics that {self.topics_path} lacks, not counted "
                f"({len(lacking)}): {', '.join(lacking[:10])}{', …' if lacking[10:] else ''}",
                file=sys.stderr,
            )
        return {q: grades for q, grades in found.items() if q in searched} or None

    @cached_property
    def training_topics(self) -> list[Topic]:
        """The judged topics that a model may be trained on."""
        judged = self._searched_qrels
        if self.training_qrels_path:
            judged = self._judgments(self.training_qrels_path)
        return [topic for topic in self._topics_to_train if topic.query_id in judged]

    def check_judged_posts(self) -> None:
        """Say how many judged posts are not in the collection, once."""
        if self._lacking:
            judged = {
                doc_id for grades in (self.training_qrels or {}).values() for doc_id in grades
            }
            some = [post.doc_id for post in islice(self.posts(), 2)]
            print(
                f"warning: {len(self._lacking):,} of the {len(judged):,} judged posts are not in "
                f"{self.name} ({listed(self._lacking, 2)}), whose posts have ids such as "
                f"{listed(some)}; they count as not found",
                file=sys.stderr,
            )
            self._lacking.clear()

    @cached_property
    def _lacking(self) -> list[str]:
        if self.runs or not (self.file or self.own_index or self.engine):
            return []  # Of a named collection some posts are known to be lost.
        grades = (self.training_qrels or {}).values()
        judged = list(dict.fromkeys(doc_id for each in grades for doc_id in each))
        known = self.find_posts(judged)
        return [doc_id for doc_id in judged if doc_id not in known]

    def posts(self) -> Iterator[Post]:
        """The posts of the index group; those of named collections each once, by ascending id.

        For a post in several folders the first non-empty text counts. An own collection's are
        those of its index, once it is built.
        """
        with self._indexed_posts() as posts:
            yield from self._read_posts() if posts is None else posts

    @cached_property
    def judged_posts(self) -> JudgedPosts:
        """The judgments of the topics to train on, by texts of posts."""
        from rerankers.features.judged import JudgedPosts

        qrels = self.training_qrels or {}
        topics = [(topic.text, qrels.get(topic.query_id, {})) for topic in self.training_topics]
        posts = self.find_posts(list(dict.fromkeys(d for _, grades in topics for d in grades)))
        return JudgedPosts.of(topics, {doc_id: post.text for doc_id, post in posts.items()})

    def find_posts(self, doc_ids: Sequence[str]) -> Mapping[str, Post]:
        """doc_id -> post, of those ids that the collection has."""
        with self._indexed_posts() as posts:
            return super().find_posts(doc_ids) if posts is None else posts.get_many(doc_ids)

    @contextmanager
    def _indexed_posts(self) -> Iterator[Posts | None]:
        """The posts of an own collection's index; None before it is built."""
        if (self.file and self.engine) or not self.post_files():
            yield self.open_index().posts
        elif self.file and self.index_directory.exists():
            manifest = IndexManifest.read(self.index_directory)
            manifest.check(self.index_directory, self.post_files())
            with PostStore(self.index_directory / POSTS_FILE) as store:
                yield store
        else:
            yield None

    def _read_posts(self) -> Iterator[Post]:
        self.require_files()
        if self.post_paths:
            for path in self.post_paths:
                yield from read_posts(path, self.post_columns)
            return
        posts: dict[str, Post] = {}
        for folder in self.pair_folders:
            for _, post in read_pair_folder(folder):
                known = posts.get(post.doc_id)
                if known is None or not known.text.strip():
                    posts[post.doc_id] = post
        yield from sorted(posts.values(), key=lambda post: int(post.doc_id))

    def post_files(self) -> list[Path]:
        """The files of posts."""
        if self.post_paths:
            return list(self.post_paths)
        names = ("b.toks", "url.txt", "id.txt")
        return [folder / name for folder in self.pair_folders for name in names]

    def missing(self) -> list[Path]:
        """Absent files of topics, runs and posts; judgments may be absent."""
        files = [self.topics_path, *self.further_topics, *self.runs.values(), *self.post_files()]
        return [path for path in dict.fromkeys(files) if not path.exists()]

    def open_index(self) -> SearchIndex:
        """The index; one in a folder is built at the first use."""
        if self.engine:
            from indexes.engines.index import open_index

            return open_index(self.engine, self.index_directory, self.post_files() or None)
        from indexes.index import LuceneIndex

        directory = self.index_directory
        if not all(path.exists() for path in self.post_files()):
            self.require_files()  # Else the index would be said to be of other posts.
        if self.own_index is None and not directory.exists():
            if self.has_topics:
                _ = self.topics, self.training_qrels  # Their mistakes are told before.
            print(f"building the index {directory} (once)", file=sys.stderr)
            self.build_index(directory)
        return LuceneIndex.open(directory, self.post_files() or None)

    def build_index(self, directory: Path) -> IndexManifest:
        """Index the posts in a folder."""
        import indexes

        self.require_files()
        rebuild = self._index_command(shlex.join(["--index", str(directory)]))
        return indexes.build(
            self._read_posts(), directory, self.post_files(), rebuild, self.language
        )

    def build_engine_index(self) -> Built:
        """Index the posts in the search engine."""
        from indexes.engines.building import build

        assert self.engine is not None
        self.require_files()
        return build(
            self.engine,
            self._read_posts(),
            self.post_files(),
            engine_directory(self.engine),
            self._index_command(engine_options(self.engine)),
            language=self.language,
        )

    def _index_command(self, place: str) -> str:
        """The command that indexes the posts, with the options that say where."""
        name = str(self.file.absolute()) if self.file else self.name
        data = f" {shlex.join(['--data', str(self.data)])}" if self.data else ""
        return f"python -m pipeline.index {shlex.join(['--collection', name])} {place}{data}"

    @property
    def engine_index(self) -> str:
        """Name of the collection's index in a search engine, unless another is given."""
        return index_name(self.index_group)


def engine_options(address: EngineAddress) -> str:
    """The options of a command that name this index."""
    words = ["--engine", address.url, "--engine-index", address.index]
    return shlex.join(words + (["--engine-auth", str(address.auth)] if address.auth else []))


def engine_directory(address: EngineAddress) -> Path:
    """Folder of what is kept here of an index in a search engine."""
    place = f"{crc32(str(address).encode()):08x}"
    return home_directory() / "engines" / f"{address.index}-{place}"


@dataclass(frozen=True)
class AnswerCollection(Collection):
    """One part of an answer-selection collection: questions with given candidate answers."""

    name: str
    title: str
    folders: Mapping[str, Path]
    """Part (``train``, ``dev``, ``test``) -> folder of its parallel files, see
    :mod:`indexes.posts`."""
    part_name: str = "test"  # Of this object
    measures: Sequence[str] = ("AP", "RR")
    runs: Mapping[str, Path] = field(default_factory=dict)
    qrels_path: Path | None = None  # Judgments to use in place of the labels
    index_directory: None = None

    @property
    def folder(self) -> Path:
        """Folder of this part's files."""
        return self.folders[self.part_name]

    def part(self, name: str) -> AnswerCollection:
        """Another part of the collection: ``train``, ``dev`` or ``test``."""
        return dataclasses.replace(self, part_name=name)

    @cached_property
    def topics(self) -> list[Topic]:
        """All questions, in the order of their files; the text is that of the first line."""
        questions: dict[str, str] = {}
        for answer in self._answers:
            questions.setdefault(answer.query_id, answer.question)
        return [Topic(query_id, text) for query_id, text in questions.items()]

    @cached_property
    def given_candidates(self) -> Run:
        """Every given answer, question by question, all with the score 0."""
        run: Run = {}
        for answer in self._answers:
            run.setdefault(answer.query_id, {})[answer.post.doc_id] = 0.0
        return run

    @cached_property
    def qrels(self) -> Qrels | None:
        """The labels, or None without a file of them.

        Questions without a relevant answer are judged, too: every ranking is worth 0 there, as in
        trec_eval and in Rao et al. (2016), section 5.
        """
        if self.qrels_path:
            return joined_qrels([self.qrels_path], [topic.query_id for topic in self.topics])
        if not (self.folder / LABELS).exists():
            return None
        qrels: Qrels = {}
        for answer in self._answers:
            if answer.relevance is not None:
                qrels.setdefault(answer.query_id, {})[answer.post.doc_id] = answer.relevance
        return qrels

    @property
    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""
        return (
            f"{self.name} has no judgments of its {self.part_name} part here "
            f"({self.folder / LABELS} is absent), so runs on it cannot be evaluated"
        )

    def posts(self) -> Iterator[Post]:
        """The answers, in the order of their files."""
        return (answer.post for answer in self._answers)

    def missing(self) -> list[Path]:
        """Absent files of this part; labels may be absent."""
        return [path for name in FILES if not (path := self.folder / name).exists()]

    @cached_property
    def _answers(self) -> list[Answer]:
        self.require_files()
        answers = list(read_answer_folder(self.folder))
        if not answers:
            raise DataError(f"{self.folder}: found no answer, expected at least one line a file")
        return answers


def topic_file(
    topics: Path, index: Path, engine: EngineAddress | None = None, qrels: Path | None = None
) -> SearchedCollection:
    """A file of topics and the index of their posts, in a folder or in a search engine.

    Without topics, the index stands in for their file.
    """
    name, title = topics.name.split(".")[0], str(topics)
    return SearchedCollection(name, title, topics, qrels, {}, own_index=index, engine=engine)
