"""Tables 3 and 4 of Rao et al. (AAAI 2019): the systems, and MP-HCNN without its parts."""

import statistics
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments.cells import Result
from experiments.published import mp_hcnn
from experiments.published.system import Figures, System
from experiments.tables.contract import ResultTable, Workshop, judged, markdown_table, results_of
from experiments.tables.marks import marked
from pipeline.collections import named

SUPERSCRIPTS = {"QL": "¹", "RM3": "²", "LambdaMART (all)": "³"}
"""The numbers of the rows that others are compared with."""


TEST = (
    "by Fisher's two-sided paired randomization test over topics, p < .05, without correction for "
    "the number of comparisons, as in the paper; the paper's figures are in parentheses"
)


class MicroblogTable(ResultTable):
    """A row for each system, AP and P@30 of each year, the paper's figures in parentheses."""

    named = mp_hcnn.YEARS

    references: Sequence[str]
    """Systems that the others are tested against."""

    legend: str
    """What the marks mean."""

    def usual(self, data: Path | None) -> Sequence[str]:
        """The years whose judgments are here."""
        return judged(self.collections, data)

    @abstractmethod
    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """The table's rows after its header."""

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """The table, and what its marks mean."""
        return f"{self.markdown(results)}\n\n{self.legend}, {TEST}."

    def markdown(self, results: Sequence[Result]) -> str:
        """Ours and, in parentheses, the paper's."""
        present = {result.cell.collection for result in results}
        names = [name for name in self.collections if name in present]
        header = ["", "system"]
        for name in names:
            header += [f"{name} {measure}" for measure in named.find(name).measures]
        return markdown_table([header, *self.rows(results, names)])

    def finish(self, results: Sequence[Result], workshop: Workshop) -> list[Result]:
        """The results with marks of significance."""
        return marked(results, self.references, workshop)


class Systems(MicroblogTable):
    """Table 3: baselines, neural models, their mixtures with query likelihood, MP-HCNN."""

    systems = (*mp_hcnn.NON_NEURAL, *mp_hcnn.NEURAL, mp_hcnn.MP_HCNN)
    references = tuple(SUPERSCRIPTS)
    legend = "¹²³: significantly better than QL, RM3 and LambdaMART (all)"

    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """The paper's blocks, and its numbers where it has the system."""
        rows: list[list[str]] = []
        blocks = {
            "Non-neural baselines": mp_hcnn.NON_NEURAL,
            "Neural baselines": mp_hcnn.NEURAL,
            "Neural baselines with interpolation": mp_hcnn.NEURAL,
            "MP-HCNN": (mp_hcnn.MP_HCNN,),
        }
        for title, systems in blocks.items():
            rows.append(["", f"**{title}**", *[""] * (2 * len(names))])
            mixed = [title.endswith("interpolation")] if title != "MP-HCNN" else [False, True]
            for system in systems:
                for is_mixture in mixed:
                    number = SUPERSCRIPTS.get(system.name, "")
                    rows.append([number, *_row(system, results, names, is_mixture)])
        return rows


class Ablations(MicroblogTable):
    """Table 4: MP-HCNN without one of its parts; ★ is significantly below the whole."""

    systems = (mp_hcnn.QL, mp_hcnn.MP_HCNN, *mp_hcnn.ABLATIONS)
    references = (mp_hcnn.MP_HCNN.name,)
    legend = "★: significantly worse than MP-HCNN"

    def rows(self, results: Sequence[Result], names: Sequence[str]) -> list[list[str]]:
        """QL, the whole, and what is left without each part."""
        return [["", *_row(system, results, names, False)] for system in self.systems]


def _row(
    system: System, results: Sequence[Result], names: Sequence[str], is_mixture: bool
) -> list[str]:
    """The system's name and its figures on each collection."""
    cells = [f"{system.name}+" if is_mixture else system.name]
    printed = system.interpolated if is_mixture else system.published
    for name in names:
        found = results_of(system, results, name)
        for place, measure in enumerate(named.find(name).measures):
            cells.append(_cell(found, measure, _printed(printed, name, place), is_mixture))
    return cells


def _cell(found: Sequence[Result], measure: str, printed: str, is_mixture: bool) -> str:
    figures: list[Mapping[str, float]] = [
        result.interpolated if is_mixture else result.measures for result in found
    ]
    values = [values[measure] for values in figures if measure in values]
    if not values:
        return f"- {printed}".strip()
    marks = found[0].mixture_better_than if is_mixture else found[0].better_than
    superscript = "".join(SUPERSCRIPTS.get(name, "") for name in marks.get(measure, ()))
    if not is_mixture and mp_hcnn.MP_HCNN.name in found[0].worse_than.get(measure, ()):
        superscript += "★"
    return f"{statistics.mean(values):.4f}{superscript} {printed}".strip()


def _printed(figures: Figures | None, name: str, place: int) -> str:
    return f"({figures[name][place]:.4f})" if figures and name in figures else ""
