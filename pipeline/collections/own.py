"""Collections of one's own: described by a file, a folder in BEIR's form or an index by Pyserini,
or made of values in memory. The keys of a file are in this package's README.

The topics of ``train`` need not be among ``topics``, which are searched; no other topic is trained
on. Click logs judge only posts that were shown. With ``judged_only``, measures leave out unjudged
posts (condensed lists, Sakai, *Alternatives to Bpref*, SIGIR 2007), and few of them train models.

Values in memory, and data sets of ir_datasets, become own collections below ``collections`` in the
home folder. The folder is named by the posts' content, so posts are written and indexed once,
whatever topics search them.
"""

import hashlib
import json
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from zlib import crc32

from tweetrerank.indexes.analysis import ANALYZERS, UNDETERMINED
from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress, index_name, query_file
from tweetrerank.indexes.files import atomic_file, sha256_of, write_bytes
from tweetrerank.indexes.posts import FIELDS, Post, as_post
from tweetrerank.indexes.records import id_under, is_doc_id, rows_of, short, well_formed
from tweetrerank.pipeline.collections.collection import (
    CORPUS,
    ENDING,
    OWN,
    Collection,
    IndexPlace,
    beir_file,
    home_directory,
)
from tweetrerank.pipeline.collections.sources import ForeignIndex, PostFiles
from tweetrerank.pipeline.collections.topics import Topic, as_topics, read_topics
from tweetrerank.pipeline.collections.trec import (
    NAMES,
    QRELS_COLUMNS,
    Qrels,
    grade_of,
    joined_qrels,
)
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import did_you_mean, say
from tweetrerank.pipeline.usage_error import UsageError


def _are_texts(value: Any, pattern: str = r"(?s:.*)") -> bool:
    return isinstance(value, list) and all(
        isinstance(one, str) and re.fullmatch(pattern, one) for one in value
    )


_ENGINE_FIELDS = ("text_field", "url_field", "time_field", "id_field")
_ENGINE = ("engine", "engine_index", "engine_auth", *_ENGINE_FIELDS, "query")
_FILES = ("posts", "topics", "qrels", "train", "train_qrels")
_FLAGS = ("judged_only", "skip_own_id")
_NEAR = (
    10  # Distance of languages, by Unicode's CLDR, of which one is taken for the other
)

KEYS: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        _FILES,
        (
            lambda v: isinstance(v, str) or _are_texts(v),
            "the name of a file, or a list of names",
        ),
    ),
    "name": (
        lambda v: isinstance(v, str) and is_doc_id(v) and "/" not in v,
        "one word without a slash",
    ),
    "columns": (
        lambda v: isinstance(v, dict) and not v.keys() - {*FIELDS},
        f"some of {', '.join(FIELDS)}, each with the name of its column",
    ),
    "signals": (
        lambda v: _are_texts(v, r"[A-Za-z0-9_.-]+"),
        "a list of fields in letters, digits, _, - and . (public_metrics.like_count)",
    ),
    "language": (lambda v: isinstance(v, str), "a code such as en"),
    **dict.fromkeys(_FLAGS, (lambda v: isinstance(v, bool), "true or false")),
    **dict.fromkeys(_ENGINE, (lambda v: isinstance(v, str), "a text")),
}
"""Key of a file -> a check of its value, and what is expected."""

JUDGED_MEASURES = ("AP(judged_only=True)", "P(judged_only=True)@30")
"""The usual measures over posts with a judgment, as if a ranking had no others."""


def read_collection(path: Path, known_names: Sequence[str] = ()) -> Collection:
    """The collection that a file describes, a folder in BEIR's form, or an index by Pyserini.

    DataError has all problems of the file and of its files, a name of ``known_names`` among them.
    """
    if (foreign := ForeignIndex(path)).files:
        whole, place = path.resolve(), IndexPlace(_group(path.resolve()))
        return Collection(
            whole.name, post_source=foreign, index=place, title=str(path), file=path
        )
    if path.is_dir():
        return _read_beir(path)
    problems: list[str] = []
    collection = _described(path, _content(path, problems), problems)
    if (name := collection.name) in known_names:
        problems.append(
            f"{name} is the name of another collection; give it another `name`"
        )
    if problems:
        raise DataError("\n".join(f"{path}: {problem}" for problem in problems))
    return collection


def _group(path: Path, *forms: object) -> str:
    """Name of a collection's index; files of one name in two folders have two indexes."""
    source = os.fsencode(path.resolve()) + b"".join(
        repr(each).encode() for each in forms if each
    )
    return f"{OWN}{path.stem}-{crc32(source):08x}"


def _read_beir(folder: Path) -> Collection:
    """The collection of a folder in BEIR's form. Topics are those of the test part, without one of
    the development part, and models are trained on the next part of training and development that
    is there."""
    queries, corpus = (beir_file(folder, name) for name in ("queries.jsonl", CORPUS))
    if queries is None or corpus is None:
        raise DataError(
            f"{folder}: found no queries.jsonl, expected one beside {CORPUS}"
        )
    test, dev, train = (
        beir_file(folder / "qrels", f"{p}.tsv") for p in ("test", "dev", "train")
    )
    searched = test or dev or train
    return Collection(
        name=folder.resolve().name,
        topic_files=[queries],
        qrels_files=[searched] if searched else [],
        post_source=PostFiles([corpus]),
        train_qrels=next(
            (path for path in (train, dev) if path not in (None, searched)), None
        ),
        index=IndexPlace(_group(folder.resolve())),
        title=str(folder),
        skips_own_id=True,
        file=folder,
    )


def _content(path: Path, problems: list[str]) -> dict[str, Any]:
    """The values of a file that have the right form; those of others are ``problems``."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise DataError(
            f"{path}: found no TOML ({error}), expected lines such as "
            'posts = ["posts.jsonl"] and topics = "topics.tsv"'
        ) from None
    if not content.keys() & {"posts", "text_field"}:
        problems.append("found no posts, expected files of them")
    if {"engine", "text_field", "posts"} <= content.keys():
        expected = "expected either: files to index, or an index as it is"
        problems.append(f"posts: found with text_field, {expected}")
    right = {}
    for key, value in {"name": path.stem, **content}.items():
        if key not in KEYS:
            similar = did_you_mean(key, [*KEYS])
            problems.append(
                f"found the key {key!r}, expected {', '.join(KEYS)}{similar}"
            )
        elif key in _ENGINE and "engine" not in content:
            problems.append(f"{key}: found without engine, expected its address, too")
        elif KEYS[key][0](value):
            right[key] = value
        else:
            problems.append(f"{key}: found {value!r}, expected {KEYS[key][1]}")
    return right


def _language(code: Any, problems: list[str]) -> str | None:
    """A known language: of a code, one with a region or a script, or a near one, as sh of hr."""
    if code is None:
        return None
    import langcodes  # A third of a second, which collections without the key need not wait for
    import wordfreq

    known = sorted({*wordfreq.available_languages(), *ANALYZERS, UNDETERMINED})
    found = code if code in known else None
    with suppress(langcodes.LanguageTagError, AttributeError, TypeError):
        own = langcodes.Language.get(code).language or ""
        found = found or langcodes.closest_supported_match(
            own, known, max_distance=_NEAR
        )
    if not found:
        expected = f"one of {', '.join(known)}{did_you_mean(code, known)}"
        problems.append(f"language: found {code!r}, expected {expected}")
    return found


def _described(
    path: Path, content: Mapping[str, Any], problems: list[str]
) -> Collection:
    """The collection of these values; of no use if there are ``problems``."""
    columns = {
        field: str(column) for field, column in content.get("columns", {}).items()
    }
    signals = tuple(dict.fromkeys(content.get("signals", ())))
    group = _group(path, columns, signals)
    content = {"engine_index": index_name(group), **content, "signals": signals}
    files = {
        key: _files(path.parent, key, content.get(key, []), problems) for key in _FILES
    }
    _check_topics(content, files, problems)
    judged_only, skips_own_id = (content.get(key, False) for key in _FLAGS)
    language = _language(content.get("language"), problems)
    return Collection(
        name=content.get("name", path.stem),
        topic_files=files["topics"],
        qrels_files=files["qrels"],
        post_source=PostFiles(files["posts"], columns, signals)
        if files["posts"]
        else None,
        train_topics=next(iter(files["train"]), None),
        train_qrels=next(iter(files["train_qrels"]), None),
        index=IndexPlace(group, engine=_engine(path.parent, content, problems)),
        title=str(path),
        measures=JUDGED_MEASURES if judged_only else DEFAULT_MEASURES,
        language=language,
        judged_only=judged_only,
        signals=signals,
        skips_own_id=skips_own_id,
        file=path,
    )


def _files(
    folder: Path, key: str, names: str | list[str], problems: list[str]
) -> list[Path]:
    """The files that a key names, by their names or by patterns of these."""
    files: dict[Path, None] = {}
    for name in [names] if isinstance(names, str) else names:
        root = Path(Path(name).anchor) if Path(name).is_absolute() else folder
        matching = [folder / name]
        if name and not matching[0].is_file():
            matching = sorted(root.glob(name.removeprefix(root.anchor)))
        if not (found := [path for path in matching if path.is_file()]):
            problems.append(f"{key}: found no file {name!r} in {folder.resolve()}")
        files |= dict.fromkeys(found)
    if key.startswith("train") and len(files) > 1:
        problems.append(f"{key}: found {len(files)} files, expected one")
    return [*files]


def _check_topics(
    content: Mapping[str, Any], files: Mapping[str, Sequence[Path]], problems: list[str]
) -> None:
    """Note what is wrong with topics, to search and to train on, and with their judgments."""

    def read(key: str, parse: Callable[..., Any], empty: Any) -> Any:
        try:
            return parse(*files[key]) if files[key] else empty
        except DataError as error:
            problems.append(f"{key}: {error}")
            return empty

    topics, train = (read(key, read_topics, []) for key in ("topics", "train"))
    ids = [topic.query_id for topic in (*topics, *train)]
    qrels, others = (
        read(key, lambda *of: joined_qrels(of, ids), {})
        for key in ("qrels", "train_qrels")
    )
    if others and not qrels:
        problems.append("train_qrels: found without qrels, whose topics are searched")
    if not topics:
        return
    texts, judged = {topic.query_id: topic.text for topic in topics}, qrels | others
    if other := [t for t in train if texts.get(t.query_id, t.text) != t.text]:
        query_id, text, *_ = other[0]
        problems.append(
            f"train: {content['train']} has another text of topic {query_id} ({text!r}) than "
            f"{content['topics']} ({texts[query_id]!r}), expected an id of its own for each "
            "topic, as both share the judgments"
        )
        return
    for where, key, of in (
        ("train", "train", train),
        ("qrels", "topics", [*topics, *train]),
    ):
        if of and judged and judged.keys().isdisjoint(topic.query_id for topic in of):
            judgments = content.get("qrels") or content["train_qrels"]
            problems.append(
                f"{where}: {judgments} has judgments for no topic of {content[key]}"
            )
            return


def _engine(
    folder: Path, content: Mapping[str, Any], problems: list[str]
) -> EngineAddress | None:
    """The index in a search engine, None without one."""
    if "engine" not in content:
        return None
    query, auth = content.get("query"), content.get("engine_auth")
    try:
        return EngineAddress(
            content["engine"],
            content["engine_index"],
            folder / auth if auth else None,
            **{key: content[key] for key in _ENGINE_FIELDS if key in content},
            query=query and query_file(query, folder),
            signals=content["signals"],
        )
    except (DataError, ValueError) as error:
        problems.append(f"engine: {error}")
        return None


# Values in memory


def collection_of(
    posts: Any, topics: Any, qrels: Any, name: str = "", signals: Sequence[str] = ()
) -> Collection:
    """The collection of posts, topics and judgments, under a name or one of these posts. They have
    the forms of :func:`tweetrerank.indexes.posts.post_of`, :func:`.topics.as_topics` and :func:`qrels_of`.
    DataError names a row of another form."""
    found = [
        as_post(row, where, signals) for where, row in rows_of(posts, "posts", Post)
    ]
    digest = hashlib.sha256("".join(map(_line, found)).encode()).hexdigest()
    content = {"name": name or None, "signals": [*signals]}
    return _stored(f"posts-{digest[:12]}", found, topics, qrels, content, digest)


def topics_file(topics: Any, folder: Path | None = None) -> Path:
    """A file of topics, in a folder or in the home folder."""
    return _written(folder, "topics", ".jsonl", "".join(map(_line, as_topics(topics))))


def qrels_file(qrels: Any, folder: Path | None = None) -> Path:
    """A file of judgments as :func:`qrels_of` reads them, in a folder or in the home folder."""
    found = qrels_of(qrels).items()
    lines = [
        f"{q} 0 {doc_id} {grade}\n"
        for q, grades in found
        for doc_id, grade in grades.items()
    ]
    return _written(folder, "qrels", ".txt", "".join(lines))


def qrels_of(qrels: Any) -> Qrels:
    """Judgments: query_id -> doc_id -> grade, rows with :data:`.trec.NAMES`, a file or several."""
    files = [qrels] if isinstance(qrels, str | Path) else qrels
    if isinstance(files, list | tuple) and all(
        isinstance(one, str | Path) for one in files
    ):
        return joined_qrels([Path(one) for one in files])
    if isinstance(qrels, Mapping):
        if wrong := [
            q for q, grades in qrels.items() if not isinstance(grades, Mapping)
        ]:
            raise DataError(
                f"qrels: found topic {wrong[0]} without doc_id -> grade, expected it"
            )
        rows = [
            (q, d, grade) for q, grades in qrels.items() for d, grade in grades.items()
        ]
        qrels = [
            {"query_id": q, "doc_id": d, "relevance": grade} for q, d, grade in rows
        ]
    found: Qrels = {}
    for where, row in rows_of(qrels, "qrels", Post):
        query_id, doc_id = (id_under(names, row, where) for names in NAMES[:2])
        grade = next(
            (row[name] for name in NAMES[2] if row.get(name) is not None), None
        )
        found.setdefault(query_id, {})[doc_id] = grade_of(grade, where)
    if not found:
        raise DataError(f"qrels: found no judgment, expected rows of {QRELS_COLUMNS}")
    return found


def collection_of_ir_dataset(dataset: Any) -> Collection:
    """The collection of a data set of ir_datasets, by its id or as an object. Its documents are
    read once, and data sets that share them share the index."""
    try:
        import ir_datasets
    except ImportError:
        raise DataError(
            "found no ir_datasets; install it by\n  pip install 'tweetrerank[ir-datasets]'"
        ) from None
    if isinstance(name := dataset, str):
        try:
            dataset = ir_datasets.load(name)
        except KeyError:
            similar = did_you_mean(name, list(ir_datasets.registry))
            raise UsageError(
                f"found no data set {name!r} in ir_datasets{similar}"
            ) from None
    if not dataset.has_docs():
        raise DataError(f"{dataset}: found no documents, expected a data set with them")
    topics, qrels = None, None
    try:
        if dataset.has_queries():
            topics = [
                Topic(q.query_id, q.default_text()) for q in dataset.queries_iter()
            ]
        if dataset.has_qrels():
            qrels = list(dataset.qrels_iter())
        posts = (
            Post(
                doc.doc_id,
                well_formed(doc.default_text()),
                getattr(doc, "url", None) or "",
            )
            for doc in dataset.docs_iter()
        )
        if not hasattr(dataset, "dataset_id"):
            return collection_of(posts, topics, qrels)
        name = ir_datasets.docs_parent_id(dataset.dataset_id()) or dataset.dataset_id()
        content = {"skip_own_id": name.startswith("beir/")}
        return _stored(name.replace("/", "-"), posts, topics, qrels, content)
    except (OSError, RuntimeError) as error:
        raise DataError(
            f"{dataset}: ir_datasets cannot read or download it ({short(str(error))}); try again "
            "where its source can be reached, or put its files where ir_datasets looks for them"
        ) from error


def _stored(
    folder_name: str,
    posts: Iterable[Post],
    topics: Any,
    qrels: Any,
    content: dict[str, Any],
    digest: str = "",
) -> Collection:
    """The own collection of this folder in the home folder, whose posts are written once."""
    folder = home_directory() / "collections" / folder_name
    file, path = folder / f"{folder_name}{ENDING}", folder / "posts.jsonl"
    if is_changed := digest and path.is_file() and sha256_of(path) != digest:
        say(f"note: {path} was changed; it is written anew")
    if is_changed or not path.is_file():
        with atomic_file(path) as stream:
            stream.writelines(map(_line, posts))
    content["posts"] = path.name
    if topics is not None:
        content["topics"] = topics_file(topics, folder).name
    if qrels is not None:
        content["qrels"] = qrels_file(qrels, folder).name
    with atomic_file(file) as stream:  # The latest topics are those that a command sees
        lines = (
            f"{key} = {json.dumps(value)}\n" for key, value in content.items() if value
        )
        stream.writelines(lines)
    return read_collection(file)


def _written(folder: Path | None, stem: str, ending: str, text: str) -> Path:
    """The file with this text, named by it; what is there already is kept."""
    digest = hashlib.sha256(text.encode()).hexdigest()
    path = (
        folder or home_directory() / "collections"
    ) / f"{stem}-{digest[:12]}{ending}"
    if not path.is_file() or path.read_bytes() != text.encode():
        write_bytes(path, text.encode())
    return path


def _line(record: Post | Topic) -> str:
    fields = record._asdict()
    fields |= fields.pop("signals", {})
    return json.dumps(fields, ensure_ascii=False, default=str) + "\n"
