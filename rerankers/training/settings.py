"""Training settings of a reranker; scoring does not need them."""

from dataclasses import dataclass

from rerankers.errors import RerankerError

LOSSES = ("listwise", "pairwise", "pointwise")
OPTIMIZERS = ("adamw", "adadelta", "adagrad", "rmsprop", "sgd")
SAMPLINGS = ("random", "max", "mix", "corrupted", "pairs")
SELECTIONS = ("map", "mrr", "loss")


@dataclass(frozen=True)
class Settings:
    """How to train; each model declares its own defaults."""

    loss: str = "listwise"
    """``listwise``, ``pairwise`` (hinge) or ``pointwise`` (cross-entropy)."""
    margin: float = 1.0
    """Margin of the pairwise loss."""
    optimizer: str = "adamw"
    """``adamw``, ``adadelta``, ``adagrad``, ``rmsprop`` or ``sgd`` (Nesterov momentum 0.9)."""
    learning_rate: float = 2e-3
    """Of the first step; falls linearly to a tenth."""
    weight_decay: float = 1e-3
    """L2 penalty (decoupled for AdamW)."""
    epochs: int = 12
    """Maximum number of epochs."""
    steps: int = 50
    """Steps an epoch; validation follows each epoch."""
    sampling: str = "random"
    """Negatives: ``random``; ``max``, the topic's most similar to the positive by the last epoch's
    model; ``mix``, half of each; ``corrupted``, posts of other topics. With ``pairs`` a step takes
    the next pairs of a shuffled pass, without lists of topics."""
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
    """Validation figure that chooses the best epoch: ``map``, ``mrr`` or ``loss``."""
    seed: int = 1
    """Seed of every random choice."""

    def __post_init__(self) -> None:
        """Raise RerankerError naming every unknown choice and impossible combination."""
        choices = {
            "loss": LOSSES,
            "optimizer": OPTIMIZERS,
            "sampling": SAMPLINGS,
            "select": SELECTIONS,
        }
        problems = [
            f"setting {name}: found {found!r}, expected one of {', '.join(known)}"
            for name, known in choices.items()
            if (found := getattr(self, name)) not in known
        ]
        if self.sampling == "pairs" and self.loss != "pointwise":
            problems.append(
                f"setting sampling: found pairs with the loss {self.loss}, which compares the "
                "posts of a list; expected the loss pointwise, or another sampling"
            )
        if problems:
            raise RerankerError("\n".join(problems))
