"""The systems of answer selection: their papers' tables, and the same on TREC Microblog."""

from experiments.published.system import System

ANSWERS = ("trecqa-raw", "trecqa-clean", "wikiqa")
YEARS = ("mb2011", "mb2012", "mb2013")
SEEDS = (1, 2, 3)

_POINTWISE = ("--loss", "pointwise", "--sampling", "pairs", "--optimizer", "adamw",
              "--learning-rate", "0.001", "--batch-pairs", "100", "--epochs", "20")  # fmt: skip

# WikiQA has four times the pairs and one in twenty is relevant: at the rates that suit TrecQA
# MP-CNN is at its best after an epoch, and poor.
_SLOWER = {"wikiqa": ("--learning-rate", "0.0003", "--epochs", "30", "--patience", "8")}


def pairwise(sampling: str, negatives: int) -> tuple[str, ...]:
    """Options that train by the triplet hinge loss (Rao et al. 2016, section 3)."""
    return ("--loss", "pairwise", "--sampling", sampling, "--negatives", str(negatives))


ANSWER_SELECTION = (
    System("Bag of words", "bag_of_words", ("--configuration", "plain")),
    System("Bag of words + count", "bag_of_words"),
    System("Bigram", "bigram", ("--configuration", "plain")),
    System("Bigram + count", "bigram", (), {"trecqa-raw": (0.7058, 0.7800)}),
    System("CNTN-V", "cntn"),
    System("SM-CNN", "sm_cnn", (), {"trecqa-raw": (0.7329, 0.7962)}),
    System("MP-CNN (SentLevel)", "mp_cnn", _POINTWISE,
           {"trecqa-raw": (0.762, 0.830), "trecqa-clean": (0.777, 0.836),
            "wikiqa": (0.693, 0.709)}, _SLOWER),
    System("PWIM (WordLevel)", "pwim", _POINTWISE,
           {"trecqa-raw": (0.755, 0.825), "trecqa-clean": (0.738, 0.827),
            "wikiqa": (0.709, 0.723)}),
    System("Pairwise + MP-CNN", "mp_cnn", pairwise("max", 8),
           {"trecqa-raw": (0.780, 0.834), "trecqa-clean": (0.801, 0.877),
            "wikiqa": (0.701, 0.718)}, _SLOWER),
    System("Pairwise + PWIM", "pwim", pairwise("max", 8),
           {"trecqa-raw": (0.764, 0.827), "trecqa-clean": (0.762, 0.854),
            "wikiqa": (0.693, 0.710)}),
    System("MP-HCNN", "mp_hcnn", ("--steps", "10", "--epochs", "40", "--patience", "8")),
)  # fmt: skip
"""Tables 2 of Rao et al. (2016) and 3 of Severyn & Moschitti (2015), and what else is here. The
figures of SM-CNN and of the bigrams are those of the training part without the automatically
labelled questions (TRAIN)."""

SAMPLING = tuple(
    System(f"{label}, {sampling}, {negatives} negatives", model,
           pairwise(sampling, negatives))
    for label, model in (("MP-CNN", "mp_cnn"), ("PWIM", "pwim"))
    for negatives in (6, 8)
    for sampling in ("random", "max", "mix")
)  # fmt: skip
"""Figures 2 and 3 of Rao et al. (2016)."""

MICROBLOG = (
    System("Bag of words + count", "bag_of_words", ("--steps", "200")),
    System("Bigram + count", "bigram", ("--steps", "200")),
    System("CNTN-V", "cntn"),
    System("SM-CNN", "sm_cnn", ("--steps", "20", "--epochs", "60", "--patience", "12")),
    System("MP-CNN", "mp_cnn", ("--select", "map")),
    System("PWIM", "pwim", ("--select", "map")),
)
"""The same models on TREC Microblog, each year left out of training in turn."""
