"""Tune λ, the neural score's share in the interpolation, on training topics only.

    python -m pipeline.tune --test mb2012
    python -m pipeline.tune --collection my-posts.toml
    python -m pipeline.tune --transfer

mixes neural scores of held-out training topics (``held_out.run.gz`` in the checkpoint's folder)
with the official query-likelihood run of these topics, and takes the λ with the best mean measure.
The test collection's judgments play no part. λ is written to ``lambda.json`` in the checkpoint's
folder, for a shipped checkpoint to ``$TWEETRERANK_HOME/lambda``; pipeline.search reads it there.

The second tunes on the judged topics (of the key ``train``, if there is one) of an own collection,
with the first stage of a search in place of the official run: by their scores in training where
each was held out, or by those of the shipped model, if none was trained on the collection. This λ
is used for this collection only. It is 0 if there are fewer than 10 topics or no gain on held-out
ones.

The third tunes the model for collections of any kind on up to 250 topics of each of the training
parts of other collections than TREC Microblog, on which it was not trained.
"""

from dataclasses import dataclass
from pathlib import Path

from tweetrerank.pipeline.collections.own import is_own
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import option, output_file
from tweetrerank.pipeline.ranking.ranking_options import EngineOptions, engine_of
from tweetrerank.pipeline.text import counted
from tweetrerank.pipeline.usage_error import UsageError


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
        "measure to maximise, as ir_measures names it (default: AP, or the collection's)"
    )
    output: Path | None = option(
        "file to write (default: where pipeline.search looks for it)",
        parse=output_file,
        metavar="JSON",
    )
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Tune, print the curve, save λ with its provenance."""
    _check(options)

    from tweetrerank.pipeline.collections import named
    from tweetrerank.pipeline.evaluation.measures import heading
    from tweetrerank.pipeline.ranking.checkpoints import default_directory
    from tweetrerank.pipeline.ranking.interpolation import tuning_files
    from tweetrerank.pipeline.training.cross_validation import (
        HeldOut,
        held_out_scores,
        without_gain,
    )
    from tweetrerank.pipeline.training.training_lists import MOST_TOPICS

    names = (
        named.general()
        if options.transfer
        else [options.test or options.collection or ""]
    )
    collections = [named.find(name, options.data) for name in names]
    collection = collections[0]
    checkpoint = options.checkpoint or default_directory(
        options.reranker, "all" if options.transfer else collection.key, collection.file
    )
    if options.transfer:
        held_out = HeldOut.joined(
            [
                held_out_scores(options.reranker, one, checkpoint, MOST_TOPICS)
                for one in collections
            ]
        )
    elif options.test:
        held_out = HeldOut.read(checkpoint, collection.name, options.data)
    else:
        collection = named.on_engine(collection, engine_of(options))
        held_out = held_out_scores(options.reranker, collection, checkpoint)
    measure = options.measure or (
        collection.measures[0] if options.collection else "AP"
    )
    tuning = held_out.tune(measure, min(5, len(held_out.qrels)))
    topics = counted(len(held_out.qrels), "topic")
    print(
        f"λ     mean {heading(tuning.measure)} on {topics} of {', '.join(tuning.collections)}"
    )
    for weight, value in tuning.curve.items():
        print(
            f"{weight:.2f}  {value:.4f}{'  <- chosen' if weight == tuning.weight else ''}"
        )
    print(
        f"cross-validated over {tuning.folds} folds of topics: {tuning.cross_validated:.4f}"
    )
    if options.collection:
        attempt = f"--reranker {options.reranker} --lambda {tuning.weight:g}"
        tuning = without_gain(tuning, tuning.curve[0.0], attempt)
    path = options.output or tuning_files(checkpoint, collection.key)[0]
    tuning.save(path)
    print(f"wrote {path}")


def _check(options: Options) -> None:
    """Raise UsageError without a collection, or for a model that has no λ."""
    problems = []
    if bool(options.test) + bool(options.collection) + options.transfer != 1:
        problems.append("give one of --test NAME, --collection FILE and --transfer")
    if options.collection and not is_own(options.collection):
        problems.append(
            f"--collection: found {options.collection!r}, expected the file of an own collection "
            "(my-posts.toml); a named one is left out by --test"
        )
    if options.test and is_own(options.test):
        problems.append(f"--test: found {options.test!r}; tune on it by --collection")
    from tweetrerank.rerankers import registry

    if registry.reads(options.reranker) in ("lists", "searches"):
        problems.append(f"--reranker {options.reranker}: it is not mixed, and has no λ")
    if problems:
        raise UsageError(problems)


if __name__ == "__main__":
    run("tune")
