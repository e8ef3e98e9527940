#!/usr/bin/env python3
"""Tune λ, the neural score's share in the interpolation, on training topics only.

    python scripts/tune_lambda.py --test mb2012

takes the scores that training gave to held-out topics (``held_out.run.gz`` in the checkpoint's
folder), mixes them with the official query-likelihood run of the same topics, and looks for the
λ with the best mean measure. The judgments of the test collection play no part.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.command.options import (
    non_negative_int,
    option,
    output_file,
    positive_int,
    run_command,
)


@dataclass(frozen=True)
class Options:
    """Which λ to tune, and how."""

    test: str = option("collection that must not be looked at", required=True, metavar="NAME")
    reranker: str = option("model", default="mp_hcnn")
    checkpoint: Path | None = option(
        "folder of the trained model (default: the one for --test)", parse=Path, metavar="DIR"
    )
    measure: str = option("what λ is to make best, as ir_measures names it", default="AP")
    normalize: str = option(
        "of scores before mixing", default="minmax",
        choices=("minmax", "zscore", "reciprocal", "none"),
    )  # fmt: skip
    folds: int = option("parts of the cross-validation", default=5, parse=positive_int)
    seed: int = option("of the split into folds", default=1, parse=non_negative_int)
    plot: Path | None = option("draw the curve into this file", parse=output_file, metavar="PNG")
    output: Path | None = option(
        "file to write (default: lambda.json in the checkpoint's folder)",
        parse=output_file, metavar="JSON",
    )  # fmt: skip
    data: Path | None = option("data folder (default: $TWEETRERANK_DATA)", parse=Path)


def main(options: Options) -> None:
    """Tune, print the curve, save λ with its provenance."""
    from pipeline.training import tuning

    directory, held_out = tuning.held_out_scores(
        options.reranker, options.test, options.checkpoint, options.data
    )
    result = tuning.tune(held_out, options.measure, options.normalize, options.folds, options.seed)
    print(f"λ     mean {options.measure} on {', '.join(held_out.collections)}")
    for weight, value in result.curve.items():
        print(f"{weight:.2f}  {value:.4f}{'  <- chosen' if weight == result.weight else ''}")
    print(f"cross-validated over {options.folds} folds of topics: {result.cross_validated:.4f}")
    path = tuning.save(directory, options.output, held_out, result)
    print(f"wrote {path}")
    if options.plot:
        _plot(options, result)


def _plot(options: Options, result: Any) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 4))
    axes.plot(list(result.curve), list(result.curve.values()), marker="o", markersize=3)
    axes.axvline(result.weight, linestyle=":", color="grey")
    axes.set_xlabel("λ (0: first stage alone, 1: neural score alone)")
    axes.set_ylabel(f"mean {options.measure} on training topics")
    axes.set_title(f"{options.reranker}, test collection {options.test} left out")
    figure.savefig(options.plot, dpi=150, bbox_inches="tight")
    print(f"wrote {options.plot}")


if __name__ == "__main__":
    run_command(Options, main, "scripts/tune_lambda.py", __doc__)
