"""Tables 2, 3 and 4 and Figure 2 of Rao et al. (AAAI 2019)."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import ClassVar

from experiments.cells import Result, Setup
from experiments.systems import (
    ABLATIONS,
    DEPTHS,
    FORMS,
    MP_HCNN,
    NEURAL,
    NON_NEURAL,
    PUBLISHED_MP_HCNN,
    QL,
    YEARS,
    System,
    read_published,
)
from experiments.tables.base import (
    ResultTable,
    Table,
    markdown_table,
    mean_of,
    results_of,
    save_figure,
    shown,
    titled,
)
from experiments.tables.significance import marked
from pipeline.collections import named
from pipeline.collections.collection import Collection, default_vectors
from pipeline.collections.trec import read_run
from pipeline.command.errors import DataError
from rerankers.text.vectors import read_vectors
from rerankers.text.words import words


class Statistics(Table):
    """Table 2: sizes of the collections, the paper's in parentheses."""

    systems = (QL,)
    collections = YEARS

    def default_collections(self, data: Path | None) -> Sequence[str]:
        """The years whose files are here."""
        return [name for name in self.collections if not named.find(name, data).missing()]

    def report(self, results: Sequence[Result], setup: Setup) -> str:
        """A row per number, a column per year."""
        published = read_published("rao2019_table2")
        present = [result.cell.collection for result in results]
        known = set(read_vectors(setup.vectors or default_vectors(setup.data)).words)
        counts = {name: _count(setup.collection(name), known) for name in present}
        rows = [["", *present]]
        for what, figures in published.items():
            row = [what]
            for name in present:
                (paper,) = figures[name]
                row.append(f"{shown(counts[name][what], ',')} ({paper:,.0f})")
            rows.append(row)
        return f"{markdown_table(rows)}\n\n{STATISTICS_NOTES}"


STATISTICS_NOTES = """\
Counted over the topics and pairs of the official QL run: relevant documents are those among the
candidates; words are distinct ones of the candidates, read as the models read them; OOV words are
those without a GloVe vector here; URLs and hashtags count pairs whose post has one. The paper does
not say how it counts. Topics, pairs and URLs come out the same, hashtags within 2 %. The paper has
fewer than half of the words, and no way to read them that was tried gives both its words and its
OOV words. Relevant documents of 2012 and 2013 are within 2 % of what the paper has for 2013 and
2012, as if these had changed places; those of 2011 are 7 % more."""

_HASHTAG = re.compile(r"(?:^|\s)##?\s?\w")


def _count(collection: Collection, known: set[str]) -> dict[str, int | None]:
    run, qrels = read_run(collection.runs["ql"]), collection.qrels
    posts = {post.doc_id: post for post in collection.posts()}
    pairs = [(query_id, posts[doc_id]) for query_id, scores in run.items() for doc_id in scores]
    found = {word for _, post in pairs for word in words(post.text)}
    relevant = None
    if qrels is not None:
        relevant = sum(qrels.get(query_id, {}).get(post.doc_id, 0) > 0 for query_id, post in pairs)
    return {
        "topics": len(run),
        "query-document pairs": len(pairs),
        "relevant documents": relevant,
        "unique words": len(found),
        "unique OOV words": len(found - known),
        "URLs": sum(bool(post.url) for _, post in pairs),
        "hashtags": sum(bool(_HASHTAG.search(post.text)) for _, post in pairs),
    }


TEST = (
    "by Fisher's two-sided paired randomization test over topics, p < .05, without correction for "
    "the number of comparisons, as in the paper; the paper's figures are in parentheses"
)
SUPERSCRIPTS = {"QL": "¹", "RM3": "²", "LambdaMART (all)": "³"}
"""Marks of systems that are significantly worse than the row's."""

WORSE = "★"
"""Mark of a figure that is significantly below MP-HCNN's."""


class MicroblogTable(ResultTable):
    """A row per system: AP and P@30 of each year, the paper's figures in parentheses.

    All systems are tested against the ``references``.
    """

    collections = YEARS
    only_judged = True
    references: Sequence[str]

    @abstractmethod
    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """The rows below the header."""

    def markdown(self, results: Sequence[Result]) -> str:
        """Header and rows."""
        names = self.present(results)
        columns = [
            f"{titled(name)} {measure}" for name in names for measure in named.find(name).measures
        ]
        return markdown_table([["", "system", *columns, "seeds"], *self.rows(results, names)])

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results with marks of significance."""
        return marked(results, self.references, setup)


class Systems(MicroblogTable):
    """Table 3: baselines, neural models, their mixtures with query likelihood, MP-HCNN.

    "(paper)" is a model as the paper trains it, "(ours)" this project's form of it.
    """

    systems = (*NON_NEURAL, *NEURAL, *PUBLISHED_MP_HCNN, MP_HCNN)
    seeds = 3
    references = tuple(SUPERSCRIPTS)
    notes = f"¹²³: significantly better than QL, RM3 and LambdaMART (all), {TEST}."

    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """The paper's four blocks."""
        blocks: list[tuple[str, Sequence[System], Sequence[bool]]] = [
            ("Non-neural baselines", NON_NEURAL, [False]),
            ("Neural baselines", NEURAL, [False]),
            ("Neural baselines with interpolation", NEURAL, [True]),
            ("MP-HCNN", [*PUBLISHED_MP_HCNN, MP_HCNN], [False, True]),
        ]
        rows: list[list[str]] = []
        for title, block, is_mixture in blocks:
            rows.append(["", f"**{title}**", *[""] * (2 * len(names) + 1)])
            for system, is_mixed in product(block, is_mixture):
                row = _row(system, results, names, is_mixed)
                rows.append([SUPERSCRIPTS.get(system.name, ""), *row])
        return rows


class Ablations(MicroblogTable):
    """Table 4: our form of MP-HCNN without one of its parts."""

    systems = (QL, MP_HCNN, *ABLATIONS)
    references = (MP_HCNN.name,)
    notes = f"{WORSE}: significantly worse than MP-HCNN, {TEST}."

    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """QL, the whole model, and the model without each part."""
        return [["", *_row(system, results, names)] for system in self.systems]


def _row(
    system: System, results: Sequence[Result], names: Sequence[str], is_mixture: bool = False
) -> list[str]:
    """The system's name, its mean figures on each collection, and the number of seeds."""
    row = [system.mixture if is_mixture else system.name]
    published = system.interpolated if is_mixture else system.published
    for name in names:
        found = results_of(system, results, name)
        for place, measure in enumerate(named.find(name).measures):
            value = mean_of(found, measure, is_mixture=is_mixture)
            text = shown(value)
            if value is not None:
                text += _marks(found[0], measure, is_mixture)
            if name in published:
                text += f" ({published[name][place]:.4f})"
            row.append(text)
    seeds = {len(found) for name in names if (found := results_of(system, results, name))}
    return [*row, " to ".join(map(str, sorted(seeds)[:: max(1, len(seeds) - 1)])) or "-"]


def _marks(result: Result, measure: str, is_mixture: bool) -> str:
    better_than = result.mixture_better_than if is_mixture else result.better_than
    superscript = "".join(SUPERSCRIPTS.get(name, "") for name in better_than.get(measure, ()))
    is_worse = not is_mixture and MP_HCNN.name in result.worse_than.get(measure, ())
    return superscript + WORSE * is_worse


class Forms(Ablations):
    """Our form of MP-HCNN with one choice of the paper each, and the published forms."""

    systems = (MP_HCNN, *FORMS, *PUBLISHED_MP_HCNN)


class Depths(ResultTable):
    """Figure 2: AP of our form by depth; the paper has it as a picture only."""

    systems = DEPTHS
    collections = YEARS
    only_judged = True
    has_figure: ClassVar[bool] = True

    def present(self, results: Sequence[Result]) -> list[str]:
        """Collections of the results with judgments."""
        return super().present([result for result in results if result.measures])

    def markdown(self, results: Sequence[Result]) -> str:
        """AP of MP-HCNN alone, a row per depth, a column per year."""
        names = self.present(results)
        rows = [["N", *map(titled, names)]]
        for depth, system in enumerate(self.systems):
            values = [mean_of(results_of(system, results, name), "AP") for name in names]
            rows.append([str(depth), *map(shown, values)])
        return markdown_table(rows)

    def draw(self, path: Path, results: Sequence[Result], setup: Setup) -> None:
        """A line per year. Raises DataError if there is none."""
        from matplotlib.figure import Figure

        if not (names := self.present(results)):
            raise DataError("found no result with judgments, expected some to draw")
        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
        for name in names:
            values = [mean_of(results_of(system, results, name), "AP") for system in self.systems]
            points = [(depth, ap) for depth, ap in enumerate(values) if ap is not None]
            axes.plot(*zip(*points, strict=True), marker="o", label=name)
        axes.set_xticks(range(len(self.systems)))
        axes.set_xlabel("convolutional layers N")
        axes.set_ylabel("AP")
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        save_figure(figure, path)
