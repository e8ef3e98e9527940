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
from typing import TypeVar
from zlib import crc32

from indexes.analysis import ANALYZERS, UNDETERMINED
from indexes.engines.client import EngineAddress, index_name, query_file
from indexes.errors import CollectionError
from indexes.posts import FIELDS
from indexes.records import is_doc_id
from pipeline.collections.collection import CORPUS, ENDING, OWN, Collection, IndexPlace, beir_file
from pipeline.collections.sources import ForeignIndex, PostFiles, QrelsFiles, TopicFiles
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import Qrels, joined_qrels
from pipeline.defaults import DEFAULT_MEASURES
from pipeline.errors import DataError
from pipeline.text import did_you_mean, listed

Content = TypeVar("Content")

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
    content, problems = _read(path), list[str]()
    problems += [
        f"found the key {key!r}, expected {', '.join(KEYS)}{did_you_mean(key, KEYS)}"
        for key in content
        if key not in KEYS
    ]
    if not content.keys() & {"posts", "text_field"}:
        problems.append("found no posts, expected files of them")
    name, columns = content.get("name", path.stem), content.get("columns", {})
    if not isinstance(name, str) or not is_doc_id(name) or "/" in name:
        problems.append(f"name: found {name!r}, expected one word without a slash")
    if name in known_names:
        problems.append(f"{name} is the name of another collection; give it another `name`")
    if not isinstance(columns, dict) or columns.keys() - {*FIELDS}:
        expected = f"some of {', '.join(FIELDS)}, each with the name of its column"
        problems.append(f"columns: found {columns!r}, expected {expected}")
        columns = {}
    columns = {field: str(column) for field, column in columns.items()}
    signals = _signals(content.get("signals", []), problems)
    group = _group(path, columns, signals)
    engine = _engine(path.parent, content, index_name(group), problems)
    files = {key: _files(path.parent, content, key, problems) for key in _FILES}

    def read(key: str, parse: Callable[[Sequence[Path]], Content]) -> Content | None:
        try:
            return parse(files[key]) if files[key] else None
        except DataError as error:
            problems.append(f"{key}: {error}")
            return None

    topics, train = (read(key, lambda of: read_topics(*of)) or [] for key in ("topics", "train"))
    query_ids = [topic.query_id for topic in (*topics, *train)]
    qrels, train_qrels = (
        read(key, lambda of: joined_qrels(of, query_ids)) or {} for key in ("qrels", "train_qrels")
    )
    problems += [
        f"{key}: found {len(files[key])} files, expected one"
        for key in ("train", "train_qrels")
        if files[key][1:]
    ]
    if train_qrels and not qrels:
        problems.append("train_qrels: found without qrels, whose topics are searched")
    if topics:
        problems += _topic_problems(topics, train, content, qrels | train_qrels)
    language = _language(content.get("language"), problems)
    judged_only, skips_own_id = (content.get(key, False) for key in _FLAGS)
    problems += [
        f"{key}: found {content[key]!r}, expected true or false"
        for key in _FLAGS
        if not isinstance(content.get(key, False), bool)
    ]
    if problems:
        raise DataError("\n".join(f"{path}: {problem}" for problem in problems))
    return Collection(
        name=str(name),
        topic_source=TopicFiles(files["topics"], *files["train"]) if topics else None,
        qrels_source=QrelsFiles(files["qrels"], *files["train_qrels"]) if qrels else None,
        post_source=PostFiles(files["posts"], columns, signals) if files["posts"] else None,
        index=IndexPlace(group, engine=engine and replace(engine, signals=signals)),
        title=str(path),
        measures=JUDGED_MEASURES if judged_only else DEFAULT_MEASURES,
        language=language,
        judged_only=bool(judged_only),
        signals=signals,
        skips_own_id=bool(skips_own_id),
        file=path,
    )


def _group(path: Path, columns: Mapping[str, str], signals: tuple[str, ...] = ()) -> str:
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
    parts = {part: beir_file(folder / "qrels", f"{part}.tsv") for part in ("test", "dev", "train")}
    searched = next(filter(None, parts.values()), None)
    trained = [path for part in ("train", "dev") if (path := parts[part]) not in (None, searched)]
    return Collection(
        name=folder.resolve().name,
        topic_source=TopicFiles([queries]),
        qrels_source=QrelsFiles([searched], next(iter(trained), None)) if searched else None,
        post_source=PostFiles([corpus]),
        index=IndexPlace(_group(folder.resolve(), {})),
        title=str(folder),
        skips_own_id=True,
        file=folder,
    )


def _engine(
    folder: Path, content: Mapping[str, object], default: str, problems: list[str]
) -> EngineAddress | None:
    """The index in a search engine, None without one."""
    given = {key: content[key] for key in _ENGINE if key in content}
    texts = {key: value for key, value in given.items() if isinstance(value, str)}
    found = [f"{key}: found {given[key]!r}, expected a text" for key in given if key not in texts]
    if "engine" not in given:
        found = [f"{key}: found without engine, expected its address, too" for key in given]
    elif "text_field" in given and "posts" in content:
        found.append(
            "posts: found with text_field, expected either: files to index, or an index as it is"
        )
    problems += found
    if found or not given:
        return None
    query, auth = texts.get("query"), texts.get("engine_auth")
    try:
        return EngineAddress(
            texts["engine"],
            texts.get("engine_index", default),
            folder / auth if auth else None,
            **{key: texts[key] for key in _ENGINE_FIELDS if key in texts},  # type: ignore[arg-type]
            query=query and query_file(query, folder),
        )
    except (CollectionError, ValueError) as error:
        problems.append(f"engine: {error}")
        return None


def _signals(names: object, problems: list[str]) -> tuple[str, ...]:
    """The fields of signals."""
    named = names if isinstance(names, list) else [None]
    if all(isinstance(n, str) and re.fullmatch(r"[A-Za-z0-9_.-]+", n) for n in named):
        return tuple(dict.fromkeys(named))
    problems.append(
        f"signals: found {names!r}, expected a list of fields, whose names have letters, digits, "
        "_, - and . (into objects: public_metrics.like_count)"
    )
    return ()


def _topic_problems(
    topics: Sequence[Topic], train: Sequence[Topic], content: Mapping[str, object], qrels: Qrels
) -> list[str]:
    """What is wrong between the files of topics, to search and to train on, and the judgments."""
    texts = {topic.query_id: topic.text for topic in topics}
    if different := [t for t in train if texts.get(t.query_id, t.text) != t.text]:
        first = different[0]
        return [
            f"train: {content['train']} has another text of topic {first.query_id} "
            f"({first.text!r}) than {content['topics']} ({texts[first.query_id]!r}), expected an "
            "id of its own for each topic, as both share the judgments"
        ]
    if train and qrels and not qrels.keys() & {topic.query_id for topic in train}:
        return [f"train: {content['qrels']} has judgments for no topic of {content['train']}"]
    if qrels and not qrels.keys() & {topic.query_id for topic in [*topics, *train]}:
        return [f"qrels: {content['qrels']} has judgments for no topic of {content['topics']}"]
    return []


def _language(code: object, problems: list[str]) -> str | None:
    """A language that has word frequencies or an analyzer, or None."""
    if code is None:
        return None
    # A third of a second, which collections without the key need not wait for.
    import wordfreq

    known = sorted({*wordfreq.available_languages(), *ANALYZERS, UNDETERMINED})
    if not isinstance(code, str) or code not in known:
        similar = did_you_mean(str(code), known)
        problems.append(f"language: found {code!r}, expected one of {', '.join(known)}{similar}")
        return None
    return code


def _read(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(
            f"{path}: found no TOML ({error}), expected lines such as "
            'posts = ["posts.jsonl"] and topics = "topics.tsv"'
        ) from None


def _files(
    folder: Path, content: Mapping[str, object], key: str, problems: list[str]
) -> list[Path]:
    """The files that a key names, by their names or by patterns of these."""
    names = content.get(key, [])
    names = [names] if isinstance(names, str) else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        problems.append(f"{key}: found {names!r}, expected the name of a file, or a list of names")
        return []
    files: list[Path] = []
    for name in names:
        root = Path(Path(name).anchor) if Path(name).is_absolute() else folder
        matching = [folder / name]
        if name and not matching[0].is_file():
            matching = sorted(root.glob(name.removeprefix(root.anchor)))
        found = [path for path in matching if path.is_file()]
        if not found:
            problems.append(f"{key}: found no file {name!r} in {folder.resolve()}")
        files += found
    return list(dict.fromkeys(files))


def missing_collection(name: str) -> str:
    """Advice for a name that ends like a file of a collection, but is no file."""
    folder = Path(name).parent
    others = listed(sorted(path.name for path in folder.glob(f"*{ENDING}")))
    return f"found no file {name}" + (f"; {folder.resolve()} has {others}" if others else "")
