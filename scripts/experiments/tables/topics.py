"""Figures 3 and 4 of Rao et al. (AAAI 2019): topic by topic, what MP-HCNN gains over QL."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from experiments.cells import Result
from experiments.published import mp_hcnn
from experiments.tables.contract import Table, Workshop, markdown_table
from experiments.tables.gains import gains_of
from experiments.tables.pictures import save

EXTREMES = 5
"""Topics that are listed at either end."""


@dataclass(frozen=True)
class Topics(Table):
    """The gains of one year, and how many topics win and lose."""

    name: str
    draws: ClassVar[bool] = True
    systems = (mp_hcnn.QL, mp_hcnn.MP_HCNN)

    def __post_init__(self) -> None:
        """The one year is all that there is."""
        object.__setattr__(self, "collections", (self.name,))

    def report(self, results: Sequence[Result], workshop: Workshop) -> str:
        """Wins and losses beside the paper's, and the topics at either end."""
        gains = gains_of(self.name, results, workshop)
        rows = [["system", "topics above QL", "below", "paper: above", "below"]]
        for name, values in gains.by_system.items():
            above, below = (sum(sign * gain > 0 for gain in values.values()) for sign in (1, -1))
            printed = mp_hcnn.WINS.get(self.name) if name == mp_hcnn.MP_HCNN.name else None
            rows.append([name, str(above), str(below), *map(str, printed or ("-", "-"))])
        texts = {topic.query_id: topic.text for topic in gains.collection.topics}
        order = gains.order()
        listed = [["topic", "", "AP - AP of QL"]]
        for query_id in dict.fromkeys([*order[:EXTREMES], *order[-EXTREMES:]]):
            listed.append([query_id, texts.get(query_id, ""), f"{gains.neural[query_id]:+.3f}"])
        return f"{markdown_table(rows)}\n\n{markdown_table(listed)}"

    def draw(self, path: Path, results: Sequence[Result], workshop: Workshop) -> None:
        """Bars for each topic, the largest gain of MP-HCNN first."""
        from matplotlib.figure import Figure

        gains = gains_of(self.name, results, workshop)
        order = gains.order()
        figure = Figure(figsize=(12, 4))
        axes = figure.subplots()
        for shift, (name, values) in zip((-0.2, 0.2), gains.by_system.items(), strict=True):
            places = [place + shift for place in range(len(order))]
            axes.bar(places, [values[query_id] for query_id in order], 0.4, label=name)
        axes.axhline(0, color="black", linewidth=0.8)
        axes.set_xticks(range(len(order)), order, rotation=90, fontsize=7)
        axes.set_xlim(-1, len(order))
        axes.set_xlabel(f"topics of {self.name}")
        axes.set_ylabel("AP - AP of QL")
        axes.legend()
        save(figure, path)
