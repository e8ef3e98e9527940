"""Tables and figures of the papers and of the learned fusion; ``scripts/reproduce.py`` prints them.

A table names the cells that it needs and shows their results as Markdown; some have a figure.
Those of class :class:`ResultTable` can also be made from a CSV of the results.
"""

from experiments import systems
from experiments.tables.answer_selection import Means
from experiments.tables.base import ResultTable, Table
from experiments.tables.cntn import DrawnAnswers, QuestionRetrieval
from experiments.tables.fusion import Families, Stages
from experiments.tables.mp_hcnn import Ablations, Depths, Forms, Statistics, Systems
from experiments.tables.topics import Categories, Gains, Samples

__all__ = ["MP_HCNN", "TABLES", "ResultTable", "Table"]

MP_HCNN: dict[str, Table] = {
    "table2": Statistics(),
    "table3": Systems(),
    "table4": Ablations(),
    "table5": Categories(),
    "table6": Samples(),
    "figure2": Depths(),
    "figure3": Gains("mb2011"),
    "figure4": Gains("mb2012"),
}
"""Rao et al. (AAAI 2019), by the paper's numbers."""

TABLES: dict[str, Table] = {
    "mp-hcnn-forms": Forms(),
    "answer-selection": Means(systems.ANSWER_SELECTION, systems.ANSWERS, seeds=3),
    "sampling": Means(systems.SAMPLING, ("trecqa-raw", systems.ALL_RAW), seeds=3),
    "cntn": DrawnAnswers(),
    "question-retrieval": QuestionRetrieval(),
    "microblog": Means(systems.MICROBLOG, systems.JUDGED_YEARS),
    "fusion": Stages(),
    "fusion-ablation": Families(),
    **MP_HCNN,
}
