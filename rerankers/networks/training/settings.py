"""Training settings of a reranker; scoring does not need them."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

from rerankers.errors import RerankerError

# No epochs: what is not trained step by step.
_FROM_ZERO = {"epochs", "momentum", "clipping", "weight_decay", "steps", "seed"}


def _one_of(*choices: str) -> Any:
    """A setting with named values, the first of them by default."""
    return field(default=choices[0], metadata={"choices": choices})


@dataclass(frozen=True)
class Settings:
    """How to train; each model declares its own defaults."""

    loss: str = _one_of("listwise", "pairwise", "pointwise")
    """``listwise``, ``pairwise`` (hinge, with margin 1) or ``pointwise`` (cross-entropy)."""
    optimizer: str = _one_of("adamw", "adadelta", "adagrad", "rmsprop", "sgd")
    momentum: float = 0.9  # Nesterov momentum of ``sgd``
    learning_rate: float = 2e-3  # Of the first step
    schedule: str = _one_of("linear", "constant", "plateau")
    """Learning rate: ``linear``, falls to a tenth over all epochs; ``constant``; ``plateau``,
    halved after epochs without a better validation figure."""
    halve_after: int = 1
    """Epochs in a row without a better validation figure after which ``plateau`` halves."""
    clipping: float = 5.0
    """Euclidean norm to which the gradients of a step are clipped; 0 clips nothing."""
    weight_decay: float = 1e-3  # L2 penalty (decoupled for AdamW)
    epochs: int = 12  # Maximum number of epochs
    steps: int = 50
    """Steps an epoch, after which follows validation; 0: one pass, over all pairs with the sampling
    ``pairs``, else over all relevant posts, with ``positives`` 1."""
    sampling: str = _one_of("random", "max", "mix", "corrupted", "pairs")
    """Negatives: ``random``; ``max``, the topic's most similar to the positive by the last epoch's
    model; ``mix``, half of each; ``corrupted``, posts of other topics. With ``pairs`` a step takes
    the next pairs of a shuffled pass, without lists of topics."""
    batch_topics: int = 12  # Topics in a step
    positives: int = 3  # Relevant posts drawn for each topic of a step
    negatives: int = 7  # Negatives for each relevant post
    batch_pairs: int = 50  # Pairs in a step of the sampling ``pairs``
    patience: int = 4  # Epochs without a better validation figure before stopping
    select: str = _one_of("map", "mrr", "loss")
    """Validation figure that chooses the best epoch: ``map``, ``mrr`` or ``loss``."""
    precision: str = _one_of("fp32", "bf16")
    """Number format of the products in MP-HCNN's trained convolutions: ``fp32``, or ``bf16``, up to
    three times as fast; weights and all else stay in single precision."""
    held_out: float = 0.15
    """Share of the topics that a single fold holds out (MP-HCNN's authors' code: 15 %)."""
    held_out_of: str = _one_of("all", "each")
    """The share is one of ``all`` topics, or of the topics of ``each`` collection."""
    seed: int = 1  # Seed of every random choice

    def __post_init__(self) -> None:
        """Raise RerankerError naming every unknown choice and impossible combination."""
        problems = []
        for name, choices in ((each.name, each.metadata.get("choices")) for each in fields(self)):
            value = getattr(self, name)
            if choices:
                is_right, expected = value in choices, f"one of {', '.join(choices)}"
            elif name == "held_out":
                is_right, expected = 0 < value < 1, "a share in (0, 1)"
            elif name in _FROM_ZERO:
                is_right, expected = 0 <= value < math.inf, "a number of at least 0"
            else:
                is_right, expected = 0 < value < math.inf, "a number above 0"
            if not is_right:
                problems.append(f"setting {name}: found {value!r}, expected {expected}")
        if self.sampling == "pairs" and self.loss != "pointwise":
            problems.append(
                f"setting sampling: found pairs with the loss {self.loss}, which compares the "
                "posts of a list; expected the loss pointwise, or another sampling"
            )
        if not self.steps and self.sampling != "pairs" and self.positives != 1:
            problems.append(
                f"setting steps: found 0, one pass over all relevant posts, with "
                f"{self.positives} of them in a list; expected `positives` 1, or a number of steps"
            )
        if problems:
            raise RerankerError("\n".join(problems))


RAO_2019 = Settings(
    loss="pointwise",
    sampling="pairs",
    batch_pairs=256,
    steps=0,
    epochs=15,
    patience=4,
    optimizer="sgd",
    momentum=0.0,
    weight_decay=0.0,
    clipping=0.0,
    learning_rate=0.05,
    schedule="constant",
    select="loss",
    held_out=0.1,
)
"""MP-HCNN and all neural baselines in Rao et al. (2019), section 4.3.

The paper says nothing of momentum, decay, clipping and an end of training, but that it usually
converges in 10 epochs; the authors' code of MP-HCNN takes at most 15, and stops after 4 without a
lower loss.
"""

RAO_2016 = replace(
    RAO_2019,
    batch_pairs=1,
    epochs=10,
    patience=3,
    learning_rate=1e-3,
    weight_decay=1e-4,
    select="mrr",
    held_out=0.15,
)
"""MP-CNN in Rao et al. (2016); the size of a batch is that of the authors' code."""

OF_ANSWERS = Settings(
    loss="pairwise",
    learning_rate=1e-3,
    weight_decay=1e-4,
    positives=1,
    negatives=8,
    steps=40,
    patience=5,
    select="mrr",
)
"""This project's, for a few hundred answers: lists of one right answer and others."""
