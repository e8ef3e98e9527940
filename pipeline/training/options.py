"""Options of a training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from pipeline.collections.collection import NO_FILE, default_vectors
from pipeline.command.options import (
    argument,
    existing_file,
    non_negative_int,
    option,
    positive_int,
)
from pipeline.command.ranking import EngineOptions
from pipeline.errors import UsageError
from pipeline.text import did_you_mean
from rerankers import models
from rerankers.networks.training.settings import Settings

TRAINING = "training."  # Before the name of a setting of the training
SETTINGS = [field.name for field in dataclasses.fields(Settings) if field.name != "seed"]


@dataclass(frozen=True)
class _TrainingOptions:
    """Collections to train on, and the configuration of the model and of its training."""

    test: str | None = option("collection to leave out; without it all judged ones are trained on")
    collection: str | None = option(
        "collection with a training part (trecqa-raw, trecqa-all-clean, wikiqa, …) to train on, or "
        "file of an own one with judgments",
        metavar="NAME|FILE",
    )
    development: str = option(
        "candidates of its development part, which stops the training: given, or drawn (each "
        "right answer and five of other questions)",
        default="given",
        choices=("given", "drawn"),
    )
    train_on: tuple[str, ...] = option(
        "train on these microblog collections alone", many=True, following=True, metavar="NAME"
    )
    forget_topics: bool = option(
        "keep no topics and judgments of an own collection in the checkpoint of a fusion or of "
        "window, which then cannot read what other topics' judgments say of a post",
        flag=True,
    )
    prior_runs: tuple[Path, ...] = option(
        "runs whose ranks are the prior of training pairs, for sm_cnn (default: the official runs)",
        parse=existing_file,
        many=True,
        following=True,
        metavar="RUN",
    )
    top: int | None = option(
        "read only so many runs of --prior-runs, the best by P@30 on the training topics",
        parse=positive_int,
    )
    folds: int = option(
        "held-out parts of the topics; 1 holds out a share once (without --collection)",
        default=5,
        parse=positive_int,
    )
    configuration: str | None = option("named configuration of the model (default: its first)")
    set: tuple[str, ...] = option(
        "change one setting of the configuration, NAME=VALUE, or of the training, "
        "training.NAME=VALUE (default: as in the model's paper): "
        f"{', '.join(SETTINGS)}; may be given several times",
        many=True,
        metavar="NAME=VALUE",
    )
    vectors: Path | None = option(
        "word vectors: general (those of the package wordllama, for any word), or a file, word2vec "
        ".bin or GloVe text, .gz or not, or its name in the folder embeddings of the data "
        "(default: its glove.6B.100d.bin.gz, or general without that file)",
        parse=Path,
    )
    idf: str = option(
        "word frequencies: wordfreq or a file (N, then word<TAB>df)", default="wordfreq"
    )
    seed: int = option("seed of every random choice", default=1, parse=non_negative_int)


@dataclass(frozen=True)
class Options(EngineOptions, _TrainingOptions):
    """The model, where candidates are searched, and what a training reads and writes."""

    model: str = argument("model to train: a file of rerankers/networks/models or rerankers/trees")
    device: str = option("where to train", default="auto", choices=("auto", "cpu", "cuda"))
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    output: Path | None = option("checkpoint folder to write", parse=Path)

    @property
    def model_changes(self) -> list[str]:
        """Changes of the model's configuration."""
        return [change for change in self.set if not change.startswith(TRAINING)]


def check(options: Options) -> None:
    """Raise UsageError for an unknown model or options that exclude each other."""
    if options.model not in models.names():
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(models.names())}"
            + did_you_mean(options.model, models.names())
        )
    folder, given = default_vectors(options.data).parent, bool(options.collection)
    is_missing = options.vectors not in (None, NO_FILE) and not vector_file(options).is_file()
    problems = {
        f"--vectors: there is no file {options.vectors}, neither here nor in {folder}": is_missing,
        "--development: found no --collection, whose development part it is": (
            options.development != "given" and not given
        ),
        "--test and --collection: found both, expected one of them": options.test and given,
        "--collection: found with --train-on or --prior-runs, which choose microblog collections "
        "and their runs; expected either": given and (options.train_on or options.prior_runs),
        "--top: found without --prior-runs, of which it takes the best": (
            options.top and not options.prior_runs
        ),
    }
    if found := [problem for problem, is_true in problems.items() if is_true]:
        raise UsageError(found)


def vector_file(options: Options) -> Path:
    """The file of ``--vectors``, in the data folder if it is not found elsewhere."""
    default, given = default_vectors(options.data), options.vectors
    if given is None:
        return default if default.is_file() else NO_FILE
    if given == NO_FILE:
        return NO_FILE
    return given if given.is_file() else default.parent / given
