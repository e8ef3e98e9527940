"""Adapting and training from Python, with the checks of the commands."""

from collections.abc import Sequence
from pathlib import Path

from tweetrerank.pipeline import adapt as adapt_command
from tweetrerank.pipeline.collections.collection import Collection
from tweetrerank.pipeline.usage_error import UsageError


def adapt(
    collection: Collection,
    *,
    teacher: str | None = None,
    posts: int = adapt_command.MOST_POSTS,
    device: str = "auto",
    threads: int | None = None,
) -> None:
    """Fit word vectors to a collection's posts, as ``tweetrerank adapt`` does.

    Args:
        collection: collection whose searches then use the vectors.
        teacher: sentence transformer, its folder or name; None takes the default one.
        posts: number of posts to learn from, at most.
        device: ``auto``, ``cpu``, or ``cuda``.
        threads: number of threads; None uses all cores.
    """
    options = adapt_command.Options(
        teacher=teacher, posts=posts, device=device, threads=threads
    )
    adapt_command.adapt(options, collection)
    collection.forget_adapted()


def train(
    collection: Collection,
    model: str = "fusion",
    *,
    configuration: str | None = None,
    settings: Sequence[str] = (),
    folds: int = 5,
    seed: int = 1,
    device: str = "auto",
    threads: int | None = None,
    output: Path | None = None,
) -> Path:
    """Train a model on a collection's judged topics, and print its held-out gain.

    Args:
        collection: collection with judgments, from a file or from memory.
        model: name of the model.
        configuration: name of its configuration; None takes the first one.
        settings: changes to the configuration, ``NAME=VALUE``, as
            ``tweetrerank train --set``.
        folds: held-out parts of the topics.
        seed: seed of every random choice.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: number of threads; None uses all cores.
        output: folder to write; None takes the one that later rankers read.

    Returns:
        The folder of the trained model.

    Raises:
        UsageError: the collection has no file, or an argument is wrong.
        DataError: the collection has too few judged topics.
    """
    from tweetrerank.pipeline.training import task
    from tweetrerank.pipeline.training.training_options import Options

    if not collection.file:
        raise UsageError(
            f"{collection.name} is a named collection; train on it by "
            "`python -m pipeline.train`"
        )
    options = Options(
        model=model,
        configuration=configuration,
        set=tuple(settings),
        folds=folds,
        seed=seed,
        device=device,
        threads=threads,
        output=output,
    )
    return task.train(options, collection)
