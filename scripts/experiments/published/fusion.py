"""The learned fusion as systems: its stages, and itself without each family of features.

No paper prints figures of these; the rows and their order are this project's.
"""

from experiments.published.system import System

NEURAL = "signal:sm_cnn"
"""The family that reads the neural score."""

QL_CANDIDATES = "run_ql"
"""The ranker whose posts are the candidates where only one's are."""

WITHOUT = "- "
"""Before the name of a family that is left out."""

NOT_FUSED = "neighbours"
"""The family that the default does without."""


def stages() -> tuple[System, ...]:
    """From the official run to the fusion of everything, each to be compared with the one before.

    Whatever a row does not name is its model's default.
    """
    return (
        System("QL, official run", "run:ql"),
        System("RM3, official run", "run:rm3"),
        System("MP-HCNN and QL, mixed by λ", "shipped:mp_hcnn"),
        _stage("linear fusion of QL's candidates", "linear_fusion", QL_CANDIDATES),
        _stage("fusion of QL's candidates", "fusion", QL_CANDIDATES),
        _stage("fusion of QL's candidates, with SM-CNN", "fusion", QL_CANDIDATES, True),
        _stage("fusion of all rankers' candidates", "fusion"),
        _stage("fusion of all rankers' candidates, with SM-CNN", "fusion", is_neural=True),
        _stage("linear fusion of all rankers' candidates", "linear_fusion"),
    )


def whole() -> System:
    """The fusion with all families but the neural score, measured on held-out training topics."""
    return _held_out("all families", _cheap("fusion"))


def changes() -> tuple[System, ...]:
    """The same with the family that is left out by default, and by the usual objective alone."""
    families, objective = _cheap("fusion"), ("--set", "objectives=lambdarank")
    return (
        _held_out(f"+ {NOT_FUSED}", [*families, NOT_FUSED]),
        _held_out("all families, lambdarank alone", families, objective),
    )


def ablations() -> tuple[System, ...]:
    """The same without each of them."""
    families = _cheap("fusion")
    return tuple(
        _held_out(f"{WITHOUT}{left_out}", [name for name in families if name != left_out])
        for left_out in families
    )


def _stage(name: str, model: str, candidate_rankers: str = "", is_neural: bool = False) -> System:
    families = [*_cheap(model), *([NEURAL] if is_neural else [])]
    limit = ("--set", f"candidate_rankers={candidate_rankers}") if candidate_rankers else ()
    return System(name, model, _set(families) + limit)


def _held_out(name: str, families: list[str], options: tuple[str, ...] = ()) -> System:
    return System(name, "held-out:fusion", _set(families) + options)


def _set(families: list[str]) -> tuple[str, ...]:
    # Said also where they are the default, so that another default is another cell.
    return ("--set", f"families={','.join(families)}")


def _cheap(model: str) -> list[str]:
    """The families of the model's first configuration that wait for no neural score."""
    from rerankers import models

    config = next(iter(models.find(model).configurations.values()))
    return [family for family in config.families.split(",") if family != NEURAL]
