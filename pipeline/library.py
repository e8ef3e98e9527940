"""Adapt word vectors and train models from Python, with the checks of the commands."""

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
        collection: the collection to adapt to. Its searches then use the vectors.
        teacher: folder or name of a sentence transformer. None chooses one for the
            language of the collection.
        posts: largest number of posts to learn from.
        device: ``auto``, ``cpu``, or ``cuda``.
        threads: number of threads. None uses all cores.
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
        collection: a collection with judgments, from a file or from memory.
        model: name of the model.
        configuration: name of one of the model's configurations. None takes the first.
        settings: changes to the configuration, each as ``NAME=VALUE``, like those of
            ``tweetrerank train --set``.
        folds: number of parts of the topics. Each part is held out once.
        seed: seed of every random choice.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: number of threads. None uses all cores.
        output: folder to write. None writes to the folder where later rankers of the
            collection look.

    Returns:
        The folder of the trained model.

    Raises:
        UsageError: if the collection is a named one, or if an argument is wrong.
        DataError: if the collection has too few judged topics.
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
