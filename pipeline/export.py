"""Copy a trained model into one folder that another machine can serve.

    python -m pipeline.export window --output models/window
    python -m pipeline.export --collection my-posts.toml --output models/my-posts
    tweetrerank serve --checkpoint models/my-posts

The folder holds every file that the model needs. This includes the words and weights
that it shares with other models, λ, the calibration, the judgments, and the word
vectors adapted to a collection.
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.indexes.files import atomic_directory
from tweetrerank.pipeline.collections.named import open_collection
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import argument, option
from tweetrerank.pipeline.text import say
from tweetrerank.pipeline.usage_error import UsageError


@dataclass(frozen=True)
class Options:
    """The model to copy, and the folder to write."""

    model: str | None = argument(
        "model: a name, or a checkpoint folder; none with --collection", required=False
    )
    output: Path = option("new folder", parse=Path, required=True, metavar="DIR")
    collection: str | None = option(
        "collection whose best model for given candidates is copied",
        metavar="NAME|FILE",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Write the folder. After an error there is no folder."""
    _check(options)

    from tweetrerank.pipeline.ranking.build import Source, best_source
    from tweetrerank.pipeline.ranking.interpolation import TUNING_FILE, tuning_of
    from tweetrerank.rerankers import checkpoint as checkpoints

    key = ""
    if options.collection:
        collection = open_collection(options.collection, data=options.data)
        source = best_source(collection)
        key = collection.key
    else:
        source = Source(checkpoints.find(options.model or ""))
    files_of_collection = {
        checkpoints.ADAPTED_FILE: source.adapted,
        checkpoints.FREQUENCIES: source.frequencies,
    }
    files = {
        name: path.read_bytes() for name, path in files_of_collection.items() if path
    }
    tuning = tuning_of(source.folder, key)
    if tuning and tuning.path:
        files[TUNING_FILE] = tuning.path.read_bytes()
    output = options.output
    with atomic_directory(output) as folder:
        checkpoints.copy_whole(source.folder, folder, files, source.idf)
    size = sum(path.stat().st_size for path in output.rglob("*") if path.is_file())
    say(f"wrote {output}, {size / 1e6:.1f} MB, from {source.folder}")


def _check(options: Options) -> None:
    """Raise UsageError listing every problem found in the options."""
    problems = []
    if bool(options.model) == bool(options.collection):
        problems.append("expected a model or --collection, one of them")
    if options.output.exists():
        problems.append(
            f"--output {options.output}: it exists; expected a folder that does not"
        )
    if problems:
        raise UsageError(problems)


if __name__ == "__main__":
    run("export")
