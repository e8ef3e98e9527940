"""Tables of Rao et al. (2019) that need runs and posts, not only results; and all figures.

Functions that a table names as ``report`` give Markdown, those named as ``figure`` a picture.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from experiments.cells import Result, Setup
from experiments.extras import values_of
from experiments.rendering import curves_of, markdown_table, mean_of, results_of, shown, titled
from experiments.tables import Table, published
from indexes.files import write_bytes
from pipeline.collections.collection import Collection, default_vectors
from pipeline.collections.trec import read_run
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import Evaluator
from rerankers.text.vectors import read_vectors
from rerankers.text.words import words

Report = Callable[[Table, Sequence[Result], Setup], str]
Draw = Callable[[Any, Table, Sequence[Result], Setup], None]


# Table 2

_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")


def statistics(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Sizes of the collections: a row per number, a column per year, the paper's in parentheses."""
    names = [result.cell.collection for result in results]
    known = set(read_vectors(default_vectors(setup.data)).words)
    counts = {name: _count(setup.collection(name), known) for name in names}
    rows = [["", *names]]
    for number, figures in published("rao2019_table2").items():
        texts = [f"{shown(counts[n][number], ',')} ({figures[n][0]:,.0f})" for n in names]
        rows.append([number, *texts])
    return markdown_table(rows)


def _count(collection: Collection, known: set[str]) -> dict[str, int | None]:
    run, qrels = read_run(collection.runs["ql"]), collection.qrels
    posts = {post.doc_id: post for post in collection.posts()}
    pairs = [(query_id, posts[doc_id]) for query_id, scores in run.items() for doc_id in scores]
    distinct = {word for _, post in pairs for word in words(post.text)}
    relevant = None
    if qrels is not None:
        relevant = sum(qrels.get(query_id, {}).get(post.doc_id, 0) > 0 for query_id, post in pairs)
    return {
        "topics": len(run),
        "query-document pairs": len(pairs),
        "relevant documents": relevant,
        "unique words": len(distinct),
        "unique OOV words": len(distinct - known),
        "URLs": sum(bool(post.url) for _, post in pairs),
        "hashtags": sum(bool(_HASHTAG.search(post.text)) for _, post in pairs),
    }


# Figures 3 and 4: MP-HCNN against QL, topic by topic

EXTREMES = 5  # Number of topics listed at either end
WINS = {"mb2011": (26, 13), "mb2012": (35, 19)}  # Published, MP-HCNN above and below QL (5.2)


def _gains(table: Table, results: Sequence[Result], setup: Setup) -> dict[str, dict[str, float]]:
    """MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL; by decreasing gain of MP-HCNN.

    Raises:
        DataError: no judgments, or no finished cell of one of the two systems.
    """
    (name,), (ql, system) = table.collections, table.systems
    collection = setup.collection(name)
    if collection.qrels is None:
        raise DataError(collection.missing_judgments)
    ours, base = results_of(system, results), results_of(ql, results)
    if not ours or not base:
        raise DataError(
            f"{name}: found no finished cell of MP-HCNN, expected one to compare with QL; "
            "--train computes it"
        )
    evaluator = Evaluator(collection.qrels, ["AP"])
    reference = values_of(base, evaluator, setup)["AP"]
    alone, mixed = (
        values_of(ours, evaluator, setup, is_mixture=is_mixture)["AP"] - reference
        for is_mixture in (False, True)
    )
    order = np.argsort(-alone, kind="stable")
    query_ids = [evaluator.query_ids[place] for place in order]
    return {
        title: dict(zip(query_ids, values[order].tolist(), strict=True))
        for title, values in ((system.name, alone), (system.mixture, mixed))
    }


def gains(table: Table, results: Sequence[Result], setup: Setup) -> str:
    """Wins and losses beside the paper's, and the topics at either end."""
    by_system = _gains(table, results, setup)
    rows = [["system", "topics above QL", "below", "paper: above", "below"]]
    papers = (WINS[table.collections[0]], ("-", "-"))
    for (name, values), paper in zip(by_system.items(), papers, strict=True):
        counts = (sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1))
        rows.append([name, *map(str, (*counts, *paper))])
    texts = {t.query_id: t.text for t in setup.collection(table.collections[0]).topics}
    ordered = list(next(iter(by_system.values())).items())
    listed = [["topic", "", "AP - AP of QL"]]
    for query_id, gain in dict([*ordered[:EXTREMES], *ordered[-EXTREMES:]]).items():
        listed.append([query_id, texts.get(query_id, ""), f"{gain:+.3f}"])
    return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"


# Pictures

SIZES = {"bars": (12.0, 4.0), "reliability": (12.0, 5.4)}  # Inches; the others are (6, 4)


def draw(path: Path, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Write the table's figure as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZES.get(table.figure, (6, 4)))
    FIGURES[table.figure](figure, table, results, setup)
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    write_bytes(path, content.getvalue())


def depths(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by depth, a line per year."""
    axes = figure.subplots()
    for name in table.collections:
        values = [mean_of(results_of(system, results, name), "AP") for system in table.systems]
        points = [(depth, ap) for depth, ap in enumerate(values) if ap is not None]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", label=titled(name))
    if not axes.lines:
        raise DataError("found no result with judgments, expected some to draw")
    axes.set_xticks(range(len(table.systems)))
    axes.set(xlabel="convolutional layers N", ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def curves(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """AP by α, a line per collection of questions."""
    axes = figure.subplots()
    for name, curve in curves_of(results).items():
        axes.plot(list(curve), list(curve.values()), marker=".", label=name)
    axes.set(xlabel="α", ylabel="AP")
    axes.grid(axis="y", alpha=0.3)
    axes.legend()


def bars(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Two bars per topic, by decreasing gain of MP-HCNN."""
    axes = figure.subplots()
    by_system = _gains(table, results, setup)
    for shift, (name, values) in zip((-0.2, 0.2), by_system.items(), strict=True):
        positions = [place + shift for place in range(len(values))]
        axes.bar(positions, list(values.values()), 0.4, label=name)
    axes.axhline(0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(values)), list(values), rotation=90, fontsize=7)
    axes.set_xlim(-1, len(values))
    axes.set(xlabel=f"topics of {table.collections[0]}", ylabel="AP - AP of QL")
    axes.legend()


def reliability(figure: Any, table: Table, results: Sequence[Result], setup: Setup) -> None:
    """Share of relevant posts by their probability: a panel per system, a line per collection."""
    systems = [s for s in table.systems if any(curves_of(results_of(s, results)))]
    for axes, system in zip(figure.subplots(1, len(systems), sharey=True), systems, strict=True):
        axes.plot([0, 1], [0, 1], color="0.7", linestyle="--", label="right")
        for name in table.collections:
            bins = curves_of(results_of(system, results, name))
            x, y, pairs = (list(bins[key].values()) for key in ("probability", "relevant", "pairs"))
            (line,) = axes.plot(x, y, linewidth=1, label=name)
            axes.scatter(x, y, [4 * count**0.35 for count in pairs], color=line.get_color())
        axes.set(title=system.name, xlabel="probability", aspect="equal")
        axes.set(xlim=(-0.02, 1.02), ylim=(-0.02, 1.02))
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("share of relevant posts")
    figure.legend(*axes.get_legend_handles_labels(), loc="lower center", ncols=5)


REPORTS: Mapping[str, Report] = {f.__name__: f for f in (statistics, gains)}
FIGURES: Mapping[str, Draw] = {f.__name__: f for f in (depths, curves, bars, reliability)}
