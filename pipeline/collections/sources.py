"""Sources of posts: files of them, an index of others, folders of pairs, questions with answers."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, zip_longest
from pathlib import Path
from typing import NamedTuple

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.manifest import FILE_NAME
from tweetrerank.indexes.posts import Post, read_posts
from tweetrerank.indexes.records import is_doc_id, numbered_lines, short
from tweetrerank.pipeline.collections.topics import Topic
from tweetrerank.pipeline.collections.trec import Qrels, Run
from tweetrerank.pipeline.text import note

FILES, LABELS = ("a.toks", "b.toks", "id.txt"), "sim.txt"
"""Parallel files of (query, post) pairs, and the optional one of relevance labels."""


class PostFiles(NamedTuple):
    """Files of posts."""

    files: Sequence[Path]
    columns: Mapping[
        str, str
    ] = {}  # Field of a post -> its column or key, where it differs
    signals: Sequence[str] = ()  # Further fields of the posts, which are numbers

    def posts(self) -> Iterator[Post]:
        """The posts, in the order of the files, with their signals as numbers; posts that lack one
        are counted on stderr."""
        from tweetrerank.rerankers.pairs import number_of

        count, known = 0, Counter[str]()
        for post in chain.from_iterable(
            read_posts(path, *self[1:]) for path in self.files
        ):
            numbers = {
                name: n for name, v in post.signals.items() if (n := number_of(v)) == n
            }
            known.update(numbers.keys())
            count += 1
            yield post._replace(signals=numbers) if self.signals else post
        if lacking := [name for name in self.signals if count and not known[name]]:
            raise DataError(
                f"{self.files[0]}: found no number under {', '.join(lacking)} in {count:,} posts, "
                "expected numbers, flags or ISO dates; correct `signals`"
            )
        for name in self.signals:
            if known[name] < count:
                note(
                    f"{name}: {count - known[name]:,} of {count:,} posts have no number there"
                )


class ForeignIndex(NamedTuple):
    """An index by Pyserini or Anserini, whose posts are read as they are stored."""

    folder: Path

    @property
    def files(self) -> list[Path]:
        """The list of its parts, another with each change; none in another folder."""
        is_ours = (self.folder / FILE_NAME).exists()
        return [] if is_ours else sorted(self.folder.glob("segments_*"))

    def posts(self) -> Iterator[Post]:
        """The posts, in the order of the index."""
        from tweetrerank.indexes.lucene_index import stored_posts

        return stored_posts(self.folder)


def _pairs(folder: Path, optional: str) -> Iterator[tuple[int, list[str]]]:
    """Number, from 1, and lines of each pair in :data:`FILES` and in an ``optional`` file; raises
    DataError for a missing or a shorter file."""
    if missing := [name for name in FILES if not (folder / name).exists()]:
        raise DataError(
            f"{folder}: found no {', no '.join(missing)}; expected {[*FILES]}"
        )
    present = [*FILES, *([optional] if (folder / optional).exists() else [])]
    streams = [numbered_lines(folder / name) for name in present]
    for number, lines in enumerate(zip_longest(*streams), start=1):
        if None in lines:
            raise DataError(
                f"{folder / present[lines.index(None)]}: found {number - 1} lines, expected as "
                "many as in the parallel files beside it"
            )
        yield number, [line for _, line in lines]


class PairFolders(NamedTuple):
    """Folders of posts found by queries: queries in ``a.toks``, posts in ``b.toks``. ``url.txt``
    has links or empty lines, ``id.txt`` lines ``query_id Q0 doc_id rank score tag``."""

    folders: Sequence[Path]

    @property
    def files(self) -> list[Path]:
        """The files that are read."""
        return [
            folder / n
            for folder in self.folders
            for n in ("b.toks", "url.txt", "id.txt")
        ]

    def posts(self) -> Iterator[Post]:
        """The posts, each once with its first text that is not empty, by ascending id."""
        posts: dict[str, Post] = {}
        for folder in self.folders:
            for number, (_, text, name, *url) in _pairs(folder, "url.txt"):
                if len(columns := name.split()) != 6:
                    raise DataError(
                        f"{folder / 'id.txt'}:{number}: found {short(name)}, expected `query_id "
                        "Q0 doc_id rank score tag`"
                    )
                doc_id = columns[2]
                if doc_id not in posts or not posts[doc_id].text.strip():
                    posts[doc_id] = Post(doc_id, text, "".join(url).strip())
        return iter(sorted(posts.values(), key=lambda post: int(post.doc_id)))


PostSource = PostFiles | ForeignIndex | PairFolders


@dataclass(frozen=True)
class Answers:
    """Questions with given candidate answers: topics, posts, labels and candidates in one.
    ``a.toks`` has questions, ``b.toks`` answers, the optional ``sim.txt`` 1 for relevant answers
    and 0 for others, ``id.txt`` the answer's id, ``Q11-D11-0``, which begins with the question's
    and ``-``, or the question's, ``32.1``, whose answers then are ``32.1-0``, ``32.1-1``, …"""

    folders: Mapping[str, Path]  # Part (``train``, ``dev``, ``test``) -> its files
    part: str = "test"

    @property
    def files(self) -> list[Path]:
        """The files of the part; labels may be absent."""
        return [self.folders[self.part] / name for name in FILES]

    @property
    def labels(self) -> Path:
        """The file of labels."""
        return self.folders[self.part] / LABELS

    @cached_property
    def _rows(self) -> list[tuple[str, str, Post, int]]:
        """Id and text of the question, the answer, and its label, 0 without one."""
        rows: list[tuple[str, str, Post, int]] = []
        counts, lines_of, folder = (
            Counter[str](),
            dict[str, int](),
            self.folders[self.part],
        )
        for number, (question, text, line, *labels) in _pairs(folder, LABELS):
            where = f"{folder / 'id.txt'}:{number}"
            query_id, dash, _ = (name := line.strip()).partition("-")
            if not is_doc_id(name) or not query_id:
                raise DataError(
                    f"{where}: found {short(name)}, expected one word: the id of a question "
                    "(32.1), or the id of an answer (Q11-D11-0), which begins with its question's"
                )
            doc_id = name if dash else f"{query_id}-{counts[query_id]}"
            counts[query_id] += 1
            if (first := lines_of.setdefault(doc_id, number)) != number:
                raise DataError(
                    f"{where}: found the answer {doc_id!r} again, expected every id once; "
                    f"the first is on line {first}"
                )
            label = labels[0].strip() if labels else "0"
            if label not in ("0", "1"):
                raise DataError(
                    f"{self.labels}:{number}: found {short(label)}, expected 0 or 1"
                )
            rows.append((query_id, question, Post(doc_id, text), int(label)))
        if not rows:
            raise DataError(
                f"{folder}: found no answer, expected at least one line a file"
            )
        return rows

    def topics(self) -> list[Topic]:
        """The questions, in the order of the files; the text is that of the first line."""
        questions: dict[str, str] = {}
        for query_id, question, *_ in self._rows:
            questions.setdefault(query_id, question)
        return [Topic(*question) for question in questions.items()]

    def posts(self) -> Iterator[Post]:
        """The answers, in the order of the files."""
        return (post for _, _, post, _ in self._rows)

    def candidates(self) -> Run:
        """The answers of each question, all with the score 0."""
        return {q: dict.fromkeys(labels, 0.0) for q, labels in self.qrels().items()}

    def qrels(self) -> Qrels:
        """The labels, of questions without a relevant answer, too, where every ranking is worth 0,
        as in trec_eval and in Rao et al. (2016), section 5."""
        qrels: Qrels = {}
        for query_id, _, post, label in self._rows:
            qrels.setdefault(query_id, {})[post.doc_id] = label
        return qrels
