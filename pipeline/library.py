"""Adapting and training from Python, with the checks of the commands."""

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
    """Fit word vectors to a collection's posts, as ``tweetrerank adapt`` does."""
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
    settings: tuple[str, ...] = (),
    folds: int = 5,
    seed: int = 1,
    device: str = "auto",
    threads: int | None = None,
    output: Path | None = None,
) -> Path:
    """Train a model on a collection's judged topics, and print the gain on held-out ones.

    Returns the folder of the trained model, which later rankers of the collection use.
    ``settings`` are changes to the configuration, ``NAME=VALUE``, as of ``tweetrerank train --set``.
    """
    from tweetrerank.pipeline.training import task
    from tweetrerank.pipeline.training.training_options import Options

    if not collection.file:
        raise UsageError(
            f"{collection.name} is no own collection; use `python -m pipeline.train`"
        )
    options = Options(
        model=model,
        configuration=configuration,
        set=settings,
        folds=folds,
        seed=seed,
        device=device,
        threads=threads,
        output=output,
    )
    return task.train(options, collection)
