"""Copy a trained model into one folder that another machine can serve.

    python -m pipeline.export window --output models/window
    python -m pipeline.export --collection my-posts.toml --output models/my-posts
    tweetrerank serve --checkpoint models/my-posts

The folder holds all that the model needs: words and weights that it shares with others, λ and
calibration, judgments, and for a collection the word vectors adapted to it.
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
    """Model and new folder."""

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
    """Write the folder, whole or not at all."""
    target, problems = options.output, []
    if bool(options.model) == bool(options.collection):
        problems.append("expected a model or --collection, one of them")
    if target.exists():
        problems.append(
            f"--output {target}: it exists; expected a folder that does not"
        )
    if problems:
        raise UsageError(problems)

    from tweetrerank.pipeline.ranking.build import Source, best_source
    from tweetrerank.pipeline.ranking.interpolation import TUNING_FILE, tuning_of
    from tweetrerank.rerankers import checkpoint as checkpoints

    key, others = "", dict[str, bytes]()
    if options.collection:
        collection = open_collection(options.collection, data=options.data)
        source, key = best_source(collection), collection.key
        known = (source.adapted, source.frequencies)
        names = (checkpoints.ADAPTED_FILE, checkpoints.FREQUENCIES)
        others = {
            name: path.read_bytes()
            for name, path in zip(names, known, strict=True)
            if path
        }
    else:
        source = Source(checkpoints.find(options.model or ""))
    folder = source.folder
    if (tuned := tuning_of(folder, key)) and tuned.path:
        others[TUNING_FILE] = tuned.path.read_bytes()
    with atomic_directory(target) as new:
        checkpoints.copy_whole(folder, new, others, source.idf)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    say(f"wrote {target}, {size / 1e6:.1f} MB, from {folder}")


if __name__ == "__main__":
    run("export")
