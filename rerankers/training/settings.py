"""How to train a reranker; none of it is needed to score."""

from dataclasses import dataclass

from rerankers.errors import RerankerError

LOSSES = ("listwise", "pairwise", "pointwise")
OPTIMIZERS = ("adamw", "adadelta", "adagrad", "rmsprop", "sgd")
SAMPLINGS = ("random", "max", "mix", "corrupted", "pairs")
SELECTIONS = ("map", "mrr", "loss")


@dataclass(frozen=True)
class Settings:
    """How to train; a model declares its own defaults."""

    loss: str = "listwise"
    """``listwise``, ``pairwise`` (hinge) or ``pointwise`` (cross-entropy)."""
    margin: float = 1.0
    """By how much the pairwise loss wants a positive to be ahead."""
    optimizer: str = "adamw"
    """``adamw``, ``adadelta``, ``adagrad``, ``rmsprop`` or ``sgd`` (Nesterov momentum 0.9)."""
    learning_rate: float = 2e-3
    """At the first step; falls linearly to a tenth at the last."""
    weight_decay: float = 1e-3
    """L2 penalty (decoupled for AdamW)."""
    epochs: int = 12
    """At most so many."""
    steps: int = 50
    """Steps an epoch; validation comes after each."""
    sampling: str = "random"
    """Where a list's negatives come from: ``random``, ``max`` (the topic's most similar to the
    positive by the last epoch's model), ``mix`` (half of each) or ``corrupted`` (posts of other
    topics). ``pairs`` makes no lists: a step sees the next pairs of a shuffled pass."""
    batch_topics: int = 12
    """Topics in a step."""
    positives: int = 3
    """Relevant posts drawn for each topic of a step."""
    negatives: int = 7
    """Negatives for each relevant post."""
    batch_pairs: int = 50
    """Pairs in a step of the sampling ``pairs``."""
    patience: int = 4
    """Epochs without a better validation figure before stopping."""
    select: str = "map"
    """What decides the best epoch: validation ``map``, ``mrr`` or ``loss``."""
    seed: int = 1
    """Of every random choice."""

    def __post_init__(self) -> None:
        """Refuse words that mean nothing here, and combinations that cannot be."""
        problems = [
            f"setting {name}: found {getattr(self, name)!r}, expected one of {', '.join(choices)}"
            for name, choices in (
                ("loss", LOSSES), ("optimizer", OPTIMIZERS), ("sampling", SAMPLINGS),
                ("select", SELECTIONS),
            )
            if getattr(self, name) not in choices
        ]  # fmt: skip
        if self.sampling == "pairs" and self.loss != "pointwise":
            problems.append(
                f"setting sampling: found pairs with the loss {self.loss}, which compares the "
                "posts of a list; expected the loss pointwise, or another sampling"
            )
        if problems:
            raise RerankerError("\n".join(problems))
