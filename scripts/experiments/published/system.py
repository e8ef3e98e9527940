"""A system of a paper."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.cells import Cell

Figures = Mapping[str, tuple[float, float]]
"""Collection -> what a paper prints, in the order of the collection's measures."""


@dataclass(frozen=True)
class System:
    """A system of the papers.

    Attributes:
        name: row of a table.
        model: name of the reranker, or ``run:NAME`` for an official run, which is only measured.
        training: options of ``pipeline.train``.
        published: the paper's figures.
        adapted: collection -> more options for it alone, chosen on its development part.
        interpolated: the paper's figures of its mixture with query likelihood.
    """

    name: str
    model: str
    training: tuple[str, ...] = ()
    published: Figures | None = None
    adapted: Mapping[str, tuple[str, ...]] | None = None
    interpolated: Figures | None = None

    def cells(self, collections: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """This system on each collection with each seed; an official run has none to choose."""
        adapted = self.adapted or {}
        return [
            Cell(
                self.name, self.model, self.training + adapted.get(collection, ()), collection,
                seed,
            )
            for collection in collections
            for seed in (seeds if not self.model.startswith("run:") else seeds[:1])
        ]  # fmt: skip
