"""Read users' collections: a TOML file, a folder in BEIR's form, or Pyserini's index.

The README of ``pipeline`` lists the keys of a file. The topics of ``topics`` are
searched. If there is a key ``train``, models are trained on its topics only, which need
not be among ``topics``.

Click logs judge only the posts on their pages. With ``judged_only``, measures leave out
unjudged posts, and training uses few of them. See Sakai, *Alternatives to Bpref* (SIGIR
2007), on such condensed lists.
"""

import os
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

from tweetrerank.indexes.analysis import ANALYZERS, UNDETERMINED
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress, index_name, query_file
from tweetrerank.indexes.posts import FIELDS
from tweetrerank.indexes.records import is_doc_id
from tweetrerank.pipeline.collections.collection import OWN, Collection
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.sources import ForeignIndex, PostFiles
from tweetrerank.pipeline.collections.topics import Topic, read_topics
from tweetrerank.pipeline.collections.trec import joined_qrels
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import did_you_mean

Value = TypeVar("Value")

ENDING = ".toml"
"""Ending of the file of a user's collection."""

CORPUS = "corpus.jsonl"
"""File of posts in a folder in BEIR's form."""

JUDGED_MEASURES = ("AP(judged_only=True)", "P(judged_only=True)@30")
"""The usual measures, computed as if a ranking had only the judged posts."""

_ENGINE_FIELDS = ("text_field", "url_field", "time_field", "id_field")
_ENGINE_KEYS = ("engine", "engine_index", "engine_auth", *_ENGINE_FIELDS, "query")
_FILE_KEYS = ("posts", "topics", "qrels", "train", "train_qrels")
_FLAGS = ("judged_only", "skip_own_id")

# Largest distance, by Unicode's CLDR, at which one language stands in for another
_NEAR = 10


def is_own(name: str | Path) -> bool:
    """Return whether a name is that of a user's collection.

    It is the name of a TOML file, of a folder in BEIR's form, or of an index by
    Pyserini. A TOML file need not exist.
    """
    if str(name).endswith(ENDING):
        return True
    path = Path(name)
    return bool(beir_file(path, CORPUS) or ForeignIndex(path).files)


def beir_file(folder: Path, name: str) -> Path | None:
    """Return the file of this name or its compressed form, None without either."""
    for ending in ("", ".gz"):
        path = folder / f"{name}{ending}"
        if path.is_file():
            return path
    return None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_flag(value: Any) -> bool:
    return isinstance(value, bool)


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and is_doc_id(value) and "/" not in value


def _are_columns(value: Any) -> bool:
    return isinstance(value, dict) and value.keys() <= set(FIELDS)


def _are_signals(value: Any) -> bool:
    return _are_texts(value) and all(
        re.fullmatch(r"[A-Za-z0-9_.-]+", name) for name in value
    )


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(text, str) for text in value)


def _are_file_names(value: Any) -> bool:
    return isinstance(value, str) or _are_texts(value)


_FILE_VALUE = (_are_file_names, "the name of a file, or a list of names")
_ENGINE_VALUE = (_is_text, "a text")
_FLAG_VALUE = (_is_flag, "true or false")

KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_FILE_KEYS, _FILE_VALUE),
    "name": (_is_name, "one word without a slash"),
    "columns": (
        _are_columns,
        f"some of {', '.join(FIELDS)}, each with the name of its column",
    ),
    "signals": (
        _are_signals,
        "a list of fields in letters, digits, _, - and . (public_metrics.like_count)",
    ),
    "language": (_is_text, "a code such as en"),
    **dict.fromkeys(_FLAGS, _FLAG_VALUE),
    **dict.fromkeys(_ENGINE_KEYS, _ENGINE_VALUE),
}
"""Key of a file -> function that checks its value, and expected form for messages."""


def read_collection(path: Path, known_names: Sequence[str] = ()) -> Collection:
    """Return a user's collection.

    ``path`` is a TOML file, a folder in BEIR's form, or an index by Pyserini. Raises
    DataError listing every problem found in the file and in the files that it names. It
    is also a problem if the name is one of ``known_names``.
    """
    foreign = ForeignIndex(path)
    if foreign.files:
        return _foreign_collection(foreign)
    if path.is_dir():
        return _beir_collection(path)
    problems: list[str] = []
    content = _read_content(path, problems)
    collection = _described(path, content, problems)
    if collection.name in known_names:
        problems.append(
            f"{collection.name} is the name of another collection; give it another "
            "`name`"
        )
    if problems:
        raise DataError("\n".join(f"{path}: {problem}" for problem in problems))
    return collection


def _group(path: Path, *forms: object) -> str:
    """Return the name of a collection's index in the home folder.

    It depends on the whole path, so that files of the same name in two folders have
    different indexes. It also depends on ``forms``, the settings that change the posts.
    """
    source = os.fsencode(path.resolve())
    for form in forms:
        if form:
            source += repr(form).encode()
    return f"{OWN}{path.stem}-{crc32(source):08x}"


def _foreign_collection(index: ForeignIndex) -> Collection:
    path = index.folder.resolve()
    return Collection(
        name=path.name,
        post_source=index,
        index=IndexPlace(_group(path)),
        title=str(index.folder),
        file=index.folder,
    )


def _beir_collection(folder: Path) -> Collection:
    """Return the collection of a folder in BEIR's form.

    The topics of the test part are searched, or those of the development part if there
    is no test part. Models are trained on another part: on the training part, or on the
    development part if there is no training part. Raises DataError if there are no
    queries.
    """
    queries = beir_file(folder, "queries.jsonl")
    corpus = beir_file(folder, CORPUS)
    if queries is None or corpus is None:
        raise DataError(
            f"{folder}: found no queries.jsonl, expected one beside {CORPUS}"
        )
    test, dev, train = (
        beir_file(folder / "qrels", f"{part}.tsv") for part in ("test", "dev", "train")
    )
    searched = test or dev or train
    unsearched = [part for part in (train, dev) if part and part != searched]
    path = folder.resolve()
    return Collection(
        name=path.name,
        topic_files=[queries],
        qrels_files=[searched] if searched else [],
        post_source=PostFiles([corpus]),
        train_qrels=next(iter(unsearched), None),
        index=IndexPlace(_group(path)),
        title=str(folder),
        skips_own_id=True,
        file=folder,
    )


def _read_content(path: Path, problems: list[str]) -> dict[str, Any]:
    """Return the well-formed values of a file by key.

    A message about each other value is added to ``problems``. Raises DataError if the
    file cannot be read or is not TOML.
    """
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(
            f"{path}: found no TOML ({error}), expected lines such as "
            'posts = ["posts.jsonl"] and topics = "topics.tsv"'
        ) from None
    if "posts" not in content and "text_field" not in content:
        problems.append("found no posts, expected files of them")
    if content.keys() >= {"engine", "text_field", "posts"}:
        problems.append(
            "posts: found with text_field, which is for an existing index; remove one "
            "of them"
        )
    values = {}
    for key, value in {"name": path.stem, **content}.items():
        problem = _problem_of(key, value, content)
        if problem:
            problems.append(problem)
        else:
            values[key] = value
    return values


def _problem_of(key: str, value: Any, content: Mapping[str, Any]) -> str:
    """Return the problem of a key or its value, or "" if there is none."""
    if key not in KEYS:
        similar = did_you_mean(key, list(KEYS))
        return f"found the key {key!r}, expected {', '.join(KEYS)}{similar}"
    if key in _ENGINE_KEYS and "engine" not in content:
        return f'{key} needs engine = "URL"'
    is_valid, expected = KEYS[key]
    if not is_valid(value):
        return f"{key}: found {value!r}, expected {expected}"
    return ""


def _language(code: str | None, problems: list[str]) -> str | None:
    """Return the known language of a code.

    The code may also name a region, a script, or a language that is close to a known
    one. If no known language is close, the result is None and a message is added to
    ``problems``.
    """
    if code is None:
        return None
    # These imports take a third of a second.
    import langcodes
    import wordfreq

    languages = sorted(
        set(wordfreq.available_languages()).union(ANALYZERS, [UNDETERMINED])
    )
    if code in languages:
        return code
    closest = None
    with suppress(langcodes.LanguageTagError, AttributeError, TypeError):
        language = langcodes.Language.get(code).language or ""
        closest = langcodes.closest_supported_match(
            language, languages, max_distance=_NEAR
        )
    if not closest:
        similar = did_you_mean(code, languages)
        problems.append(
            f"language: found {code!r}, expected one of {', '.join(languages)}{similar}"
        )
    return closest


def _described(
    path: Path, content: Mapping[str, Any], problems: list[str]
) -> Collection:
    """Return the collection that the values of a file describe.

    Messages are added to ``problems``. The collection is usable only if there are none.
    """
    columns = {
        field: str(column) for field, column in content.get("columns", {}).items()
    }
    signals = tuple(dict.fromkeys(content.get("signals", ())))
    group = _group(path, columns, signals)
    files = {
        key: _files(path.parent, key, content.get(key, []), problems)
        for key in _FILE_KEYS
    }
    _check_topics(content, files, problems)
    judged_only = content.get("judged_only", False)
    language = _language(content.get("language"), problems)
    post_source = None
    if files["posts"]:
        post_source = PostFiles(files["posts"], columns, signals)
    engine = None
    if "engine" in content:
        engine = _engine(path.parent, content, group, signals, problems)
    return Collection(
        name=content.get("name", path.stem),
        topic_files=files["topics"],
        qrels_files=files["qrels"],
        post_source=post_source,
        train_topics=next(iter(files["train"]), None),
        train_qrels=next(iter(files["train_qrels"]), None),
        index=IndexPlace(group, engine=engine),
        title=str(path),
        measures=JUDGED_MEASURES if judged_only else DEFAULT_MEASURES,
        language=language,
        judged_only=judged_only,
        signals=signals,
        skips_own_id=content.get("skip_own_id", False),
        file=path,
    )


def _files(
    folder: Path, key: str, names: str | list[str], problems: list[str]
) -> list[Path]:
    """Return the files that a key names by their names or by patterns of names."""
    files: dict[Path, None] = {}
    if isinstance(names, str):
        names = [names]
    for name in names:
        matching = _matching_files(folder, name)
        if not matching:
            problems.append(f"{key}: found no file {name!r} in {folder.resolve()}")
        files.update(dict.fromkeys(matching))
    if key.startswith("train") and len(files) > 1:
        problems.append(f"{key}: found {len(files)} files, expected one")
    return list(files)


def _matching_files(folder: Path, name: str) -> list[Path]:
    """Return the files that match a name or a pattern, which may be none."""
    path = folder / name
    if path.is_file():
        return [path]
    if not name:
        return []
    root = folder
    if Path(name).is_absolute():
        root = Path(Path(name).anchor)
        name = name.removeprefix(root.anchor)
    return [match for match in sorted(root.glob(name)) if match.is_file()]


def _check_topics(
    content: Mapping[str, Any], files: Mapping[str, Sequence[Path]], problems: list[str]
) -> None:
    """Add the problems of topics and judgments to ``problems``."""
    topics = _parsed("topics", files, read_topics, problems) or []
    train = _parsed("train", files, read_topics, problems) or []
    query_ids = [topic.query_id for topic in topics + train]

    def read_grades(*paths: Path) -> dict[str, dict[str, int]]:
        return joined_qrels(paths, query_ids)

    qrels = _parsed("qrels", files, read_grades, problems) or {}
    train_qrels = _parsed("train_qrels", files, read_grades, problems) or {}
    if train_qrels and not qrels:
        problems.append("train_qrels: found without qrels, whose topics are searched")
    judged = set(qrels).union(train_qrels)
    problem = _other_text(content, topics, train)
    problem = problem or _no_judged_topic(content, topics, train, judged)
    if problem:
        problems.append(problem)


def _parsed(
    key: str,
    files: Mapping[str, Sequence[Path]],
    parse: Callable[..., Value],
    problems: list[str],
) -> Value | None:
    """Return the content of a key's files, None without files.

    If a file is malformed, the result is None and a message is added to ``problems``.
    """
    if not files[key]:
        return None
    try:
        return parse(*files[key])
    except DataError as error:
        problems.append(f"{key}: {error}")
        return None


def _other_text(
    content: Mapping[str, Any], topics: Sequence[Topic], train: Sequence[Topic]
) -> str:
    """Return the problem of a topic that has two texts, or "" if there is none."""
    texts = {topic.query_id: topic.text for topic in topics}
    for topic in train:
        text = texts.get(topic.query_id, topic.text)
        if text != topic.text:
            return (
                f"train: {content['train']} has another text of topic {topic.query_id} "
                f"({topic.text!r}) than {content['topics']} ({text!r}), expected an id "
                "of its own for each topic, as both share the judgments"
            )
    return ""


def _no_judged_topic(
    content: Mapping[str, Any],
    topics: Sequence[Topic],
    train: Sequence[Topic],
    judged: set[str],
) -> str:
    """Return the problem that no topic is judged, or "" if some topic is."""
    if not topics or not judged:
        return ""
    judgments = content.get("qrels") or content["train_qrels"]
    train_ids = {topic.query_id for topic in train}
    if train_ids and judged.isdisjoint(train_ids):
        return f"train: {judgments} has judgments for no topic of {content['train']}"
    query_ids = train_ids.union(topic.query_id for topic in topics)
    if judged.isdisjoint(query_ids):
        return f"qrels: {judgments} has judgments for no topic of {content['topics']}"
    return ""


def _engine(
    folder: Path,
    content: Mapping[str, Any],
    group: str,
    signals: tuple[str, ...],
    problems: list[str],
) -> EngineAddress | None:
    """Return the address of an index in a search engine.

    If it is malformed, the result is None and a message is added to ``problems``.
    """
    query = content.get("query")
    auth = content.get("engine_auth")
    fields = {key: content[key] for key in _ENGINE_FIELDS if key in content}
    try:
        return EngineAddress(
            content["engine"],
            content.get("engine_index", index_name(group)),
            folder / auth if auth else None,
            **fields,
            query=query and query_file(query, folder),
            signals=signals,
        )
    except (DataError, ValueError) as error:
        problems.append(f"engine: {error}")
        return None
