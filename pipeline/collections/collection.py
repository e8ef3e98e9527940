"""Define a collection: topics, judgments, and the posts or candidates of a search.

Collections are opened by :mod:`tweetrerank.pipeline.collections.named`.
"""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from zlib import crc32

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.manifest import IndexManifest
from tweetrerank.indexes.methods import METHODS
from tweetrerank.indexes.posts import Post
from tweetrerank.indexes.records import listed
from tweetrerank.indexes.store import POSTS_FILE, PostStore
from tweetrerank.pipeline.collections.catalogue import by_hand
from tweetrerank.pipeline.collections.folders import models_directory
from tweetrerank.pipeline.collections.index_place import IndexPlace
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

OWN = "own/"
"""Prefix of users' collections in the folders of indexes and checkpoints."""


def text_number(text: str) -> int:
    """Return the CRC-32 of a post's text, to recognize the post by."""
    return crc32(text.encode(errors="replace"))


@dataclass(frozen=True)
class Collection:
    """Topics, posts and judgments, each from its own source.

    Files are read when they are first needed, so each property raises DataError if its
    file cannot be used.
    """

    name: str
    """Name on the command line, or name of the file of topics without its ending."""
    topic_files: Sequence[Path] = ()
    qrels_files: Sequence[Path] = ()
    """Files of judgments. The first one may be absent. Messages name it."""
    post_source: PostSource | None = None
    """Source of the posts to index. It is None if the index exists already, or if
    ``answers`` has the posts."""
    answers: Answers | None = None
    """Source of topics, judgments and candidates, if the candidates are given and not
    searched."""
    train_topics: Path | None = None
    """File of the topics for training, if these are not the topics to search."""
    train_qrels: Path | None = None
    """File of the judgments for training. The topics that it judges are trained on. The
    topics that ``qrels_files`` judge are searched."""
    index: IndexPlace | None = None  # None if the candidates are given
    title: str = ""  # For reports
    runs: Mapping[str, Path] = field(default_factory=dict)
    """Name -> official first-stage run."""
    measures: Sequence[str] = DEFAULT_MEASURES
    """The usual measures of its runs, as ir_measures names them."""
    language: str | None = None
    """Language of the topics and posts (``en``). It is unknown if None or ``und``."""
    judged_only: bool = False
    """Whether training uses only few of the candidates that have no judgment."""
    signals: Sequence[str] = ()
    """Numeric fields of the posts that models may read."""
    skips_own_id: bool = False
    """Whether results leave out the post that has the query's id."""
    file: Path | None = None
    """File or folder of a user's collection."""
    data: Path | None = None
    """Data folder of the option ``--data``, for messages."""

    def __repr__(self) -> str:
        return f"<collection {self.title}>"

    def __getstate__(self) -> dict[str, Any]:
        """Return only the fields, so that another process reads the files again."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def key(self) -> str:
        """Name of the folder of its checkpoints, below the folder of a model."""
        if self.file:
            return OWN + self.name
        return self.name

    # Topics and judgments

    @property
    def has_topics(self) -> bool:
        """Whether the collection comes with topics."""
        return bool(self.topic_files or self.answers)

    @cached_property
    def _topics(self) -> tuple[list[Topic], list[Topic]]:
        """All topics in the order of their files, and the topics for training."""
        self.require_files()
        if self.answers:
            topics = self.answers.topics()
        elif self.topic_files:
            topics = read_topics(*self.topic_files)
        else:
            raise DataError(f"{self.title}: found no topics, expected a file of them")
        if self.train_topics is None:
            return topics, topics
        return topics, read_topics(self.train_topics)

    @cached_property
    def _grades(self) -> tuple[Qrels, Qrels]:
        """Judgments of the topics to search, and judgments of the topics for training.

        Both are the same if one file judges all topics.
        """
        path = self.qrels_path
        has_file = path is not None and path.exists()
        query_ids = None
        if has_file or self.train_qrels:
            query_ids = self._query_ids()
        searched: Qrels = {}
        if has_file and self.qrels_files:
            searched = joined_qrels(self.qrels_files, query_ids)
        elif has_file and self.answers:
            searched = self.answers.qrels()
        if self.train_qrels is None:
            return searched, searched
        return searched, joined_qrels([self.train_qrels], query_ids)

    def _query_ids(self) -> list[str] | None:
        """Return the ids of the topics to search and of those for training.

        The result is None if the collection has no topics.
        """
        if not self.has_topics:
            return None
        topics, training_topics = self._topics
        return [topic.query_id for topic in topics + training_topics]

    @cached_property
    def topics(self) -> list[Topic]:
        """The topics to search, in the order of their file."""
        topics, _ = self._topics
        if self.train_qrels is None:
            return list(topics)
        grades, _ = self._grades
        return [topic for topic in topics if topic.query_id in grades]

    @cached_property
    def training_topics(self) -> list[Topic]:
        """The judged topics for training."""
        _, topics = self._topics
        _, grades = self._grades
        return [topic for topic in topics if topic.query_id in grades]

    @property
    def qrels_path(self) -> Path | None:
        """The file of judgments, which may be absent. None if no file is named."""
        if self.qrels_files:
            return self.qrels_files[0]
        if self.answers:
            return self.answers.labels
        return None

    @cached_property
    def training_qrels(self) -> Qrels | None:
        """Judgments for searching and for training together, None if there are none."""
        return merged(self._grades) or None

    @cached_property
    def qrels(self) -> Qrels | None:
        """Judgments of the topics to search, None if there are none.

        Judged topics that the collection lacks are left out, because trec_eval would
        count them as failures of a run. They are named on stderr.
        """
        grades = self.training_qrels
        if grades is None:
            return None
        searched = {topic.query_id for topic in self.topics}
        lacking = [query_id for query_id in grades if query_id not in searched]
        if lacking and not self._trains_apart:
            say(
                f"{self.qrels_path}: judged topics that {self.title} lacks, not "
                f"counted ({len(lacking)}): {_first_ten(lacking)}"
            )
        judged = {
            query_id: grades_of_topic
            for query_id, grades_of_topic in grades.items()
            if query_id in searched
        }
        return judged or None

    @property
    def _trains_apart(self) -> bool:
        return bool(self.train_topics or self.train_qrels)

    @property
    def missing_judgments(self) -> str:
        """The reason why there are no judgments, for reports."""
        path = self.qrels_path
        if path is None:
            return (
                f"{self.title} has no judgments; name a file of them by qrels or "
                "--qrels"
            )
        grades = self.training_qrels
        if grades:
            which = "training topics only"
            if not self._trains_apart:
                which = listed(list(grades))
            return f"{self.title}: {path} judges {which}, none of the topics here"
        return (
            f"{self.name} has no judgments here ({path} is absent), so its runs cannot "
            "be evaluated"
        )

    def check_judged_posts(self) -> None:
        """Warn once about judged posts that are not in a user's collection."""
        # The named collections are known to have lost some posts.
        if not self._has_users_posts or "_is_checked" in vars(self):
            return
        vars(self)["_is_checked"] = True
        judged = _doc_ids_in(self.training_qrels or {})
        posts = self.find_posts(judged)
        lacking = [doc_id for doc_id in judged if doc_id not in posts]
        if not lacking:
            return
        examples = [post.doc_id for post in islice(self.posts(), 2)]
        say(
            f"warning: {len(lacking):,} of the {len(judged):,} judged posts are not in "
            f"{self.name} ({listed(lacking, 2)}), whose posts have ids such as "
            f"{listed(examples)}; they count as not found"
        )

    @property
    def _has_users_posts(self) -> bool:
        """Whether the posts are a user's, from a file, an index or an engine."""
        if self.runs:
            return False
        if self.file:
            return True
        return bool(self.index and (self.index.folder or self.index.engine))

    @cached_property
    def judged_posts(self) -> "JudgedPosts":
        """Judgments of the topics for training, by the texts of the judged posts."""
        from tweetrerank.rerankers.features.judged import JudgedPosts

        qrels = self.training_qrels or {}
        judged = {
            topic.query_id: qrels.get(topic.query_id, {})
            for topic in self.training_topics
        }
        posts = self.find_posts(_doc_ids_in(judged))
        topics = [
            (topic.text, judged[topic.query_id]) for topic in self.training_topics
        ]
        texts = {doc_id: post.text for doc_id, post in posts.items()}
        return JudgedPosts.of(topics, texts)

    # Posts and candidates

    @cached_property
    def given_candidates(self) -> Run | None:
        """Candidates that come with the topics, all with the score 0.

        It is None if the candidates have to be searched.
        """
        if self.answers is None:
            return None
        self.require_files()
        return self.answers.candidates()

    def part(self, name: str) -> Self:
        """Return another part of this collection: ``train``, ``dev`` or ``test``.

        The collection must have given answers.
        """
        assert self.answers
        return replace(self, answers=replace(self.answers, part=name))

    def posts(self) -> Iterator[Post]:
        """Yield all posts, each once.

        Once the index of a user's collection is built, its posts are read from there.
        """
        with self._indexed_posts() as posts:
            if posts is None:
                yield from self._read_posts()
            else:
                yield from posts

    def find_posts(self, doc_ids: Sequence[str]) -> Mapping[str, Post]:
        """Return the posts with these ids by id, without ids that are unknown.

        Without an index this reads all posts.
        """
        with self._indexed_posts() as indexed:
            if indexed is not None:
                return indexed.get_many(doc_ids)
        posts = {post.doc_id: post for post in self._read_posts()}
        return {doc_id: posts[doc_id] for doc_id in doc_ids if doc_id in posts}

    @contextmanager
    def _indexed_posts(self) -> Iterator["PostStore | KeptPosts | None"]:
        """Yield the posts of an index, or None if they have to be read from the files.

        The latter holds for named collections, and before an index is built.
        """
        if self.index is None:
            yield None
        elif self.post_source is None or (self.file and self.engine):
            yield self.open_index().posts
        elif self.file and self.index.directory.exists():
            folder = self.index.directory
            IndexManifest.read(folder).check(folder, self.post_files())
            with PostStore(folder / POSTS_FILE) as store:
                yield store
        else:
            yield None

    @property
    def _source(self) -> PostSource | Answers | None:
        return self.post_source or self.answers

    def _read_posts(self) -> Iterator[Post]:
        self.require_files()
        if self._source is None:
            return iter(())
        return self._source.posts()

    def post_files(self) -> list[Path]:
        """Return the files of posts."""
        return list(self._source.files) if self._source else []

    def missing(self) -> list[Path]:
        """Return the absent files of topics, runs and posts.

        Judgments may be absent, so they do not count.
        """
        files = list(self.topic_files)
        files += self.runs.values()
        files += self.post_files()
        return [path for path in dict.fromkeys(files) if not path.exists()]

    def require_files(self) -> None:
        """Raise DataError with advice if a file is missing."""
        missing = self.missing()
        if not missing:
            return
        more = f" and {len(missing) - 1} more" if missing[1:] else ""
        advice = by_hand(missing[0]) or (
            f"fetch the data with\n  tweetrerank fetch {self.name}\n"
            "or name a folder that has them by --data or TWEETRERANK_DATA"
        )
        raise DataError(f"{self.name}: {missing[0]}{more} not found; {advice}")

    # Index

    @property
    def engine(self) -> EngineAddress | None:
        """The index in a search engine, None if it is in a folder or there is none."""
        return self.index and self.index.engine

    @property
    def index_directory(self) -> Path | None:
        """The folder :attr:`IndexPlace.directory`, None if nothing is searched."""
        return self.index and self.index.directory

    def place(self) -> IndexPlace:
        """Return the place of the index. Raises UsageError if nothing is searched."""
        if self.index is None:
            raise UsageError(
                f"found {self.name}, expected a collection whose posts are searched: "
                "the candidates of this one are given, and it needs no index "
                f"(python -m pipeline.search --topics {self.name} ranks them)"
            )
        return self.index

    @property
    def methods(self) -> Sequence[str]:
        """Names of the retrieval methods that the index offers.

        There are none if the index ranks by its own query, or if nothing is searched.
        """
        if self.index is None:
            return ()
        if not self.engine:
            return tuple(METHODS)
        from tweetrerank.indexes.engines.layout import RANKED

        if not self.engine.has_methods:
            return ()
        return tuple(RANKED)

    def open_index(self) -> "LuceneIndex | EngineIndex":
        """Open the index of the posts.

        An index in the home folder is built on its first use. Raises UsageError if the
        candidates are given. Raises DataError if the index is damaged or has other
        posts.
        """
        place = self.place()
        files = self.post_files()
        if place.engine:
            from tweetrerank.indexes.engines.engine_index import open_index

            return open_index(place.engine, place.directory, files or None)
        from tweetrerank.indexes.lucene_index import LuceneIndex

        if not all(path.exists() for path in files):
            # An absent file would be reported as an index of other posts.
            self.require_files()
        if place.folder is None and not place.directory.exists():
            if self.has_topics:
                # Errors in these files are reported before the long build.
                _ = self.topics, self.training_qrels
            say(f"building the index {place.directory} (once)")
            self.build_index()
        return LuceneIndex.open(place.directory, files or None)

    def build_index(self) -> tuple[IndexManifest, int]:
        """Index the posts.

        Returns the manifest, and the number of posts that were indexed or, for a search
        engine, sent to it.
        """
        self.require_files()
        place = self.place()
        files = self.post_files()
        posts = self._read_posts()
        command = ["python", "-m", "pipeline.index", *self._posts_options()]
        if place.engine:
            from tweetrerank.indexes.engines.filling import build

            rebuild = shlex.join(command + _engine_options(place.engine))
            return build(
                place.engine,
                posts,
                files,
                place.directory,
                rebuild,
                language=self.language,
            )
        from tweetrerank.indexes.lucene_index import build as build_lucene

        command += ["--index", str(place.directory.absolute())]
        rebuild = shlex.join(command)
        manifest = build_lucene(posts, place.directory, files, rebuild, self.language)
        return manifest, manifest.posts

    def _posts_options(self) -> list[str]:
        """Return the options of ``pipeline.index`` that name the posts."""
        source = self.post_source
        name = self.name
        if isinstance(source, ForeignIndex):
            name = str(source.folder.absolute())
        elif self.file:
            name = str(self.file.absolute())
        if name:
            options = ["--collection", name]
            if self.data:
                options += ["--data", str(self.data)]
            return options
        assert isinstance(source, PostFiles)
        options = []
        for path in source.files:
            options += ["--posts", str(path.absolute())]
        columns = ",".join(map("=".join, source.columns.items()))
        if columns:
            options += ["--columns", columns]
        return options

    # Word vectors adapted to the posts

    @property
    def adapted_path(self) -> Path | None:
        """The file of word vectors adapted to the posts, which may be absent.

        For a user's collection it is in the folder of the models, else next to the
        index. It is None if nothing is searched.
        """
        if self.file:
            return models_directory() / "adapted" / f"{self.key}.safetensors"
        folder = self.index_directory
        return folder and folder.with_name(f"{folder.name}.adapted.safetensors")

    @cached_property
    def adapted_space(self) -> "AdaptedSpace | None":
        """Word vectors adapted to the posts by ``pipeline.adapt``, None without any."""
        path = self.adapted_file
        if path is None:
            return None
        from tweetrerank.rerankers.text.spaces import AdaptedSpace

        return AdaptedSpace.load(path)

    def forget_adapted(self) -> None:
        """Forget the adapted word vectors, so that their next use reads the file."""
        vars(self).pop("adapted_space", None)

    @property
    def adapted_file(self) -> Path | None:
        """The file :attr:`adapted_path`, None if it is absent.

        Raises RerankerError if the file is damaged, or if it was made from the posts of
        another collection.
        """
        path = self.adapted_path
        if path is None or not path.exists():
            return None
        from tweetrerank.rerankers.text.spaces import description_of

        description = description_of(path)
        name = description.get("collection", self.key)
        sample = json.loads(description.get("sample", "{}"))
        present = self._count_present(sample)
        has_other_name = self.file is not None and name != self.key
        if has_other_name or 2 * present < len(sample):
            raise RerankerError(
                f"{path}: found word vectors made from {description.get('posts')} "
                f"posts of {name} ({present} of {len(sample)} drawn ones are in "
                f"{self.title}), expected vectors of these posts; run pipeline.adapt "
                "again"
            )
        return path

    def _count_present(self, sample: Any) -> int:
        """Return how many sampled posts the index has with the same text.

        ``sample`` has the :func:`text_number` of each post by doc_id. Without a local
        index all posts count as present.
        """
        path = (self.index_directory or Path()) / POSTS_FILE
        if not sample or not path.is_file():
            return len(sample)
        with PostStore(path) as store:
            posts = store.get_many(sample).values()
        return sum(text_number(post.text) == sample[post.doc_id] for post in posts)


def _first_ten(query_ids: Sequence[str]) -> str:
    return ", ".join(query_ids[:10]) + (", …" if query_ids[10:] else "")


def _doc_ids_in(qrels: Qrels) -> list[str]:
    """Return the ids of the judged posts, each once and in their order."""
    doc_ids: dict[str, None] = {}
    for grades in qrels.values():
        doc_ids.update(dict.fromkeys(grades))
    return list(doc_ids)


def _engine_options(address: EngineAddress) -> list[str]:
    """Return the options of ``pipeline.index`` that name an engine, for messages."""
    options = ["--engine", address.url, "--engine-index", address.index]
    if address.auth:
        options += ["--engine-auth", str(address.auth)]
    return options
