"""Settings of training. Scoring does not need them."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tweetrerank.rerankers.settings import Checked, above_zero, at_least, one_of


@dataclass(frozen=True)
class Settings(Checked):
    """How to train a model. Each model declares its own defaults."""

    loss: str = one_of("listwise", "pairwise", "pointwise")
    """Loss: ``listwise``, ``pairwise`` (hinge with margin 1) or ``pointwise``
    (cross-entropy)."""
    optimizer: str = one_of(
        "adamw",
        "adadelta",
        "adagrad",
        "rmsprop",
        "sgd",
    )
    momentum: float = at_least(0, 0.9)  # Nesterov momentum of ``sgd``
    learning_rate: float = above_zero(2e-3)  # Rate of the first step
    schedule: str = one_of("linear", "constant", "plateau")
    """How the learning rate changes. ``linear`` lets it fall to a tenth over all
    epochs, ``constant`` keeps it, and ``plateau`` halves it after epochs without a
    better validation figure."""
    halve_after: int = at_least(1, 1)
    """Number of epochs in a row without a better validation figure after which
    ``plateau`` halves the rate."""
    clipping: float = at_least(0, 5.0)
    """Limit of the Euclidean norm of a step's gradients. 0 means no limit."""
    weight_decay: float = at_least(0, 1e-3)  # L2 penalty (decoupled for AdamW)
    epochs: int = at_least(0, 12)  # Maximum number; 0 for a model without steps
    steps: int = at_least(0, 50)
    """Number of steps in an epoch, after which the model is validated. 0 means one
    pass: over all pairs with the sampling ``pairs``, otherwise over all relevant posts,
    and then ``positives`` must be 1."""
    sampling: str = one_of(
        "random",
        "max",
        "mix",
        "corrupted",
        "pairs",
    )
    """Where the negatives of a step come from. ``random`` draws them from the topic.
    ``max`` takes those of the topic that are most similar to the positive by the model
    of the last epoch, and ``mix`` takes half of each kind. ``corrupted`` takes posts of
    other topics. With ``pairs``, a step takes the next pairs of a shuffled pass,
    without lists of topics."""
    batch_topics: int = at_least(1, 12)  # Topics in a step
    positives: int = at_least(1, 3)  # Relevant posts drawn for each topic of a step
    negatives: int = at_least(1, 7)  # Negatives for each relevant post
    batch_pairs: int = at_least(1, 50)  # Pairs in a step of the sampling ``pairs``
    patience: int = at_least(1, 4)
    """Number of epochs without a better validation figure after which training
    stops."""
    select: str = one_of("map", "mrr", "loss")
    """The validation figure that selects the best epoch: ``map``, ``mrr`` or
    ``loss``."""
    precision: str = one_of("fp32", "bf16")
    """Number format of the products in MP-HCNN's trained convolutions. ``bf16`` is up
    to three times as fast as ``fp32`` on processors that support it. All other numbers
    are in single precision."""
    held_out: float = 0.15
    """Share of the topics that a single fold holds out (15 % in the code of MP-HCNN's
    authors)."""
    held_out_of: str = one_of("all", "each")
    """Whether the share is one of ``all`` topics together, or of the topics of ``each``
    collection."""
    seed: int = at_least(0, 1)  # Seed of every random choice

    def problems(self) -> Iterator[str]:
        """Yield a message for each impossible value and combination of values."""
        yield from super().problems()
        if not 0 < self.held_out < 1:
            yield (
                f"setting held_out: found {self.held_out!r}, expected a share in (0, 1)"
            )
        if self.sampling == "pairs" and self.loss != "pointwise":
            yield (
                f"setting sampling: found pairs with the loss {self.loss}, which "
                "compares the posts of a list; expected the loss pointwise, or another "
                "sampling"
            )
        if not self.steps and self.sampling != "pairs" and self.positives != 1:
            yield (
                "setting steps: found 0, one pass over all relevant posts, with "
                f"{self.positives} of them in a list; expected `positives` 1, or a "
                "number of steps"
            )


OF_PAIRS = Settings(loss="pointwise", sampling="pairs", weight_decay=1e-4)
"""Settings for the cross-entropy of single pairs."""

HINGE = Settings(
    loss="pairwise",
    learning_rate=1e-2,
    weight_decay=1e-4,
    epochs=20,
    patience=5,
)
"""Settings for the hinge loss of DRMM and K-NRM. Its margin is 1, but it is over lists
instead of triples."""

RAO_2019 = replace(
    OF_PAIRS,
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
"""Settings of MP-HCNN and all neural baselines in Rao et al. (2019), section 4.3. The
paper does not mention momentum, decay, clipping or when training ends, only that it
usually converges in 10 epochs. The authors' code of MP-HCNN trains for at most 15
epochs, and stops after 4 epochs without a lower loss."""

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
"""Settings of MP-CNN in Rao et al. (2016). The batch size is that of the authors'
code."""

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
"""This project's settings for collections of a few hundred answers. Each list has one
right answer and several others."""
