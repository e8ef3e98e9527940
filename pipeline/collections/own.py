"""Collections of one's own, each described by a small file.

::

    # my-posts.toml; paths are relative to its folder
    posts  = ["posts-*.jsonl.gz"]    # files of posts, or patterns of their names
    topics = "topics.tsv"            # optional: or TREC XML, JSON lines, …; or a list of files
    qrels  = "qrels.txt"             # optional: as of trec_eval, or a table; or a list of files
    name   = "my-posts"              # optional: what is trained is kept under it; else the file's
    columns = {id = "tweet_id", text = "body"}  # optional: other names of id, text, url and title
    signals = ["likes", "created_at"]  # optional: fields with numbers, flags or ISO dates, which
                                     # models trained on the collection read beside the text
    train  = "topics.train.tsv"      # optional: the topics to train on; else all of topics
    train_qrels = "qrels.train.txt"  # optional: the judgments to train on; then only topics that
                                     # qrels judges are searched
    language = "en"                  # optional: of stems and word frequencies; "und": by the posts
    judged_only = true               # optional: only judged posts count (judgments of clicks)
    skip_own_id = true               # optional: a post with a query's id is none of its results

    # optional: the index is in OpenSearch or Elasticsearch, made by pipeline.index
    engine = "http://localhost:9200" # or several nodes, separated by commas
    engine_index = "my-posts"        # optional: else a name like the file's
    engine_auth = "engine.toml"      # optional: a file of user and password

    # in place of posts: an index that is there already, as it is
    text_field = "body"
    url_field  = "link"              # optional
    time_field = "created_at"        # optional: a date or a number, for topics with a time limit
    id_field   = "post_id"           # optional: else _id
    query = "query.json"             # optional: the engine's query with {{query}} in it, or the id
                                     # of a search template; else it matches the text field

Every command that takes ``mb2012`` takes ``my-posts.toml``, too, and an index by Pyserini, whose
posts are indexed here once, and a folder in BEIR's form: posts
in ``corpus.jsonl``, topics in ``queries.jsonl``, judgments in ``qrels/test.tsv``, those to train on
in ``qrels/train.tsv``; a post with a query's id is none of its results, as in BEIR's figures. The
collection's name is ``name``, else the file's without its ending, or the folder's. The topics of
``train`` need not be among ``topics``, which are searched; no other topic is trained on. Click logs
judge only posts that were shown. With ``judged_only``, measures leave out unjudged posts (condensed
lists, Sakai, *Alternatives to Bpref*, SIGIR 2007), and few of them train models.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from zlib import crc32

from indexes.analysis import ANALYZERS, UNDETERMINED
from indexes.engines.client import EngineAddress, index_name, query_file
from indexes.errors import CollectionError
from indexes.posts import FIELDS
from indexes.records import is_doc_id
from pipeline.collections.collection import CORPUS, ENDING, OWN, Collection, IndexPlace, beir_file
from pipeline.collections.sources import ForeignIndex, PostFiles
from pipeline.collections.topics import read_topics
from pipeline.collections.trec import joined_qrels
from pipeline.defaults import DEFAULT_MEASURES
from pipeline.errors import DataError
from pipeline.text import did_you_mean, listed

_ENGINE_FIELDS = ("text_field", "url_field", "time_field", "id_field")
_ENGINE = ("engine", "engine_index", "engine_auth", *_ENGINE_FIELDS, "query")
_FILES = ("posts", "topics", "qrels", "train", "train_qrels")
_FLAGS = ("judged_only", "skip_own_id")
KEYS = (*_FILES, "name", "columns", "signals", "language", *_FLAGS, *_ENGINE)

JUDGED_MEASURES = ("AP(judged_only=True)", "P(judged_only=True)@30")
"""The usual measures over posts with a judgment, as if a ranking had no others."""


def read_collection(path: Path, known_names: Sequence[str] = ()) -> Collection:
    """The collection that a file describes, a folder in BEIR's form, or an index by Pyserini.

    Args:
        known_names: of named collections, which it may not have.

    Raises:
        DataError: all problems of the file and of the files that it names.
    """
    if (foreign := ForeignIndex(path)).files:
        whole, place = path.resolve(), IndexPlace(_group(path.resolve(), {}))
        return Collection(whole.name, post_source=foreign, index=place, title=str(path), file=path)
    if path.is_dir():
        return _read_beir(path)
    found = _Description(path)
    collection = found.collection(known_names)
    if found.problems:
        raise DataError("\n".join(f"{path}: {problem}" for problem in found.problems))
    return collection


def _group(path: Path, columns: Mapping[str, str], signals: Sequence[str] = ()) -> str:
    """Name of a collection's index; files of one name in two folders have two indexes."""
    source = os.fsencode(path.resolve())
    source += b"".join(repr(each).encode() for each in (columns, signals) if each)
    return f"{OWN}{path.stem}-{crc32(source):08x}"


def _read_beir(folder: Path) -> Collection:
    """The collection of a folder in BEIR's form.

    Topics are those of the test part, without one of the development part, and models are trained
    on the next part of training and development that is there.
    """
    queries, corpus = (beir_file(folder, name) for name in ("queries.jsonl", CORPUS))
    if queries is None or corpus is None:
        raise DataError(f"{folder}: found no queries.jsonl, expected one beside {CORPUS}")
    test, dev, train = (beir_file(folder / "qrels", f"{p}.tsv") for p in ("test", "dev", "train"))
    searched = test or dev or train
    return Collection(
        name=folder.resolve().name,
        topic_files=[queries],
        qrels_files=[searched] if searched else [],
        post_source=PostFiles([corpus]),
        train_qrels=next((path for path in (train, dev) if path not in (None, searched)), None),
        index=IndexPlace(_group(folder.resolve(), {})),
        title=str(folder),
        skips_own_id=True,
        file=folder,
    )


class _Description:
    """The file of a collection, and the problems that are found while it is read."""

    def __init__(self, path: Path) -> None:
        self.path, self.problems = path, list[str]()
        try:
            self.content = tomllib.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(f"{path}: cannot be read: {error.strerror}") from None
        except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise DataError(
                f"{path}: found no TOML ({error}), expected lines such as "
                'posts = ["posts.jsonl"] and topics = "topics.tsv"'
            ) from None

    def _expect(self, key: str, value: object, is_right: bool, expected: str) -> bool:
        if not is_right:
            self.problems.append(f"{key}: found {value!r}, expected {expected}")
        return is_right

    def collection(self, known_names: Sequence[str]) -> Collection:
        """The collection; of no use if there are problems."""
        path, content, problems = self.path, self.content, self.problems
        for key in content:
            if key not in KEYS:
                similar = did_you_mean(key, KEYS)
                problems.append(f"found the key {key!r}, expected {', '.join(KEYS)}{similar}")
        if not content.keys() & {"posts", "text_field"}:
            problems.append("found no posts, expected files of them")
        name, columns = content.get("name", path.stem), content.get("columns", {})
        is_word = isinstance(name, str) and is_doc_id(name) and "/" not in name
        self._expect("name", name, is_word, "one word without a slash")
        if name in known_names:
            problems.append(f"{name} is the name of another collection; give it another `name`")
        expected = f"some of {', '.join(FIELDS)}, each with the name of its column"
        is_table = isinstance(columns, dict) and not columns.keys() - {*FIELDS}
        self._expect("columns", columns, is_table, expected)
        columns = {field: str(column) for field, column in columns.items()} if is_table else {}
        signals = self._signals()
        group = _group(path, columns, signals)
        engine = self._engine(index_name(group))
        files = {key: self._files(key) for key in _FILES}
        self._check_topics(files)
        judged_only, skips_own_id = (content.get(key, False) for key in _FLAGS)
        for key, flag in zip(_FLAGS, (judged_only, skips_own_id), strict=True):
            self._expect(key, flag, isinstance(flag, bool), "true or false")
        return Collection(
            name=name,
            topic_files=files["topics"],
            qrels_files=files["qrels"],
            post_source=PostFiles(files["posts"], columns, signals) if files["posts"] else None,
            train_topics=next(iter(files["train"]), None),
            train_qrels=next(iter(files["train_qrels"]), None),
            index=IndexPlace(group, engine=engine and replace(engine, signals=signals)),
            title=str(path),
            measures=JUDGED_MEASURES if judged_only else DEFAULT_MEASURES,
            language=self._language(),
            judged_only=judged_only,
            signals=signals,
            skips_own_id=skips_own_id,
            file=path,
        )

    def _signals(self) -> tuple[str, ...]:
        """Fields of the posts with numbers."""
        names = self.content.get("signals", [])
        named: list[Any] = names if isinstance(names, list) else [None]
        is_right = all(isinstance(n, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", n) for n in named)
        expected = "a list of fields in letters, digits, _, - and . (public_metrics.like_count)"
        is_right = self._expect("signals", names, is_right, expected)
        return tuple(dict.fromkeys(named)) if is_right else ()

    def _files(self, key: str) -> list[Path]:
        """The files that a key names, by their names or by patterns of these."""
        folder, names = self.path.parent, self.content.get(key, [])
        names = [names] if isinstance(names, str) else names
        is_list = isinstance(names, list) and all(isinstance(name, str) for name in names)
        if not self._expect(key, names, is_list, "the name of a file, or a list of names"):
            return []
        files: dict[Path, None] = {}
        for name in names:
            root = Path(Path(name).anchor) if Path(name).is_absolute() else folder
            matching = [folder / name]
            if name and not matching[0].is_file():
                matching = sorted(root.glob(name.removeprefix(root.anchor)))
            if not (found := [path for path in matching if path.is_file()]):
                self.problems.append(f"{key}: found no file {name!r} in {folder.resolve()}")
            files |= dict.fromkeys(found)
        if key.startswith("train") and len(files) > 1:
            self.problems.append(f"{key}: found {len(files)} files, expected one")
        return [*files]

    def _check_topics(self, files: Mapping[str, Sequence[Path]]) -> None:
        """Note what is wrong with topics, to search and to train on, and with their judgments."""

        def read(key: str, parse: Callable[..., Any], empty: Any) -> Any:
            try:
                return parse(*files[key]) if files[key] else empty
            except DataError as error:
                self.problems.append(f"{key}: {error}")
                return empty

        topics, train = (read(key, read_topics, []) for key in ("topics", "train"))
        ids = [topic.query_id for topic in (*topics, *train)]
        qrels, others = (
            read(key, lambda *of: joined_qrels(of, ids), {}) for key in ("qrels", "train_qrels")
        )
        if others and not qrels:
            self.problems.append("train_qrels: found without qrels, whose topics are searched")
        if not topics:
            return
        texts, judged = {topic.query_id: topic.text for topic in topics}, qrels | others
        if other := [t for t in train if texts.get(t.query_id, t.text) != t.text]:
            query_id, text, *_ = other[0]
            self.problems.append(
                f"train: {self.content['train']} has another text of topic {query_id} ({text!r}) "
                f"than {self.content['topics']} ({texts[query_id]!r}), expected an id of its own "
                "for each topic, as both share the judgments"
            )
            return
        for key, of in (("train", [t.query_id for t in train]), ("topics", ids)):
            if of and judged and judged.keys().isdisjoint(of):
                where = "train" if key == "train" else "qrels"
                problem = f"{self.content['qrels']} has judgments for no topic of"
                self.problems.append(f"{where}: {problem} {self.content[key]}")
                return

    def _engine(self, default: str) -> EngineAddress | None:
        """The index in a search engine, None without one."""
        folder, before = self.path.parent, len(self.problems)
        given = {key: self.content[key] for key in _ENGINE if key in self.content}
        for key, value in given.items():
            if "engine" in given:
                self._expect(key, value, isinstance(value, str), "a text")
            else:
                self.problems.append(f"{key}: found without engine, expected its address, too")
        if {"engine", "text_field"} <= given.keys() and "posts" in self.content:
            expected = "expected either: files to index, or an index as it is"
            self.problems.append(f"posts: found with text_field, {expected}")
        if not given or self.problems[before:]:
            return None
        query, auth = given.get("query"), given.get("engine_auth")
        try:
            return EngineAddress(
                given["engine"],
                given.get("engine_index", default),
                folder / auth if auth else None,
                **{key: given[key] for key in _ENGINE_FIELDS if key in given},
                query=query and query_file(query, folder),
            )
        except (CollectionError, ValueError) as error:
            self.problems.append(f"engine: {error}")
            return None

    def _language(self) -> str | None:
        """A language that has word frequencies or an analyzer, or None."""
        if (code := self.content.get("language")) is None:
            return None
        # A third of a second, which collections without the key need not wait for.
        import wordfreq

        known = sorted({*wordfreq.available_languages(), *ANALYZERS, UNDETERMINED})
        expected = f"one of {', '.join(known)}{did_you_mean(str(code), known)}"
        is_known = isinstance(code, str) and code in known
        return code if self._expect("language", code, is_known, expected) else None


def missing_collection(name: str) -> str:
    """Advice for a name that ends like a file of a collection, but is no file."""
    folder = Path(name).parent
    others = listed(sorted(path.name for path in folder.glob(f"*{ENDING}")))
    return f"found no file {name}" + (f"; {folder.resolve()} has {others}" if others else "")
