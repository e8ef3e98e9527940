"""What MP-HCNN gains over query likelihood on each topic of a year."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.cells import Result
from experiments.published import mp_hcnn
from experiments.tables.contract import Workshop, results_of
from experiments.tables.marks import mixture_values_of, values_of
from pipeline.collections import named as test_collections
from pipeline.collections.collection import Collection
from pipeline.collections.trec import Qrels
from pipeline.command.errors import DataError
from pipeline.evaluation.measures import Evaluator

MIXTURE = f"{mp_hcnn.MP_HCNN.name}+"


@dataclass(frozen=True)
class Gains:
    """Of one year.

    Attributes:
        collection: the year.
        qrels: its judgments.
        by_system: MP-HCNN and MP-HCNN+ -> query_id -> AP minus AP of QL.
    """

    collection: Collection
    qrels: Qrels
    by_system: Mapping[str, Mapping[str, float]]

    @property
    def neural(self) -> Mapping[str, float]:
        """query_id -> what MP-HCNN alone gains."""
        return self.by_system[mp_hcnn.MP_HCNN.name]

    def order(self) -> list[str]:
        """The topics, those with the largest gain of MP-HCNN first."""
        return sorted(self.neural, key=self.neural.__getitem__, reverse=True)


def gains_of(name: str, results: Sequence[Result], workshop: Workshop) -> Gains:
    """The gains on the collection ``name``.

    Raises:
        DataError: there are no judgments, or one of the two systems has no finished cell.
    """
    collection = test_collections.find(name, workshop.data)
    qrels = collection.qrels
    if qrels is None:
        raise DataError(collection.missing_judgments)
    ours = results_of(mp_hcnn.MP_HCNN, results, name)
    base = results_of(mp_hcnn.QL, results, name)
    if not ours or not base:
        raise DataError(f"{name}: there is no finished cell of MP-HCNN and of QL to compare")
    evaluator = Evaluator(qrels, ["AP"])
    reference = values_of(base, evaluator, workshop)["AP"]
    systems = {mp_hcnn.MP_HCNN.name: values_of(ours, evaluator, workshop)}
    if mixture := mixture_values_of(ours, evaluator, workshop):
        systems[MIXTURE] = mixture
    by_system = {
        system: dict(zip(evaluator.query_ids, (values["AP"] - reference).tolist(), strict=True))
        for system, values in systems.items()
    }
    return Gains(collection, qrels, by_system)
