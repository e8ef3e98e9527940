"""Collections: topics, the posts that they search or the candidates that come with them, judgments.

:mod:`tweetrerank.pipeline.collections.named` opens them.
"""

import json
import os
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from zlib import crc32

import platformdirs

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.manifest import IndexManifest
from tweetrerank.indexes.methods import METHODS
from tweetrerank.indexes.posts import Post
from tweetrerank.indexes.records import listed
from tweetrerank.indexes.store import POSTS_FILE, PostStore
from tweetrerank.pipeline.collections.sources import (
    Answers,
    ForeignIndex,
    PostFiles,
    PostSource,
)
from tweetrerank.pipeline.collections.topics import Topic, read_topics
from tweetrerank.pipeline.collections.trec import Qrels, Run, joined_qrels, merged
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError
from tweetrerank.rerankers.reranker_error import RerankerError

if TYPE_CHECKING:
    from tweetrerank.indexes.engines.engine_index import EngineIndex
    from tweetrerank.indexes.engines.kept_posts import KeptPosts
    from tweetrerank.indexes.lucene_index import LuceneIndex
    from tweetrerank.rerankers.features.judged import JudgedPosts
    from tweetrerank.rerankers.text.spaces import AdaptedSpace

OWN = "own/"  # Folder of own collections among indexes and checkpoints
ENDING = ".toml"  # Of the file of an own collection
CORPUS = "corpus.jsonl"  # File of the posts of a folder in BEIR's form

NO_FILE = Path("general")
"""In place of a file of word vectors: those of :func:`tweetrerank.rerankers.text.spaces.general`."""


def is_own(name: str | Path) -> bool:
    """Whether this names an own collection: its file, a folder in BEIR's form, Pyserini's index."""
    is_folder = beir_file(Path(name), CORPUS) or ForeignIndex(Path(name)).files
    return str(name).endswith(ENDING) or bool(is_folder)


def beir_file(folder: Path, name: str) -> Path | None:
    """A file of this name, or compressed; None without one."""
    return next(
        (p for end in ("", ".gz") if (p := folder / f"{name}{end}").is_file()), None
    )


def home_directory() -> Path:
    """Folder of what can be made again, indexes: ``$TWEETRERANK_HOME`` or the user's cache."""
    return Path(
        os.environ.get("TWEETRERANK_HOME") or _platform_folder("user_cache_path")
    )


def models_directory() -> Path:
    """Folder of what was trained: ``$TWEETRERANK_HOME`` or the user's folder of data."""
    return Path(
        os.environ.get("TWEETRERANK_HOME") or _platform_folder("user_data_path")
    )


@cache
def _platform_folder(kind: str) -> Path:
    """The platform's folder for this; one for temporary files where there is none to write to."""
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
        raise DataError(
            f"{folder}: found a folder of another user; set TWEETRERANK_HOME"
        )
    say(f"note: {why}; {folder} is used, or set TWEETRERANK_HOME")
    return folder


def data_directory(explicit: Path | None = None) -> Path:
    """Data folder: ``explicit`` (``--data``), ``$TWEETRERANK_DATA``, or ``data`` in the home."""
    return Path(
        explicit or os.environ.get("TWEETRERANK_DATA") or home_directory() / "data"
    )


def default_vectors(data: Path | None = None) -> Path:
    """File of the word vectors that models are trained with unless another is named."""
    return data_directory(data) / "embeddings" / "glove.6B.100d.bin.gz"


@cache
def catalogue() -> dict[str, Any]:
    """Collections and their files, and the terms of use of these by prefix of their groups."""
    return dict(json.loads(Path(__file__).with_name("catalogue.json").read_bytes()))


def by_hand(path: Path) -> str:
    """How to make the file ``path`` of a data folder; "" for one that can be fetched."""
    found = (
        note for part, note in catalogue()["by_hand"].items() if path.parent.match(part)
    )
    return f"it is not published: {note}" if (note := next(found, "")) else ""


def text_number(text: str) -> int:
    """A number by which a post's text is known again."""
    return crc32(text.encode(errors="replace"))


class IndexPlace(NamedTuple):
    """The place of an index: in the home folder, or in one of the places in its stead."""

    group: str = (
        ""  # Its name in the home folder; collections of a group share their posts
    )
    folder: Path | None = None
    engine: EngineAddress | None = None

    @property
    def directory(self) -> Path:
        """Folder of the index, built or not; of one in an engine, of what is kept of it here."""
        if self.engine:
            name = f"{self.engine.index}-{crc32(str(self.engine).encode()):08x}"
            return home_directory() / "engines" / name
        return self.folder or home_directory() / "indexes" / self.group

    def __str__(self) -> str:
        return str(self.engine or self.directory)


@dataclass(frozen=True)
class Collection:
    """Topics, posts and judgments, each from its source. Bad files raise DataError when read."""

    name: (
        str  # As on the command line; of own topics, the file's name without its ending
    )
    topic_files: Sequence[Path] = ()
    qrels_files: Sequence[
        Path
    ] = ()  # The first may be absent, and is the one that messages name
    post_source: PostSource | None = None
    """Posts that are indexed; None: the index is all there is, or the posts are ``answers``."""
    answers: Answers | None = (
        None  # In place of all three: candidates are given, not searched
    )
    train_topics: Path | None = (
        None  # File of the topics to train on, where these are others
    )
    train_qrels: Path | None = None
    """File of the judgments to train on; each side's topics are then searched, or trained on."""
    index: IndexPlace | None = None  # None: candidates are given
    title: str = ""  # For reports
    runs: Mapping[str, Path] = field(
        default_factory=dict
    )  # Name -> official first-stage run
    measures: Sequence[str] = (
        DEFAULT_MEASURES  # Usual ones of its runs, by ir_measures' names
    )
    language: str | None = (
        None  # Of topics and posts (``en``), ``und`` if it is not known
    )
    judged_only: bool = (
        False  # Whether models are trained on few candidates without a judgment
    )
    signals: Sequence[
        str
    ] = ()  # Fields of the posts with numbers that models trained on it read
    skips_own_id: bool = (
        False  # Whether a post with the id of a query is none of its results
    )
    file: Path | None = None  # That describes an own collection, or its folder
    data: Path | None = None  # Data folder of the ``--data`` option, for messages

    def __repr__(self) -> str:
        return f"<collection {self.title}>"

    def __getstate__(self) -> dict[str, Any]:
        """The fields alone: what was read of files is read again in another process."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def key(self) -> str:
        """Name of the folder of its checkpoints, below that of their model."""
        return f"{OWN}{self.name}" if self.file else self.name

    # Topics and judgments

    @property
    def has_topics(self) -> bool:
        """Whether the collection comes with topics."""
        return bool(self.topic_files or self.answers)

    @cached_property
    def _topics(self) -> tuple[list[Topic], list[Topic]]:
        """All topics in the order of their files, and those that may be trained on."""
        self.require_files()
        if not self.has_topics:
            raise DataError(f"{self.title}: found no topics, expected a file of them")
        found = (
            self.answers.topics() if self.answers else read_topics(*self.topic_files)
        )
        return found, read_topics(self.train_topics) if self.train_topics else found

    @cached_property
    def _grades(self) -> tuple[Qrels, Qrels]:
        """Judgments of topics to search, and of those to train on: one file may have both."""
        path, searched, ids = self.qrels_path, dict[str, dict[str, int]](), None
        has_file = path is not None and path.exists()
        if self.has_topics and (has_file or self.train_qrels):
            ids = [topic.query_id for part in self._topics for topic in part]
        if has_file and self.qrels_files:
            searched = joined_qrels(self.qrels_files, ids)
        elif has_file and self.answers:
            searched = self.answers.qrels()
        return searched, joined_qrels(
            [self.train_qrels], ids
        ) if self.train_qrels else searched

    @cached_property
    def topics(self) -> list[Topic]:
        """The topics to search, in the order of their file."""
        return [
            t
            for t in self._topics[0]
            if not self.train_qrels or t.query_id in self._grades[0]
        ]

    @cached_property
    def training_topics(self) -> list[Topic]:
        """The judged topics that a model may be trained on."""
        return [topic for topic in self._topics[1] if topic.query_id in self._grades[1]]

    @property
    def qrels_path(self) -> Path | None:
        """File of judgments, which may be absent."""
        return next(
            iter(self.qrels_files), self.answers.labels if self.answers else None
        )

    @cached_property
    def training_qrels(self) -> Qrels | None:
        """The judgments of topics to search and to train on, or None without any."""
        return merged(self._grades) or None

    @cached_property
    def qrels(self) -> Qrels | None:
        """The judgments of the topics that are searched; None without any. The others are no
        failures of a run, as they would be in trec_eval."""
        if (found := self.training_qrels) is None:
            return None
        searched = {topic.query_id for topic in self.topics}
        lacking = [query_id for query_id in found if query_id not in searched]
        if lacking and not self._trains_apart:
            say(
                f"{self.qrels_path}: judged topics that {self.title} lacks, not counted "
                f"({len(lacking)}): {', '.join(lacking[:10])}{', …' if lacking[10:] else ''}"
            )
        return {q: grades for q, grades in found.items() if q in searched} or None

    @property
    def _trains_apart(self) -> bool:
        return bool(self.train_topics or self.train_qrels)

    @property
    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""
        if self.qrels_path is None:
            return f"{self.title} has no judgments; name a file of them by qrels or --qrels"
        if found := self.training_qrels:
            which = "training topics only" if self._trains_apart else listed([*found])
            return f"{self.title}: {self.qrels_path} judges {which}, none of the topics here"
        return (
            f"{self.name} has no judgments here ({self.qrels_path} is absent), so its runs cannot "
            "be evaluated"
        )

    def check_judged_posts(self) -> None:
        """Say how many judged posts are not in the collection, once."""
        is_own = self.file or (self.index and (self.index.folder or self.index.engine))
        # Of a named collection some posts are known to be lost.
        if self.runs or not is_own or "_is_checked" in vars(self):
            return
        vars(self)["_is_checked"] = True
        grades = (self.training_qrels or {}).values()
        judged = list(dict.fromkeys(doc_id for each in grades for doc_id in each))
        known = self.find_posts(judged)
        if lacking := [doc_id for doc_id in judged if doc_id not in known]:
            some = [post.doc_id for post in islice(self.posts(), 2)]
            say(
                f"warning: {len(lacking):,} of the {len(judged):,} judged posts are not in "
                f"{self.name} ({listed(lacking, 2)}), whose posts have ids such as "
                f"{listed(some)}; they count as not found"
            )

    @cached_property
    def judged_posts(self) -> "JudgedPosts":
        """The judgments of the topics to train on, by texts of posts."""
        from tweetrerank.rerankers.features.judged import JudgedPosts

        qrels = self.training_qrels or {}
        topics = [
            (topic.text, qrels.get(topic.query_id, {}))
            for topic in self.training_topics
        ]
        posts = self.find_posts(
            list(dict.fromkeys(d for _, grades in topics for d in grades))
        )
        return JudgedPosts.of(
            topics, {doc_id: post.text for doc_id, post in posts.items()}
        )

    # Posts and candidates

    @cached_property
    def given_candidates(self) -> Run | None:
        """Candidates that come with the topics, all with the score 0; None if they are searched."""
        if self.answers is None:
            return None
        self.require_files()
        return self.answers.candidates()

    def part(self, name: str) -> Self:
        """Another part of questions with given answers: ``train``, ``dev`` or ``test``."""
        assert self.answers
        return replace(self, answers=replace(self.answers, part=name))

    def posts(self) -> Iterator[Post]:
        """All posts, each once. An own collection's are those of its index, once it is built."""
        with self._indexed_posts() as posts:
            yield from self._read_posts() if posts is None else posts

    def find_posts(self, doc_ids: Sequence[str]) -> Mapping[str, Post]:
        """doc_id -> post, of those ids that the collection has; may read all posts."""
        with self._indexed_posts() as indexed:
            if indexed is not None:
                return indexed.get_many(doc_ids)
        posts = {post.doc_id: post for post in self._read_posts()}
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    @contextmanager
    def _indexed_posts(self) -> Iterator["PostStore | KeptPosts | None"]:
        """The posts of an own collection's index; None before it is built."""
        if self.index and (self.post_source is None or (self.file and self.engine)):
            yield self.open_index().posts
        elif self.file and self.index and self.index.directory.exists():
            IndexManifest.read(self.index.directory).check(
                self.index.directory, self.post_files()
            )
            with PostStore(self.index.directory / POSTS_FILE) as store:
                yield store
        else:
            yield None

    @property
    def _source(self) -> PostSource | Answers | None:
        return self.post_source or self.answers

    def _read_posts(self) -> Iterator[Post]:
        self.require_files()
        return self._source.posts() if self._source else iter(())

    def post_files(self) -> list[Path]:
        """The files of posts."""
        return [*self._source.files] if self._source else []

    def missing(self) -> list[Path]:
        """Absent files of topics, runs and posts; judgments may be absent."""
        files = [*self.topic_files, *self.runs.values(), *self.post_files()]
        return [path for path in dict.fromkeys(files) if not path.exists()]

    def require_files(self) -> None:
        """Raise DataError with advice if a file is missing."""
        if missing := self.missing():
            more = f" and {len(missing) - 1} more" if missing[1:] else ""
            advice = by_hand(missing[0]) or (
                f"fetch the data with\n  tweetrerank fetch {self.name}\n"
                "or name a folder that has them by --data or TWEETRERANK_DATA"
            )
            raise DataError(f"{self.name}: {missing[0]}{more} not found; {advice}")

    # The index, and word vectors adapted to its posts

    @property
    def engine(self) -> EngineAddress | None:
        """The index in a search engine; None for one in a folder, or for none."""
        return self.index and self.index.engine

    @property
    def index_directory(self) -> Path | None:
        """See :attr:`IndexPlace.directory`; None if nothing is searched."""
        return self.index and self.index.directory

    def place(self) -> IndexPlace:
        """The place of the index; raises UsageError if nothing is searched."""
        if self.index is None:
            raise UsageError(
                f"found {self.name}, expected a collection whose posts are searched: the "
                "candidates of this one are given, and it needs no index "
                f"(python -m pipeline.search --topics {self.name} ranks them)"
            )
        return self.index

    @property
    def methods(self) -> Sequence[str]:
        """Names of the methods that the index offers; () if nothing is searched, or by another."""
        if self.index is None or not self.engine:
            return tuple(METHODS) if self.index else ()
        from tweetrerank.indexes.engines.layout import RANKED

        return tuple(RANKED) if self.engine.has_methods else ()

    def open_index(self) -> "LuceneIndex | EngineIndex":
        """The index of the posts; one in the home folder is built at the first use. UsageError: the
        candidates are given. DataError: it is damaged, or does not fit the posts."""
        place, files = self.place(), self.post_files()
        if place.engine:
            from tweetrerank.indexes.engines.engine_index import open_index

            return open_index(place.engine, place.directory, files or None)
        from tweetrerank.indexes.lucene_index import LuceneIndex

        if not all(path.exists() for path in files):
            self.require_files()  # Else the index would be said to be of other posts.
        if place.folder is None and not place.directory.exists():
            if self.has_topics:
                _ = self.topics, self.training_qrels  # Their mistakes are told before.
            say(f"building the index {place.directory} (once)")
            self.build_index()
        return LuceneIndex.open(place.directory, files or None)

    def build_index(self) -> tuple[IndexManifest, int]:
        """Index the posts; the manifest, and the number of posts that were sent."""
        self.require_files()
        place, files, posts = self.place(), self.post_files(), self._read_posts()
        command = ["python", "-m", "pipeline.index", *self._posts_options()]
        if address := place.engine:
            from tweetrerank.indexes.engines.filling import build

            command += ["--engine", address.url, "--engine-index", address.index]
            command += ["--engine-auth", str(address.auth)] if address.auth else []
            rebuild, folder = shlex.join(command), place.directory
            return build(address, posts, files, folder, rebuild, language=self.language)
        from tweetrerank.indexes.lucene_index import build as build_lucene

        rebuild = shlex.join([*command, "--index", str(place.directory.absolute())])
        manifest = build_lucene(posts, place.directory, files, rebuild, self.language)
        return manifest, manifest.posts

    def _posts_options(self) -> list[str]:
        """The options of ``pipeline.index`` that name the posts, for messages."""
        source, data = self.post_source, ["--data", str(self.data)] if self.data else []
        file = source.folder if isinstance(source, ForeignIndex) else self.file
        if file or self.name:
            return ["--collection", str(file.absolute()) if file else self.name, *data]
        assert isinstance(source, PostFiles)
        words = [
            word for path in source.files for word in ("--posts", str(path.absolute()))
        ]
        columns = ",".join(map("=".join, source.columns.items()))
        return [*words, "--columns", columns] if columns else words

    @property
    def adapted_path(self) -> Path | None:
        """File of word vectors adapted to the posts, made or not: beside the index, or an own
        collection's among the models."""
        if self.file:
            return models_directory() / "adapted" / f"{self.key}.safetensors"
        found = self.index_directory
        return found and found.with_name(f"{found.name}.adapted.safetensors")

    @cached_property
    def adapted_space(self) -> "AdaptedSpace | None":
        """Word vectors adapted to the posts by ``pipeline.adapt``, None without them."""
        if (path := self.adapted_file) is None:
            return None
        from tweetrerank.rerankers.text.spaces import AdaptedSpace

        return AdaptedSpace.load(path)

    def forget_adapted(self) -> None:
        """Read the adapted word vectors again when they are next used."""
        vars(self).pop("adapted_space", None)

    @property
    def adapted_file(self) -> Path | None:
        """The same file, None if it was not made; RerankerError: it is damaged, or was made from
        the posts of another collection."""
        path, posts = self.adapted_path, (self.index_directory or Path()) / POSTS_FILE
        if path is None or not path.exists():
            return None
        from tweetrerank.rerankers.text.spaces import description_of

        made = description_of(path)
        sample, name = (
            json.loads(made.get("sample", "{}")),
            made.get("collection", self.key),
        )
        present = len(sample)
        if sample and posts.is_file():
            with PostStore(posts) as store:
                known = store.get_many(sample).values()
            present = sum(
                text_number(post.text) == sample[post.doc_id] for post in known
            )
        if (self.file and name != self.key) or 2 * present < len(sample):
            raise RerankerError(
                f"{path}: found word vectors made from {made.get('posts')} posts of {name} "
                f"({present} of {len(sample)} drawn ones are in {self.title}), expected vectors of "
                "these posts; run pipeline.adapt again"
            )
        return path
