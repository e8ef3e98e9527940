"""Tables and figures, one file a family; ``scripts/reproduce.py`` prints them.

They are the papers' and those of the learned fusion. Every one says which cells it needs, and shows
their results as Markdown; some draw. What :func:`experiments.tables.results.write_csv` keeps is enough
for all that a :class:`ResultTable` shows.
"""

from experiments.published import answer_selection
from experiments.tables.contract import ResultTable, Table
from experiments.tables.depths import Depths
from experiments.tables.evidence import Categories
from experiments.tables.families import Families
from experiments.tables.means import Means, Sampling
from experiments.tables.samples import Samples
from experiments.tables.stages import Stages
from experiments.tables.statistics import Statistics
from experiments.tables.systems import Ablations, Systems
from experiments.tables.topics import Topics

__all__ = ["MP_HCNN", "TABLES", "ResultTable", "Table"]

MP_HCNN: dict[str, Table] = {
    "table2": Statistics(),
    "table3": Systems(),
    "table4": Ablations(),
    "table5": Categories(),
    "table6": Samples(),
    "figure2": Depths(),
    "figure3": Topics("mb2011"),
    "figure4": Topics("mb2012"),
}
"""Those of Rao et al. (AAAI 2019), by their numbers."""

TABLES: dict[str, Table] = {
    "answer-selection": Means(answer_selection.ANSWER_SELECTION, answer_selection.ANSWERS, 3),
    "sampling": Sampling(answer_selection.SAMPLING, answer_selection.ANSWERS[:1], 3),
    "microblog": Means(answer_selection.MICROBLOG, answer_selection.YEARS, 1),
    "fusion": Stages(),
    "fusion-ablation": Families(),
    **MP_HCNN,
}
