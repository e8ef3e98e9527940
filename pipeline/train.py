"""Train a reranker on judged collections, leaving one year out.

    python -m pipeline.train mp_hcnn --test mb2012

trains on all judged years but 2012, validates by topic, and writes a checkpoint folder.
"""

import dataclasses
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli import (
    argument,
    existing_file,
    non_negative_int,
    option,
    positive_float,
    positive_int,
    run_command,
)
from pipeline.errors import UsageError
from pipeline.runtime import keep_allocations

if TYPE_CHECKING:
    from pipeline.collections import Collection
    from pipeline.training import Outcome, TrainingData
    from rerankers.base import Reranker
    from rerankers.training import Settings
    from rerankers.views import TextEncoder


@dataclass(frozen=True)
class Options:
    """What to train, on what, and how."""

    model: str = argument("model to train: a file of rerankers/models")
    test: str | None = option("collection to leave out of training; none trains on all judged")
    configuration: str | None = option("named configuration of the model (default: its first)")
    set: tuple[str, ...] = option(
        "change one setting of the configuration, NAME=VALUE", many=True, metavar="NAME=VALUE"
    )
    loss: str | None = option("loss", choices=("listwise", "pairwise", "pointwise"))
    optimizer: str | None = option("optimizer", choices=("adamw", "sgd"))
    learning_rate: float | None = option("learning rate of the first step", parse=positive_float)
    epochs: int | None = option("epochs at most", parse=positive_int)
    steps: int | None = option("steps an epoch", parse=positive_int)
    negatives: int | None = option("negatives for each positive", parse=positive_int)
    patience: int | None = option("epochs without improvement before stopping", parse=positive_int)
    select: str | None = option("validation figure that decides", choices=("map", "loss"))
    folds: int = option(
        "held-out parts of the topics; 1 holds out 15 % once", default=5, parse=positive_int
    )
    seed: int = option("of every random choice", default=1, parse=non_negative_int)
    vectors: Path | None = option(
        "word vectors, word2vec .bin or GloVe text, .gz or not "
        "(default: glove.6B.100d.bin.gz of the data folder)", parse=existing_file,
    )  # fmt: skip
    idf: str = option("word frequencies: wordfreq or a file (N, then word<TAB>df)",
                      default="wordfreq")  # fmt: skip
    device: str = option("where to train", default="auto", choices=("auto", "cpu", "cuda"))
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    output: Path | None = option("checkpoint folder to write", parse=Path)
    resume: bool = option("go on with interrupted training", flag=True)


def main(options: Options) -> None:
    """Load data, train across folds, write the checkpoint."""
    from pipeline import collections, runtime
    from pipeline.training import cross_train, load_training_data
    from rerankers import models

    if options.model not in models.names():
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(models.names())}"
        )
    device = runtime.choose_device(options.device, options.threads)
    trained_on = [
        collections.find(name, options.data)
        for name in collections.training_collections(options.test, options.data)
    ]
    settings = _settings(options)
    config = _config(options)
    directory = options.output or _default_output(options)
    print(f"training {options.model} on {', '.join(c.name for c in trained_on)}", file=sys.stderr)
    data = load_training_data(trained_on)
    encoder = _encoder(options)
    build = _builder(options, config, encoder, device)
    examples = _examples(build(), data, encoder)
    state_directory = directory.parent / f".{directory.name}.training"
    try:
        with runtime.step_bar(settings.steps) as progress:
            outcome = cross_train(
                build, examples, data, settings, options.folds, state_directory, options.resume,
                progress,
            )  # fmt: skip
    except KeyboardInterrupt:
        print("finished epochs are kept: repeat the command with --resume", file=sys.stderr)
        raise
    _save(directory, options, encoder, outcome, data, trained_on, settings)
    runtime.remove_directory(state_directory)
    for name, value in outcome.validation_map.items():
        print(f"{name}: AP {value:.4f} on held-out topics")
    print(f"epochs: {outcome.epochs}\nwrote {directory}")


def _settings(options: Options) -> "Settings":
    from rerankers.training import Settings

    given = {
        field.name: value
        for field in dataclasses.fields(Settings)
        if (value := getattr(options, field.name, None)) is not None
    }
    return Settings(**given)


def _config(options: Options) -> Any:
    """The named configuration with the changes of ``--set``."""
    from pipeline.settings import change
    from rerankers import models

    known = models.find(options.model).configurations
    name = options.configuration or next(iter(known))
    if name not in known:
        raise UsageError(f"--configuration: found {name!r}, expected one of {', '.join(known)}")
    return change(known[name], options.set)


def _default_output(options: Options) -> Path:
    from pipeline.collections import find, home_directory

    test = find(options.test, options.data).name if options.test else "all"
    return home_directory() / "checkpoints" / options.model / test


def _encoder(options: Options) -> "TextEncoder":
    """Words of every post that is here (texts only, no judgments) and their vectors."""
    from pipeline import collections
    from rerankers.checkpoint import idf_from
    from rerankers.vectors import read_vectors
    from rerankers.views import TextEncoder
    from rerankers.vocabulary import Vocabulary

    path = options.vectors or (
        collections.data_directory(options.data) / "embeddings" / "glove.6B.100d.bin.gz"
    )
    texts = {post.doc_id: post.text for c in _known(options) for post in c.posts()}
    vocabulary = Vocabulary.build(texts.values(), read_vectors(path))
    return TextEncoder(vocabulary, idf_from(options.idf))


def _known(options: Options) -> "list[Collection]":
    """One microblog collection of each index group whose posts are here."""
    from pipeline import collections

    groups = {}
    for name in collections.names():
        collection = collections.find(name, options.data)
        if name.startswith("mb") and not collection.missing():
            groups[collection.index_group] = collection
    return list(groups.values())


def _builder(options: Options, config: Any, encoder: "TextEncoder", device: str) -> Any:
    import torch

    from rerankers import models

    def build() -> "Reranker":
        torch.manual_seed(options.seed)
        return models.find(options.model)(config, encoder.vocabulary).to(device)

    return build


def _examples(model: "Reranker", data: "TrainingData", encoder: "TextEncoder") -> Any:
    from rerankers.interactions import CachedInteractions
    from rerankers.scoring import Encoded
    from rerankers.training import Examples

    encoded = Encoded.of(data.candidates.pairs(), encoder, model)
    if model.interactions_are_fixed():
        return Examples(CachedInteractions.of(model, encoded), data.relevant())
    return Examples(encoded, data.relevant())


def _save(
    directory: Path, options: Options, encoder: "TextEncoder", outcome: "Outcome",
    data: "TrainingData", trained_on: "list[Collection]", settings: "Settings",
) -> None:  # fmt: skip
    from pipeline import runtime
    from pipeline.evaluation import mean
    from pipeline.training import held_out_bytes
    from rerankers import checkpoint

    metrics = {
        "model": options.model,
        "configuration": options.configuration or "default",
        "changed_settings": list(options.set),
        "trained_on": [collection.name for collection in trained_on],
        "left_out": options.test,
        "topics": len(data.candidates.topics),
        "pairs": len(data.candidates.keys()),
        "candidates": "official query-likelihood runs",
        "training": dataclasses.asdict(settings),
        "folds": options.folds,
        "epochs": outcome.epochs,
        "validation": {
            "AP": round(mean(outcome.validation_map.values()), 4),
            "by_fold": {name: round(v, 4) for name, v in outcome.validation_map.items()},
        },
        "histories": {name: h.epochs for name, h in outcome.histories.items()},
        **runtime.provenance(),
    }
    checkpoint.save(
        directory, options.model, outcome.model, encoder, metrics,
        {"held_out.run.gz": held_out_bytes(outcome.held_out_run)},
    )  # fmt: skip


if __name__ == "__main__":
    keep_allocations()
    run_command(Options, main, "python -m pipeline.train", __doc__)
