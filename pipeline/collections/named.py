"""Named collections, rows of ``catalogue.json``, and the collection that options name."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress, index_name
from tweetrerank.pipeline.collections.collection import (
    ENDING,
    Collection,
    IndexPlace,
    catalogue,
    data_directory,
    is_own,
)
from tweetrerank.pipeline.collections.own import (
    collection_of,
    collection_of_ir_dataset,
    qrels_file,
    read_collection,
    topics_file,
)
from tweetrerank.pipeline.collections.sources import (
    Answers,
    ForeignIndex,
    PairFolders,
    PostFiles,
)
from tweetrerank.pipeline.defaults import DEFAULT_MEASURES
from tweetrerank.pipeline.text import did_you_mean, listed
from tweetrerank.pipeline.usage_error import UsageError

SAMPLE = Path(__file__).parent.parent / "sample"

# name -> the first of the two years of the TREC Microblog track that searched the same tweets.
_MICROBLOG = {"mb2011": 2011, "mb2012": 2011, "mb2013": 2013, "mb2014": 2013}
_ALIASES = {name.replace("20", "", 1): name for name in _MICROBLOG}

PARTS = ("train", "dev", "test")
QUESTIONS = (
    "wikiqa",
    "trecqa-raw",
)  # Whose given answers models of lists are trained on, too


def answers() -> dict[str, list[str]]:
    """Name of each answer-selection collection -> its title and the folders of its :data:`PARTS`.
    TrecQA's clean parts are the raw ones without the questions that have no relevant answer or
    nothing but relevant ones; TRAIN-ALL was judged automatically, by patterns of answers."""
    return dict(catalogue()["answers"])


def general() -> dict[str, list[str]]:
    """Name of each training part of another kind than TREC Microblog -> title and language."""
    return dict(catalogue()["general"])


def names() -> list[str]:
    """The names of all collections."""
    return [*_MICROBLOG, "sample", *answers(), *general()]


def find(name: str, data: Path | None = None) -> Collection:
    """The collection of a name, an alias (``mb12``), a file, or a folder in BEIR's form."""
    if is_own(name):
        if not Path(name).exists():
            place = Path(name).parent
            others = listed(sorted(path.name for path in place.glob(f"*{ENDING}")))
            told = f"; {place.resolve()} has {others}" if others else ""
            raise UsageError(f"found no file {name}{told}")
        return read_collection(Path(name), [*names(), *_ALIASES])
    name, folder = _ALIASES.get(name, name), data_directory(data)
    if name in _MICROBLOG:
        return _microblog(name, folder / "microblog", data)
    if name in answers():
        return find_answers(name, data)
    if name == "sample":
        files = [SAMPLE / part for part in ("topics.txt", "qrels.txt", "posts.jsonl")]
        title, language = "sample collection written for this project", None
    elif name in general():
        place, (title, language) = (
            folder / "general" / name.removesuffix("-train"),
            general()[name],
        )
        files = [
            place / part
            for part in ("topics.train.tsv", "qrels.train.txt", "posts.jsonl")
        ]
        title = f"{title}, training part"
    else:
        own = [str(path) for path in Path(name).parent.glob(f"*{ENDING}")]
        similar = f"; did you mean {name + ENDING!r}?" if name + ENDING in own else ""
        raise UsageError(
            f"found neither a file nor a collection {name!r}, expected one of "
            f"{', '.join(names())}, the file of an own one (my-posts.toml), or a folder in BEIR's "
            "form (corpus.jsonl, queries.jsonl)"
            + (similar or did_you_mean(name, [*names(), *_ALIASES, *own]))
        )
    topics, qrels, posts = files
    given = Collection(
        name, [topics], [qrels], PostFiles([posts]), index=IndexPlace(name)
    )
    return replace(given, title=title, language=language, data=data)


def _microblog(name: str, folder: Path, data: Path | None) -> Collection:
    year, first = name[2:], _MICROBLOG[name]
    runs = {"ql": f"trec-{year}/id.txt", "rm3": f"runs/run.microblog{year}.RM3.txt"}
    return Collection(
        name,
        [folder / f"topics.microblog{year}.txt"],
        [folder / f"qrels.microblog{year}.txt"],
        PairFolders([folder / f"trec-{first}", folder / f"trec-{first + 1}"]),
        index=IndexPlace(f"tweets{first}"),
        title=f"TREC Microblog {year}",
        runs={method: folder / path for method, path in runs.items()},
        data=data,
    )


def find_answers(name: str, data: Path | None = None) -> Collection:
    """The test part of an answer-selection collection."""
    if name not in answers():
        raise UsageError(
            f"found {name!r}, expected a collection of questions with given answers, one of "
            f"{', '.join(answers())}" + did_you_mean(name, [*answers()])
        )
    title, *folders = answers()[name]
    paths = [data_directory(data) / folder for folder in folders]
    source = Answers(dict(zip(PARTS, paths, strict=True)))
    return Collection(name, answers=source, title=title, measures=("AP", "RR"))


def to_train_on(name: str, data: Path | None = None) -> Collection:
    """The collection of a name, or its training part, where answers are given."""
    found = find(name, data)
    return found.part("train") if found.answers else found


def open_collection(
    name: str | Path | None = None,
    index: Path | str | None = None,
    qrels: Any = None,
    data: Path | None = None,
    engine: Mapping[str, Any] | None = None,
    *,
    posts: Any = None,
    topics: Any = None,
    beir: Path | str | None = None,
    ir_dataset: Any = None,
    signals: Sequence[str] = (),
) -> Collection:
    """A collection by name (``mb2012``) or file (``my-posts.toml``), or in one of these forms:

    * ``beir``, a folder in BEIR's form; ``name`` takes one, too;
    * ``ir_dataset``, a data set of ir_datasets or its id, written into the home folder once;
    * ``posts``, dictionaries with ``id``, ``text`` and optionally ``title`` and ``url``, or a data
      frame of them; with ``topics`` (query_id -> text, or rows), ``qrels``, a ``name``, under which
      what is trained is found again when the posts have changed, and ``signals``, further fields
      with numbers;
    * ``index``, the folder of an index by :func:`tweetrerank.indexes.build`, also in place of a named
      collection's own; with ``topics``, or as ``name`` a file of topics.

    ``engine`` has fields of the address of a search engine. ``qrels`` are judgments in place of the
    collection's: a file or several, query_id -> doc_id -> grade, or rows. UsageError: the arguments
    contradict one another, or there is no such collection. DataError: files or rows have another
    form.
    """
    if engine and index:
        raise UsageError("`index` and `engine`: found both, expected one of them")
    key = name if posts is not None else None  # Of posts in memory it is a name alone.
    given = [
        None if key else name,
        posts,
        beir,
        ir_dataset,
        topics if posts is None else None,
    ]
    if (count := sum(value is not None for value in given)) > 1 or not (count or index):
        raise UsageError(
            "expected one of name, posts, topics, beir and ir_dataset, or an index"
        )
    if key in [*names(), *_ALIASES]:
        raise UsageError(f"`name`: {key} is the name of another collection")
    if posts is not None:
        return collection_of(posts, topics, qrels, str(key or ""), signals)
    if qrels is not None and not isinstance(qrels, str | Path):
        qrels = qrels_file(qrels)
    judged = [] if qrels is None else [Path(qrels)]
    folder = Path(index) if index else None
    name = topics_file(topics) if topics is not None else name or beir
    if not count or (name and Path(name).is_file() and not is_own(name)):
        return _of_index([Path(name)] if name else [], folder, judged, engine)
    found = (
        find(str(name), data)
        if ir_dataset is None
        else collection_of_ir_dataset(ir_dataset)
    )
    if judged:  # What is trained on stays.
        measures = DEFAULT_MEASURES if found.judged_only else found.measures
        found = replace(found, qrels_files=judged, measures=measures)
    if folder and found.index and ForeignIndex(folder).files:
        other = read_collection(folder)
        found = replace(found, post_source=other.post_source, index=other.index)
    elif folder and found.index:
        found = replace(found, index=found.index._replace(folder=folder, engine=None))
    return on_engine(found, engine)


def _of_index(
    topics: list[Path],
    folder: Path | None,
    qrels: list[Path],
    engine: Mapping[str, Any] | None,
) -> Collection:
    """The collection of a file of topics, if there is one, and an index."""
    if folder and ForeignIndex(folder).files:
        return replace(read_collection(folder), topic_files=topics, qrels_files=qrels)
    if not (engine or folder):
        raise UsageError(
            f"{topics[0]}: a file of topics needs the posts to search: name their `index` "
            "(python -m pipeline.index --posts FILE --index DIR makes one)"
        )
    place = IndexPlace(
        "", folder, engine_address(engine, None, None) if engine else None
    )
    path = next(iter(topics), place.directory)
    return Collection(
        path.name.split(".")[0], topics, qrels, index=place, title=str(path)
    )


def on_engine(found: Collection, options: Mapping[str, Any] | None) -> Collection:
    """The collection with its index in the search engine that the options name, if they do."""
    if not (options and found.index):
        return found
    address = engine_address(options, found.engine, index_name(found.index.group))
    return replace(found, index=found.index._replace(engine=address))


def engine_address(
    options: Mapping[str, Any], known: EngineAddress | None, index: str | None
) -> EngineAddress:
    """The index of a command's options, fields of the address; the others are those of ``known``,
    or without it ``index``, the name, None if that must be given."""
    if known:
        return replace(known, **options)
    problems = []
    if "url" not in options:
        problems.append("--engine URL is missing: the address of the search engine")
    if "index" not in options and not index:
        problems.append(
            "--engine-index NAME is missing: the index in the search engine"
        )
    if problems:
        raise UsageError(problems)
    return EngineAddress(**{"index": index, **options})


def training_collections(
    test: str | None = None, data: Path | None = None, of_any_kind: bool = False
) -> list[str]:
    """The judged microblog collections other than ``test``; with ``of_any_kind`` the other
    collections with judgments follow, of questions with given answers :data:`QUESTIONS`.

    UsageError: ``test`` has a training part of its own. DataError: no collection has judgments.
    """
    left_out = find(test, data).name if test else None
    if left_out in answers():
        raise UsageError(
            f"found {left_out}, expected a microblog collection: {left_out} has a training part "
            f"of its own; use `python -m pipeline.train MODEL --collection {left_out}`"
        )
    known = [*_MICROBLOG, *general(), *QUESTIONS] if of_any_kind else _MICROBLOG
    files = {name: to_train_on(name, data).qrels_path for name in known}
    if not (judged := [name for name, path in files.items() if path and path.exists()]):
        raise DataError(
            f"found no judgments of {', '.join(_MICROBLOG)} in {data_directory(data)}; fetch them "
            "with\n  tweetrerank fetch\nor name a folder that has them by --data or "
            "TWEETRERANK_DATA"
        )
    return [name for name in judged if name != left_out]
