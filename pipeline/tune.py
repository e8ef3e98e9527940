"""Tune λ, the share of the neural score in the mixture, on training topics only.

    python -m pipeline.tune --test mb2012
    python -m pipeline.tune --collection my-posts.toml
    python -m pipeline.tune --transfer

The first command mixes the neural scores of held-out training topics with the official
query-likelihood run of these topics, and chooses the λ with the best mean measure. The
scores are in ``held_out.run.gz`` in the checkpoint's folder. The test collection's
judgments play no part. λ is written to ``lambda.json`` in the checkpoint's folder, or
below ``$TWEETRERANK_HOME/lambda`` for a shipped checkpoint. pipeline.search reads it
there.

The second tunes on the judged topics of a user's collection, or on those of its key
``train`` if it has one. It mixes with the first stage of a search instead of an
official run. The neural scores come from the training, where each topic was held out
once. If no model was trained on the collection, the shipped model scores the topics.
Only this collection uses this λ. It is 0 if there are fewer than 10 topics, or if
reranking does not improve held-out topics.

The third tunes the model for collections of any kind. It takes up to 250 topics from
the training part of each collection that is not of TREC Microblog. The model was not
trained on them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tweetrerank.pipeline.collections.own import is_own
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import option, output_file
from tweetrerank.pipeline.ranking.ranking_options import EngineOptions, engine_of
from tweetrerank.pipeline.text import counted
from tweetrerank.pipeline.usage_error import UsageError

if TYPE_CHECKING:
    from tweetrerank.pipeline.collections.collection import Collection
    from tweetrerank.pipeline.ranking.interpolation import Tuning
    from tweetrerank.pipeline.training.cross_validation import HeldOut

# Number of folds of the topics. There are never more folds than topics.
FOLDS = 5


@dataclass(frozen=True)
class Options(EngineOptions):
    """Collection, model and measure."""

    test: str | None = option(
        "collection left out of training and tuning", metavar="NAME"
    )
    collection: str | None = option(
        "file of an own collection to tune on", metavar="FILE"
    )
    transfer: bool = option(
        "tune on collections of other kinds than TREC Microblog", flag=True
    )
    reranker: str = option("model", default="mp_hcnn")
    checkpoint: Path | None = option(
        "folder of the trained model (default: the one for --test)",
        parse=Path,
        metavar="DIR",
    )
    measure: str | None = option(
        "measure to maximise, as ir_measures names it (default: AP, or the "
        "collection's)"
    )
    output: Path | None = option(
        "file to write (default: where pipeline.search looks for it)",
        parse=output_file,
        metavar="JSON",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Tune, print the curve, and save λ with its provenance."""
    _check(options)

    from tweetrerank.pipeline.ranking.checkpoints import default_directory
    from tweetrerank.pipeline.ranking.interpolation import tuning_files
    from tweetrerank.pipeline.training.cross_validation import without_gain

    collections = _collections(options)
    collection = collections[0]
    checkpoint = options.checkpoint
    if checkpoint is None:
        key = "all" if options.transfer else collection.key
        checkpoint = default_directory(options.reranker, key, collection.file)
    held_out = _held_out(options, collections, checkpoint)
    measure = options.measure
    if measure is None:
        measure = collection.measures[0] if options.collection else "AP"
    tuning = held_out.tune(measure, min(FOLDS, len(held_out.qrels)))
    _print_curve(tuning, len(held_out.qrels))
    if options.collection:
        attempt = f"--reranker {options.reranker} --lambda {tuning.weight:g}"
        tuning = without_gain(tuning, tuning.curve[0.0], attempt)
    path = options.output or tuning_files(checkpoint, collection.key)[0]
    tuning.save(path)
    print(f"wrote {path}")


def _check(options: Options) -> None:
    """Check the options.

    Raises UsageError if not exactly one source of topics is given, if the collection or
    the measure is of the wrong kind, or if the model is not mixed by a λ.
    """
    from tweetrerank.pipeline.evaluation.measures import parse_measures
    from tweetrerank.rerankers import registry

    problems = []
    if bool(options.test) + bool(options.collection) + options.transfer != 1:
        problems.append("give one of --test NAME, --collection FILE and --transfer")
    if options.collection and not is_own(options.collection):
        problems.append(
            f"--collection: found {options.collection!r}, expected the file of an own "
            "collection (my-posts.toml); a named one is left out by --test"
        )
    if options.test and is_own(options.test):
        problems.append(f"--test: found {options.test!r}; tune on it by --collection")
    if registry.reads(options.reranker) in ("lists", "searches"):
        problems.append(f"--reranker {options.reranker}: it is not mixed, and has no λ")
    try:
        parse_measures([options.measure] if options.measure else [])
    except UsageError as error:
        problems += error.problems
    if problems:
        raise UsageError(problems)


def _collections(options: Options) -> list["Collection"]:
    from tweetrerank.pipeline.collections import named

    if options.transfer:
        return [named.find(name, options.data) for name in named.general()]
    if options.test:
        return [named.find(options.test, options.data)]
    collection = named.find(options.collection or "", options.data)
    return [named.on_engine(collection, engine_of(options))]


def _held_out(
    options: Options, collections: list["Collection"], checkpoint: Path
) -> "HeldOut":
    """Return neural scores and judgments of topics that were held out."""
    from tweetrerank.pipeline.training.cross_validation import HeldOut, held_out_scores
    from tweetrerank.pipeline.training.training_lists import MOST_TOPICS

    if options.test:
        return HeldOut.read(checkpoint, collections[0].name, options.data)
    if options.collection:
        return held_out_scores(options.reranker, collections[0], checkpoint)
    return HeldOut.joined(
        [
            held_out_scores(options.reranker, collection, checkpoint, MOST_TOPICS)
            for collection in collections
        ]
    )


def _print_curve(tuning: "Tuning", topic_count: int) -> None:
    from tweetrerank.pipeline.evaluation.measures import heading

    topics = counted(topic_count, "topic")
    print(
        f"λ     mean {heading(tuning.measure)} on {topics} of "
        f"{', '.join(tuning.collections)}"
    )
    for weight, value in tuning.curve.items():
        mark = "  <- chosen" if weight == tuning.weight else ""
        print(f"{weight:.2f}  {value:.4f}{mark}")
    print(
        f"cross-validated over {tuning.folds} folds of topics: "
        f"{tuning.cross_validated:.4f}"
    )


if __name__ == "__main__":
    run("tune")
