"""Named test collections: their topics, posts, candidates and judgments.

A collection is a row of :data:`_MICROBLOG` or of :mod:`pipeline.collections.answers`; a new one is a new row.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from indexes.posts import Post, read_pair_folder, read_posts
from pipeline.collections import answers
from pipeline.collections.answers import AnswerCollection
from pipeline.collections.locations import data_directory, home_directory, require_files
from pipeline.collections.trec import Qrels, Run, Topic, read_qrels, read_topics
from pipeline.command.errors import DataError, UsageError
from pipeline.command.options import did_you_mean
from pipeline.evaluation.measures import DEFAULT_MEASURES

__all__ = ["Collection", "SearchedCollection", "data_directory", "find", "find_answers",
           "home_directory", "index_directory", "names", "training_collections"]  # fmt: skip

SAMPLE = Path(__file__).parent.parent / "sample"


class Collection(Protocol):
    """What every collection can be asked, whether its posts are searched or its candidates given.

    One kind is :class:`SearchedCollection`, the other :class:`pipeline.collections.answers.AnswerCollection`.
    """

    @property
    def name(self) -> str:
        """As on the command line."""

    @property
    def title(self) -> str:
        """For reports."""

    @property
    def runs(self) -> Mapping[str, Path]:
        """Name -> official first-stage run."""

    @property
    def index_group(self) -> str | None:
        """Collections of a group share their posts and so their index; None: nothing to search."""

    @property
    def measures(self) -> Sequence[str]:
        """What its runs are usually compared by."""

    def topics(self) -> list[Topic]:
        """The topics, in the order of their file. Raises DataError if files are missing."""

    def candidates(self) -> Run | None:
        """The candidates that are given, without scores (all 0); None where they are searched."""

    def qrels(self) -> Qrels | None:
        """The judgments, or None where their file is absent."""

    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""

    def posts(self) -> Iterator[Post]:
        """The posts, each once. Raises DataError if files are missing."""

    def post_sources(self) -> list[Path]:
        """The files that the posts are read from."""

    def missing(self) -> list[Path]:
        """The files that should be there and are not; judgments may be absent."""


@dataclass(frozen=True)
class SearchedCollection:
    """A collection whose posts are searched, and where its parts are.

    Attributes:
        name: as on the command line.
        title: for reports.
        topics_path: file of topics.
        qrels_path: file of judgments; it may be absent.
        runs: name -> official first-stage run.
        index_group: collections of the same group share their posts and so their index.
        pair_folders: folders of parallel files that hold the group's posts.
        posts_path: file of JSON lines that holds them instead.
        measures: what its runs are usually compared by.
    """

    name: str
    title: str
    topics_path: Path
    qrels_path: Path
    runs: Mapping[str, Path]
    index_group: str
    pair_folders: Sequence[Path] = field(default=())
    posts_path: Path | None = None
    measures: Sequence[str] = DEFAULT_MEASURES

    def topics(self) -> list[Topic]:
        """The topics, in the order of their file. Raises DataError if files are missing."""
        require_files(self.name, self.missing())
        return read_topics(self.topics_path)

    def candidates(self) -> None:
        """None: they are searched."""

    def qrels(self) -> Qrels | None:
        """The judgments, or None where their file is absent."""
        return read_qrels(self.qrels_path) if self.qrels_path.exists() else None

    def missing_judgments(self) -> str:
        """Why there are no judgments, for reports."""
        return (
            f"{self.name} has no judgments here ({self.qrels_path} is absent), so its runs cannot "
            "be evaluated"
        )

    def posts(self) -> Iterator[Post]:
        """The posts of the index group, each once, by growing id.

        Of a post that several folders hold the first text that is not empty counts.

        Raises:
            DataError: files are missing.
        """
        require_files(self.name, self.missing())
        if self.posts_path:
            yield from read_posts(self.posts_path)
            return
        posts: dict[str, Post] = {}
        for folder in self.pair_folders:
            for _, post in read_pair_folder(folder):
                known = posts.get(post.doc_id)
                if known is None or not known.text.strip():
                    posts[post.doc_id] = post
        yield from sorted(posts.values(), key=lambda post: int(post.doc_id))

    def post_sources(self) -> list[Path]:
        """The files that the posts are read from."""
        if self.posts_path:
            return [self.posts_path]
        return [
            folder / name
            for folder in self.pair_folders
            for name in ("b.toks", "url.txt", "id.txt")
        ]

    def missing(self) -> list[Path]:
        """The files that should be there and are not; judgments may be absent."""
        files = [self.topics_path, *self.runs.values(), *self.post_sources()]
        return [path for path in dict.fromkeys(files) if not path.exists()]


class _Microblog(NamedTuple):
    """A year of the TREC Microblog track."""

    year: int
    index_group: str
    pool_years: tuple[int, ...]


# The tracks of 2011 and 2012 searched the same tweets, and so did those of 2013 and 2014.
_MICROBLOG = {
    "mb2011": _Microblog(2011, "tweets2011", (2011, 2012)),
    "mb2012": _Microblog(2012, "tweets2011", (2011, 2012)),
    "mb2013": _Microblog(2013, "tweets2013", (2013, 2014)),
    "mb2014": _Microblog(2014, "tweets2013", (2013, 2014)),
}
_ALIASES = {f"mb{row.year % 100}": name for name, row in _MICROBLOG.items()}


def names() -> list[str]:
    """The names of all collections."""
    return [*_MICROBLOG, "sample", *answers.NAMES]


def find(name: str, data: Path | None = None) -> Collection:
    """The collection of a name or an alias (``mb12``); of answer selection, its test part.

    Args:
        name: of the collection.
        data: folder of the data; None is the usual one.

    Raises:
        UsageError: there is none of that name.
    """
    name = _ALIASES.get(name, name)
    if name in _MICROBLOG:
        return _microblog(name, data)
    if name in answers.NAMES:
        return answers.find(name, data)
    if name == "sample":
        return SearchedCollection(
            "sample", "sample collection written for this project", SAMPLE / "topics.txt",
            SAMPLE / "qrels.txt", {}, "sample", posts_path=SAMPLE / "posts.jsonl",
        )  # fmt: skip
    raise UsageError(
        f"found neither a file nor a collection {name!r}, expected one of "
        f"{', '.join(names())}" + did_you_mean(name, [*names(), *_ALIASES])
    )


def find_answers(name: str, data: Path | None = None) -> AnswerCollection:
    """The test part of an answer-selection collection; its other parts are at hand from it.

    Args:
        name: of the collection.
        data: folder of the data; None is the usual one.

    Raises:
        UsageError: there is none of that name.
    """
    if name not in answers.NAMES:
        raise UsageError(
            f"found {name!r}, expected a collection of questions with given answers, one of "
            f"{', '.join(answers.NAMES)}" + did_you_mean(name, answers.NAMES)
        )
    return answers.find(name, data)


def training_collections(test: str | None = None, data: Path | None = None) -> list[str]:
    """The judged microblog collections other than ``test``; all of them for None.

    Raises:
        UsageError: there is no collection of that name, or it has a training part of its own.
        DataError: there are no judgments of any.
    """
    left_out = find(test, data).name if test else None
    if left_out in answers.NAMES:
        raise UsageError(
            f"found {left_out}, expected a microblog collection: {left_out} has a training part "
            f"of its own; use `python -m pipeline.train MODEL --collection {left_out}`"
        )
    judged = [name for name in _MICROBLOG if _microblog(name, data).qrels_path.exists()]
    if not judged:
        raise DataError(
            f"found no judgments of {', '.join(_MICROBLOG)} in {data_directory(data)}; fetch them "
            "with\n  python scripts/fetch_data.py\nor name a folder that has them by --data or "
            "TWEETRERANK_DATA"
        )
    return [name for name in judged if name != left_out]


def index_directory(collection: Collection) -> Path | None:
    """Where the index of a named collection is kept; None if its candidates are given."""
    group = collection.index_group
    return None if group is None else home_directory() / "indexes" / group


def _microblog(name: str, data: Path | None) -> SearchedCollection:
    row, folder = _MICROBLOG[name], data_directory(data) / "microblog"
    return SearchedCollection(
        name,
        f"TREC Microblog {row.year}",
        folder / f"topics.microblog{row.year}.txt",
        folder / f"qrels.microblog{row.year}.txt",
        {
            "ql": folder / f"trec-{row.year}" / "id.txt",
            "rm3": folder / "runs" / f"run.microblog{row.year}.RM3.txt",
        },
        row.index_group,
        [folder / f"trec-{year}" for year in row.pool_years],
    )
