"""Options of a training."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from tweetrerank.pipeline.command.options import (
    argument,
    existing_file,
    non_negative_int,
    option,
    positive_int,
)
from tweetrerank.pipeline.ranking.ranking_options import EngineOptions
from tweetrerank.rerankers.networks.training.training_settings import Settings

TRAINING = "training."  # Prefix of the name of a training setting
SETTINGS = [
    field.name for field in dataclasses.fields(Settings) if field.name != "seed"
]


@dataclass(frozen=True)
class Options(EngineOptions):
    """The model, the collections to train on, and settings of both."""

    model: str = argument(
        "model to train: a file of rerankers/networks/models or rerankers/trees"
    )
    test: str | None = option(
        "collection to leave out; without it all judged ones are trained on"
    )
    collection: str | None = option(
        "collection with a training part (trecqa-raw, trecqa-all-clean, wikiqa, …) to "
        "train on, or file of an own one with judgments",
        metavar="NAME|FILE",
    )
    development: str = option(
        "candidates of its development part, which stops the training: given, or drawn "
        "(each right answer and five of other questions)",
        default="given",
        choices=("given", "drawn"),
    )
    train_on: tuple[str, ...] = option(
        "train on these microblog collections alone",
        many=True,
        following=True,
        metavar="NAME",
    )
    forget_topics: bool = option(
        "keep no topics and judgments of an own collection in the checkpoint of a "
        "fusion or of window, which then cannot read what other topics' judgments say "
        "of a post",
        flag=True,
    )
    prior_runs: tuple[Path, ...] = option(
        "runs whose ranks are the prior of training pairs, for sm_cnn (default: the "
        "official runs)",
        parse=existing_file,
        many=True,
        following=True,
        metavar="RUN",
    )
    top: int | None = option(
        "read only so many runs of --prior-runs, the best by P@30 on the training "
        "topics",
        parse=positive_int,
    )
    folds: int = option(
        "held-out parts of the topics; 1 holds out a share once (without --collection)",
        default=5,
        parse=positive_int,
    )
    configuration: str | None = option(
        "named configuration of the model (default: its first)"
    )
    set: tuple[str, ...] = option(
        "change one setting of the configuration, NAME=VALUE, or of the training, "
        "training.NAME=VALUE (default: as in the model's paper): "
        f"{', '.join(SETTINGS)}; may be given several times",
        many=True,
        metavar="NAME=VALUE",
    )
    vectors: Path | None = option(
        "word vectors: general (those of the package wordllama, for any word), or a "
        "file, word2vec .bin or GloVe text, .gz or not, or its name in the folder "
        "embeddings of the data (default: its glove.6B.100d.bin.gz, or general without "
        "that file)",
        parse=Path,
    )
    idf: str | None = option(
        "word frequencies: wordfreq, posts (of wordfreq and the collection's posts), "
        "or a file (N, then word<TAB>df) (default: posts for window, wordfreq for "
        "others)"
    )
    seed: int = option("seed of every random choice", default=1, parse=non_negative_int)
    device: str = option(
        "where to train", default="auto", choices=("auto", "cpu", "cuda")
    )
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    output: Path | None = option("checkpoint folder to write", parse=Path)
