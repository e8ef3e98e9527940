"""Train a reranker on judged collections, leaving one year out, or on a training part.

    python -m pipeline.train mp_hcnn --test mb2012
    python -m pipeline.train sm_cnn --collection trecqa-raw

The first trains on all judged years but 2012 and validates by topic; the second trains on the
questions of TrecQA's training part and is stopped early by its development part. Both write a
checkpoint folder. The models fusion and linear_fusion are trained on what several rankers find,
and on the scores that these have; the rerankers among these are trained with them, on the same
topics and word vectors, and lie in the checkpoint's folder.
"""

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.collections.locations import home_directory
from pipeline.command.errors import UsageError
from pipeline.command.main import run
from pipeline.command.options import (
    apply_changes,
    argument,
    existing_file,
    non_negative_float,
    non_negative_int,
    option,
    positive_float,
    positive_int,
)
from pipeline.command.ranking import FUSIONS
from pipeline.training.trainer import Trainer, vectors_of
from rerankers.training.settings import LOSSES, OPTIMIZERS, SAMPLINGS, SELECTIONS

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    import numpy.typing as npt

    from pipeline.training.training_set import TrainingSet
    from rerankers.base import Pairs
    from rerankers.training.settings import Settings


STEPS = 50
"""Steps of an epoch, at least, of the rerankers that are trained for a fusion; see
:func:`watched_seldom`."""


@dataclass(frozen=True)
class Options:
    """What to train, on what, and how."""

    model: str = argument("model to train: a file of rerankers/models")
    test: str | None = option("collection to leave out of training; none trains on all judged")
    collection: str | None = option(
        "collection with a training part (trecqa-raw, trecqa-clean, wikiqa) to train on",
        metavar="NAME",
    )
    configuration: str | None = option("named configuration of the model (default: its first)")
    set: tuple[str, ...] = option(
        "change one setting of the configuration, NAME=VALUE", many=True, metavar="NAME=VALUE"
    )
    loss: str | None = option(
        "loss (default of this and what follows: as the model's paper has it)", choices=LOSSES
    )
    margin: float | None = option("margin of the pairwise loss", parse=positive_float)
    sampling: str | None = option(
        "negatives: random, max (most similar to the positive, by the last epoch's model), mix "
        "(half of each), corrupted (of other topics); pairs: every pair once a pass",
        choices=SAMPLINGS,
    )
    negatives: int | None = option("negatives for each positive", parse=positive_int)
    positives: int | None = option("positives of each topic in a step", parse=positive_int)
    batch_topics: int | None = option("topics in a step", parse=positive_int)
    batch_pairs: int | None = option("pairs in a step of --sampling pairs", parse=positive_int)
    optimizer: str | None = option("optimizer", choices=OPTIMIZERS)
    learning_rate: float | None = option("learning rate of the first step", parse=positive_float)
    weight_decay: float | None = option("L2 penalty", parse=non_negative_float)
    epochs: int | None = option("epochs at most", parse=positive_int)
    steps: int | None = option("steps an epoch", parse=positive_int)
    patience: int | None = option("epochs without improvement before stopping", parse=positive_int)
    select: str | None = option("validation figure that decides", choices=SELECTIONS)
    folds: int = option(
        "held-out parts of the topics; 1 holds out 15 % once (without --collection)",
        default=5,
        parse=positive_int,
    )
    seed: int = option("of every random choice", default=1, parse=non_negative_int)
    vectors: Path | None = option(
        "word vectors, word2vec .bin or GloVe text, .gz or not "
        "(default: glove.6B.100d.bin.gz of the data folder; for fusions those that "
        "pipeline.vectors makes of the posts, beside them)", parse=existing_file,
    )  # fmt: skip
    idf: str = option("word frequencies: wordfreq or a file (N, then word<TAB>df)",
                      default="wordfreq")  # fmt: skip
    device: str = option("where to train", default="auto", choices=("auto", "cpu", "cuda"))
    threads: int | None = option("CPU threads (default: all cores)", parse=positive_int)
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)
    output: Path | None = option("checkpoint folder to write", parse=Path)
    resume: bool = option("go on with interrupted training", flag=True)


def main(options: Options) -> None:
    """Load data, train, write the checkpoint."""
    from pipeline.command import runtime
    from pipeline.training.folds import held_out_bytes
    from rerankers import models

    if options.model not in models.names():
        raise UsageError(
            f"model: found {options.model!r}, expected one of {', '.join(models.names())}"
        )
    if options.test and options.collection:
        raise UsageError("--test and --collection: found both, expected one of them")
    device = runtime.choose_device(options.device, options.threads)
    settings, config = _settings(options), _config(options)
    directory = _directory(options)
    state_directory = directory.parent / f".{directory.name}.training"
    try:
        parts = _Parts(options, device, state_directory)
        training_set = _material(options, config, parts)
        print(f"training {options.model} on {', '.join(training_set.trained_on)}", file=sys.stderr)
        trainer = Trainer(options, settings, config, training_set, device)
        outcome = trainer.train(state_directory)
    except KeyboardInterrupt:
        print("finished epochs are kept: repeat the command with --resume", file=sys.stderr)
        raise
    held_out = {"held_out.run.gz": held_out_bytes(outcome.held_out_run)}
    trainer.save(directory, outcome, held_out, parts.directories)
    runtime.remove_directory(state_directory)
    for name, value in outcome.validation_map.items():
        what = "the development part" if name == "development" else "held-out topics"
        print(f"{name}: AP {value:.4f} on {what}")
    print(f"epochs: {outcome.epochs}\nwrote {directory}")


def _directory(options: Options) -> Path:
    """The folder to write."""
    from pipeline.collections import named

    name = "all"
    if options.collection:
        name = named.find_answers(options.collection, options.data).name
    elif options.test:
        name = named.find(options.test, options.data).name
    return options.output or home_directory() / "checkpoints" / options.model / name


def _material(options: Options, config: Any, parts: "_Parts") -> "TrainingSet":
    from pipeline import fusion
    from pipeline.collections import named
    from pipeline.training.training_set import answer_training_set, microblog_training_set

    if options.model in FUSIONS:
        if options.collection:
            raise UsageError(
                f"--collection: {options.model} ranks what searches find; name the collection to "
                "leave out by --test"
            )
        return fusion.fusion_training_set(config, options.test, options.data, parts.unseen_scores)
    if options.collection:
        return answer_training_set(named.find_answers(options.collection, options.data))
    return microblog_training_set(options.test, options.data)


@dataclass
class _Parts:
    """The rerankers whose scores a fusion reads; they are trained for it, and kept with it.

    Attributes:
        options: of the fusion.
        device: where to train.
        state_directory: of the fusion's training.
        directories: name -> checkpoint folder of each that has been trained.
    """

    options: Options
    device: str
    state_directory: Path
    directories: dict[str, Path] = field(default_factory=dict)

    def unseen_scores(
        self, name: str, pairs: "Pairs", query_ids: "Sequence[str]"
    ) -> "npt.NDArray[np.float32]":
        """Scores of training topics by models of ``name`` that have not seen them."""
        from pipeline import fusion
        from pipeline.training.training_set import microblog_training_set

        print(f"training {name} on folds of the topics, for its scores of the others",
              file=sys.stderr)  # fmt: skip
        options = self.options
        training_set = microblog_training_set(options.test, options.data).without_priors()
        own = Options(
            name, test=options.test, folds=options.folds, seed=options.seed,
            vectors=vectors_of(options, training_set), idf=options.idf, data=options.data,
            resume=options.resume,
        )  # fmt: skip
        trainer = Trainer(
            own, watched_seldom(_settings(own)), _config(own), training_set, self.device
        )
        outcome = trainer.train(self.state_directory / f"{name}.training")
        self.directories[name] = self.state_directory / name
        trainer.save(self.directories[name], outcome)
        return fusion.unseen_scores(pairs, query_ids, outcome.folds, trainer.encoder)


def watched_seldom(settings: "Settings") -> "Settings":
    """The same number of steps in epochs of ``STEPS`` at least.

    Which epoch is best is decided by the topics whose scores a fusion is to learn from. Where there
    are many epochs, each a little better or worse by chance, the best is so by luck, too (by .01
    AP, SM-CNN in epochs of 10 steps), and a fusion would trust its scores more than those of topics
    that nobody has watched. Most of the time of short epochs is the watching, besides.
    """
    joined = max(1, STEPS // settings.steps)
    return dataclasses.replace(
        settings, steps=joined * settings.steps, epochs=-(-settings.epochs // joined),
        patience=-(-settings.patience // joined),
    )  # fmt: skip


def _settings(options: Options) -> "Settings":
    """What the model's paper has, with the changes that are asked for.

    A model without steps of training takes none of the options of steps.
    """
    from rerankers import models
    from rerankers.errors import RerankerError
    from rerankers.training.settings import Settings

    given = {
        field.name: value
        for field in dataclasses.fields(Settings)
        if (value := getattr(options, field.name, None)) is not None
    }
    model = models.find(options.model)
    if not model.trained_by_gradients and (useless := sorted({*given} - {"seed"})):
        options_given = ", ".join(f"--{name.replace('_', '-')}" for name in useless)
        raise UsageError(
            f"{options_given}: found for {options.model}, which is not trained step by step and "
            "has no use for it; change its own settings by --set NAME=VALUE"
        )
    try:
        return dataclasses.replace(model.training_settings, **given)
    except RerankerError as error:
        raise UsageError(str(error).splitlines()) from None


def _config(options: Options) -> Any:
    """The named configuration with the changes of ``--set``."""
    from rerankers import models

    known = models.find(options.model).configurations
    name = options.configuration or next(iter(known))
    if name not in known:
        raise UsageError(f"--configuration: found {name!r}, expected one of {', '.join(known)}")
    return apply_changes(known[name], options.set)


if __name__ == "__main__":
    run("train")
