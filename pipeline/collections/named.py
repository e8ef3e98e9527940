"""Open a collection by name or from any other source.

The named collections are listed in ``catalogue.json``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress, index_name
from tweetrerank.pipeline.collections.catalogue import catalogue
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.collections.folders import data_directory
from tweetrerank.pipeline.collections.in_memory import (
    IrDataset,
    JudgmentsLike,
    collection_of,
    collection_of_ir_dataset,
    qrels_file,
    topics_file,
)
from tweetrerank.pipeline.collections.index_place import IndexPlace
from tweetrerank.pipeline.collections.own import ENDING, is_own, read_collection
from tweetrerank.pipeline.collections.sources import (
    Answers,
    ForeignIndex,
    PairFolders,
    PostFiles,
)
from tweetrerank.pipeline.collections.topics import Rows, TopicsLike
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import did_you_mean, listed
from tweetrerank.pipeline.usage_error import UsageError

SAMPLE = Path(__file__).parent.parent / "sample"

# Name -> first of the two years of the TREC Microblog track that share their tweets
_MICROBLOG = {"mb2011": 2011, "mb2012": 2011, "mb2013": 2013, "mb2014": 2013}
_ALIASES = {name.replace("20", "", 1): name for name in _MICROBLOG}

PARTS = ("train", "dev", "test")
QUESTIONS = ("wikiqa", "trecqa-raw")
"""Collections with given answers that models which read lists are also trained on."""


def answers() -> dict[str, list[str]]:
    """Return the collections for answer selection by name.

    Each value has the title and then the folders of :data:`PARTS`. TrecQA's clean parts
    are the raw parts without some questions: those that have no relevant answer, and
    those that have only relevant ones. Its part TRAIN-ALL was judged automatically, by
    patterns of answers.
    """
    return dict(catalogue()["answers"])


def general() -> dict[str, list[str]]:
    """Return the training parts outside TREC Microblog by name.

    Each value has the title and the language.
    """
    return dict(catalogue()["general"])


def names() -> list[str]:
    """Return the names of all named collections."""
    return [*_MICROBLOG, "sample", *answers(), *general()]


def _names_and_aliases() -> list[str]:
    return names() + list(_ALIASES)


def find(name: str, data: Path | None = None) -> Collection:
    """Return a collection by its name, its alias (``mb12``) or its file.

    The name may also be a folder in BEIR's form or an index by Pyserini. Raises
    UsageError if there is no such collection. Raises DataError if its file is
    malformed.
    """
    if is_own(name):
        return _find_own(name)
    name = _ALIASES.get(name, name)
    if name in _MICROBLOG:
        return _microblog(name, data)
    if name in answers():
        return find_answers(name, data)
    if name == "sample":
        return _sample(data)
    if name in general():
        return _general(name, data)
    raise UsageError(_no_such_collection(name))


def _find_own(name: str) -> Collection:
    path = Path(name)
    if not path.exists():
        folder = path.parent
        files = listed(sorted(file.name for file in folder.glob(f"*{ENDING}")))
        if files:
            raise UsageError(f"found no file {name}; {folder.resolve()} has {files}")
        raise UsageError(f"found no file {name}")
    return read_collection(path, _names_and_aliases())


def _no_such_collection(name: str) -> str:
    """Return the message for an unknown name."""
    files = [str(path) for path in Path(name).parent.glob(f"*{ENDING}")]
    if name + ENDING in files:
        hint = f"; did you mean {name + ENDING!r}?"
    else:
        hint = did_you_mean(name, _names_and_aliases() + files)
    return (
        f"found neither a file nor a collection {name!r}, expected one of "
        f"{', '.join(names())}, the file of an own one (my-posts.toml), or a folder in "
        f"BEIR's form (corpus.jsonl, queries.jsonl){hint}"
    )


def _microblog(name: str, data: Path | None) -> Collection:
    """Return the collection of one year of TREC Microblog."""
    folder = data_directory(data) / "microblog"
    year = name.removeprefix("mb")
    first = _MICROBLOG[name]
    return Collection(
        name,
        topic_files=[folder / f"topics.microblog{year}.txt"],
        qrels_files=[folder / f"qrels.microblog{year}.txt"],
        post_source=PairFolders(
            [folder / f"trec-{first}", folder / f"trec-{first + 1}"]
        ),
        index=IndexPlace(f"tweets{first}"),
        title=f"TREC Microblog {year}",
        runs={
            "ql": folder / f"trec-{year}/id.txt",
            "rm3": folder / f"runs/run.microblog{year}.RM3.txt",
        },
        data=data,
    )


def _sample(data: Path | None) -> Collection:
    return Collection(
        "sample",
        topic_files=[SAMPLE / "topics.txt"],
        qrels_files=[SAMPLE / "qrels.txt"],
        post_source=PostFiles([SAMPLE / "posts.jsonl"]),
        index=IndexPlace("sample"),
        title="sample collection written for this project",
        data=data,
    )


def _general(name: str, data: Path | None) -> Collection:
    """Return the collection of a training part outside TREC Microblog."""
    folder = data_directory(data) / "general" / name.removesuffix("-train")
    title, language = general()[name]
    return Collection(
        name,
        topic_files=[folder / "topics.train.tsv"],
        qrels_files=[folder / "qrels.train.txt"],
        post_source=PostFiles([folder / "posts.jsonl"]),
        index=IndexPlace(name),
        title=f"{title}, training part",
        language=language,
        data=data,
    )


def find_answers(name: str, data: Path | None = None) -> Collection:
    """Return the test part of a collection for answer selection.

    Raises UsageError if there is no such collection.
    """
    if name not in answers():
        similar = did_you_mean(name, list(answers()))
        raise UsageError(
            f"found {name!r}, expected a collection of questions with given answers, "
            f"one of {', '.join(answers())}{similar}"
        )
    title, *folders = answers()[name]
    paths = [data_directory(data) / folder for folder in folders]
    source = Answers(dict(zip(PARTS, paths, strict=True)))
    return Collection(name, answers=source, title=title, measures=("AP", "RR"))


def to_train_on(name: str, data: Path | None = None) -> Collection:
    """Return a named collection, or its training part if it has given answers."""
    collection = find(name, data)
    return collection.part("train") if collection.answers else collection


def open_collection(
    name: str | Path | None = None,
    index: Path | str | None = None,
    qrels: JudgmentsLike | None = None,
    data: Path | None = None,
    engine: Mapping[str, object] | None = None,
    *,
    posts: Rows | None = None,
    topics: TopicsLike | None = None,
    beir: Path | str | None = None,
    ir_dataset: str | IrDataset | None = None,
    signals: Sequence[str] = (),
) -> Collection:
    """Open a collection by its name, its file, or another source.

    * ``name`` is a name (``mb2012``), the file of a user's collection
      (``my-posts.toml``), or a file of topics.
    * ``beir`` is a folder in BEIR's form. ``name`` also accepts one.
    * ``ir_dataset`` is a data set of ir_datasets or its id. It is written into the home
      folder once.
    * ``posts`` are dictionaries with ``id``, ``text`` and optionally ``title`` and
      ``url``, or a data frame with these columns. ``topics`` and ``qrels`` may come
      with them. Topics map query_id to text, or are rows. Models are found by the
      collection's ``name``, even after the posts have changed. ``signals`` names
      further numeric fields of the posts.
    * ``index`` is the folder of an index by
      :func:`tweetrerank.indexes.lucene_index.build`. It is searched for ``topics`` or
      for a file of topics, or takes the place of a named collection's index.

    ``engine`` has fields of the address of a search engine. ``qrels`` replaces the
    collection's judgments. It is a file, several files, rows, or a mapping
    query_id -> doc_id -> grade. ``data`` is the data folder.

    Raises UsageError if the arguments contradict one another, or if there is no such
    collection. Raises DataError if a file or a row is malformed.
    """
    sources: list[object] = [posts, ir_dataset, beir]
    if posts is None:  # With posts, name and topics belong to the posts.
        sources += [name, topics]
    _check_sources(sources, index, engine)
    if posts is not None:
        return _of_posts(name, posts, topics, qrels, signals)
    folder = Path(index) if index else None
    judgments = _judgment_files(qrels)
    if ir_dataset is not None:
        collection = collection_of_ir_dataset(ir_dataset)
    else:
        path = beir if name is None else name
        if topics is not None:
            path = topics_file(topics)
        if path is None:
            return _of_index([], folder, judgments, engine)
        if _is_file_of_topics(path):
            return _of_index([Path(path)], folder, judgments, engine)
        collection = find(str(path), data)
    collection = _with_judgments(collection, judgments)
    collection = _in_folder(collection, folder)
    return on_engine(collection, engine)


def _check_sources(
    sources: Sequence[object],
    index: Path | str | None,
    engine: Mapping[str, object] | None,
) -> None:
    """Raise UsageError unless there is one source, and at most one index."""
    if engine and index:
        raise UsageError("`index` and `engine`: found both, expected one of them")
    count = sum(source is not None for source in sources)
    if count > 1 or (count == 0 and not index):
        raise UsageError(
            "expected one of name, posts, topics, beir and ir_dataset, or an index"
        )


def _of_posts(
    name: str | Path | None,
    posts: Rows,
    topics: TopicsLike | None,
    qrels: JudgmentsLike | None,
    signals: Sequence[str],
) -> Collection:
    """Return the collection of posts in memory.

    Raises UsageError if the name is that of a named collection.
    """
    if name in _names_and_aliases():
        raise UsageError(f"`name`: {name} is the name of another collection")
    return collection_of(posts, topics, qrels, str(name or ""), signals)


def _judgment_files(qrels: JudgmentsLike | None) -> list[Path]:
    """Return a list of the file of judgments, which is empty without judgments.

    Judgments in memory are written to a file first.
    """
    if qrels is None:
        return []
    if isinstance(qrels, str | Path):
        return [Path(qrels)]
    return [qrels_file(qrels)]


def _is_file_of_topics(path: str | Path) -> bool:
    return Path(path).is_file() and not is_own(path)


def _with_judgments(collection: Collection, files: list[Path]) -> Collection:
    """Return the collection with other judgments to evaluate by.

    The judgments for training stay. Without files nothing is changed.
    """
    if not files:
        return collection
    measures = DEFAULT_MEASURES if collection.judged_only else collection.measures
    return replace(collection, qrels_files=files, measures=measures)


def _in_folder(collection: Collection, folder: Path | None) -> Collection:
    """Return the collection with its index in this folder, if a folder is given."""
    if folder is None or collection.index is None:
        return collection
    if ForeignIndex(folder).files:
        foreign = read_collection(folder)
        return replace(collection, post_source=foreign.post_source, index=foreign.index)
    place = collection.index._replace(folder=folder, engine=None)
    return replace(collection, index=place)


def _of_index(
    topic_files: list[Path],
    folder: Path | None,
    judgments: list[Path],
    engine: Mapping[str, object] | None,
) -> Collection:
    """Return the collection of an existing index, with the topics of files, if any.

    Raises UsageError if neither a folder nor an engine is given.
    """
    if folder and ForeignIndex(folder).files:
        collection = read_collection(folder)
        return replace(collection, topic_files=topic_files, qrels_files=judgments)
    if not (engine or folder):
        raise UsageError(
            f"{topic_files[0]}: a file of topics needs the posts to search: name their "
            "`index` (python -m pipeline.index --posts FILE --index DIR makes one)"
        )
    place = IndexPlace("", folder)
    if engine:
        place = IndexPlace(engine=engine_address(engine, None, None))
    path = next(iter(topic_files), place.directory)
    return Collection(
        path.name.split(".")[0],
        topic_files,
        judgments,
        index=place,
        title=str(path),
    )


def on_engine(
    collection: Collection, options: Mapping[str, object] | None
) -> Collection:
    """Return the collection with its index in a search engine.

    It is unchanged if ``options`` names no engine, or if the collection has no index.
    """
    if not options or collection.index is None:
        return collection
    group = collection.index.group
    address = engine_address(options, collection.engine, index_name(group))
    return replace(collection, index=collection.index._replace(engine=address))


def engine_address(
    options: Mapping[str, object], known: EngineAddress | None, index: str | None
) -> EngineAddress:
    """Return the address of an index in a search engine.

    ``options`` has fields of the address, as a command's options give them. The other
    fields are taken from ``known``. Without ``known``, ``index`` is the default name of
    the index. If it is None, the options must name the index. Raises UsageError if the
    address or the name of the index is missing.
    """
    fields: dict[str, Any] = dict(options)
    if known:
        return replace(known, **fields)
    problems = []
    if "url" not in fields:
        problems.append("--engine URL is missing: the address of the search engine")
    if "index" not in fields and not index:
        problems.append(
            "--engine-index NAME is missing: the index in the search engine"
        )
    if problems:
        raise UsageError(problems)
    return EngineAddress(**{"index": index, **fields})


def training_collections(
    test: str | None = None, data: Path | None = None, of_any_kind: bool = False
) -> list[str]:
    """Return the names of the judged microblog collections except ``test``.

    With ``of_any_kind``, the judged collections of other kinds follow. Raises
    UsageError if ``test`` has a separate training part. Raises DataError if no
    collection has judgments in the data folder.
    """
    left_out = find(test, data).name if test else None
    if left_out in answers():
        raise UsageError(
            f"found {left_out}, expected a microblog collection: {left_out} has a "
            "training part of its own; use `python -m pipeline.train MODEL "
            f"--collection {left_out}`"
        )
    candidates = list(_MICROBLOG)
    if of_any_kind:
        candidates += list(general())
        candidates += QUESTIONS
    judged = []
    for name in candidates:
        path = to_train_on(name, data).qrels_path
        if path and path.exists():
            judged.append(name)
    if not judged:
        raise DataError(
            f"found no judgments of {', '.join(_MICROBLOG)} in {data_directory(data)}; "
            "fetch them with\n  tweetrerank fetch\nor name a folder that has them by "
            "--data or TWEETRERANK_DATA"
        )
    return [name for name in judged if name != left_out]
