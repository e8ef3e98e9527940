"""The systems of the papers, and the stages and ablations of our learned fusion.

``published/`` has the papers' figures, one CSV file per table, rows named as the systems here.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from experiments.cells import Cell
from rerankers import models

YEARS = ("mb2011", "mb2012", "mb2013", "mb2014")
JUDGED_YEARS = YEARS[:3]
ANSWERS = ("trecqa-raw", "trecqa-clean", "wikiqa")

Figures = Mapping[str, tuple[float, ...]]
"""Collection -> the paper's figures, in the order of the collection's measures."""


@dataclass(frozen=True)
class System:
    """One row of a table.

    Attributes:
        name: name of the row.
        model: as in :class:`experiments.cells.Cell`.
        training: options of ``pipeline.train``.
        published: the paper's figures, empty if it has none.
        interpolated: the paper's figures of the mixture with query likelihood.
        adapted: collection -> additional training options, chosen on its development part.
    """

    name: str
    model: str
    training: tuple[str, ...] = ()
    published: Figures | None = None
    interpolated: Figures | None = None
    adapted: Mapping[str, tuple[str, ...]] | None = None

    def cells(self, collections: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """A cell per collection and seed; an official run has the first seed only."""
        if self.model.startswith("run:"):
            seeds = seeds[:1]
        adapted = self.adapted or {}
        return [
            Cell(self.name, self.model, self.training + adapted.get(name, ()), name, seed)
            for name, seed in product(collections, seeds)
        ]


def read_published(table: str) -> dict[str, Figures]:
    """System -> published figures of a table in ``published/``.

    A column is named by collection and measure; an empty field means no published figure.
    """
    found: dict[str, Figures] = {}
    path = Path(__file__).with_name("published") / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            figures: dict[str, tuple[float, ...]] = {}
            for column, value in row.items():
                if column not in ("system", "source") and value:
                    name = column.partition(" ")[0]
                    figures[name] = (*figures.get(name, ()), float(value))
            found[row["system"]] = figures
    return found


# Rao et al. (AAAI 2019): Tables 3 and 4, Figure 2.

_TABLE3, _TABLE4 = read_published("rao2019_table3"), read_published("rao2019_table4")


def _microblog(name: str, model: str, *training: str) -> System:
    return System(name, model, training, _TABLE3.get(name), _TABLE3.get(f"{name}+"))


QL = _microblog("QL", "run:ql")
RM3 = _microblog("RM3", "run:rm3")
LAMBDAMART = _microblog("LambdaMART (all)", "lambdamart")
NON_NEURAL = (
    QL,
    RM3,
    LAMBDAMART,
    _microblog("LambdaMART (text)", "lambdamart", "--configuration", "text"),
    _microblog("LambdaMART (text+URL)", "lambdamart", "--configuration", "text_url"),
    _microblog("LambdaMART (text+hashtag)", "lambdamart", "--configuration", "text_hashtag"),
)
NEURAL = (
    _microblog("DSSM", "dssm"),
    _microblog("C-DSSM", "c_dssm"),
    _microblog("DUET", "duet"),
    _microblog("MatchPyramid", "match_pyramid"),
    _microblog("DRMM", "drmm"),
    _microblog("K-NRM", "knrm"),
    _microblog("Conv-KNRM", "knrm", "--configuration", "conv"),
)

# With five folds the kept model is trained on all training topics.
_ALL_TOPICS = ("--folds", "5")
MP_HCNN = _microblog("MP-HCNN", "mp_hcnn", *_ALL_TOPICS)


def _changed(name: str, *settings: str) -> System:
    """MP-HCNN with changed settings."""
    options = [word for setting in settings for word in ("--set", setting)]
    return System(name, "mp_hcnn", (*_ALL_TOPICS, *options), _TABLE4.get(name))


ABLATIONS = (
    _changed("- mean pooling", "mean_pooling=false"),
    _changed("- max pooling", "max_pooling=false"),
    _changed("- IDF weighting", "idf_weights=false"),
    _changed("- word module", "use_words=false"),
    _changed("- URL char rep.", "use_url_trigrams=false", "url_presence=false"),
    _changed("- doc char rep.", "use_post_trigrams=false"),
    _changed(
        "- char module",
        "use_post_trigrams=false",
        "use_url_trigrams=false",
        "url_presence=false",
    ),
)

# Depth 2 is the default: no setting, so that it shares its cell with MP-HCNN.
DEPTHS = tuple(
    _changed(f"depth {depth}", *([] if depth == 2 else [f"depth={depth}"])) for depth in range(5)
)

# Answer selection: Rao et al. (2016), Table 2; Severyn & Moschitti (2015), Table 3.

_ANSWER_FIGURES = read_published("answer_selection")
_POINTWISE = (
    *("--loss", "pointwise", "--sampling", "pairs", "--optimizer", "adamw"),
    *("--learning-rate", "0.001", "--batch-pairs", "100", "--epochs", "20"),
)

# WikiQA has four times the pairs, and one in twenty is relevant. With the settings for TrecQA,
# MP-CNN peaks after one epoch at a low AP.
_SLOWER = {"wikiqa": ("--learning-rate", "0.0003", "--epochs", "30", "--patience", "8")}


def pairwise(sampling: str, negatives: int) -> tuple[str, ...]:
    """Options of training with the triplet hinge loss (Rao et al. 2016, section 3)."""
    return ("--loss", "pairwise", "--sampling", sampling, "--negatives", str(negatives))


def _answers(
    name: str,
    model: str,
    training: tuple[str, ...] = (),
    adapted: Mapping[str, tuple[str, ...]] | None = None,
) -> System:
    return System(name, model, training, _ANSWER_FIGURES.get(name), adapted=adapted)


ANSWER_SELECTION = (
    _answers("Bag of words", "bag_of_words", ("--configuration", "plain")),
    _answers("Bag of words + count", "bag_of_words"),
    _answers("Bigram", "bigram", ("--configuration", "plain")),
    _answers("Bigram + count", "bigram"),
    _answers("CNTN-V", "cntn"),
    _answers("SM-CNN", "sm_cnn"),
    _answers("MP-CNN (SentLevel)", "mp_cnn", _POINTWISE, _SLOWER),
    _answers("PWIM (WordLevel)", "pwim", _POINTWISE),
    _answers("Pairwise + MP-CNN", "mp_cnn", pairwise("max", 8), _SLOWER),
    _answers("Pairwise + PWIM", "pwim", pairwise("max", 8)),
    _answers("MP-HCNN", "mp_hcnn", ("--steps", "10", "--epochs", "40", "--patience", "8")),
)
"""All trained on TRAIN, without the automatically labelled questions of TRAIN-ALL."""

SAMPLING = tuple(
    System(f"{label}, {sampling}, {negatives} negatives", model, pairwise(sampling, negatives))
    for label, model in (("MP-CNN", "mp_cnn"), ("PWIM", "pwim"))
    for negatives in (6, 8)
    for sampling in ("random", "max", "mix")
)
"""Figures 2 and 3 of Rao et al. (2016)."""

MICROBLOG = (
    System("Bag of words + count", "bag_of_words", ("--steps", "200")),
    System("Bigram + count", "bigram", ("--steps", "200")),
    System("CNTN-V", "cntn"),
    System("SM-CNN", "sm_cnn", ("--steps", "20", "--epochs", "60", "--patience", "12")),
    System("MP-CNN", "mp_cnn", ("--select", "map")),
    System("PWIM", "pwim", ("--select", "map")),
)
"""The models of answer selection on TREC Microblog."""

# The learned fusion; no paper has these rows.

NEURAL_FAMILY = "signal:sm_cnn"
"""Feature family of the neural score."""

QL_CANDIDATES = "run_ql"
"""Candidate ranker of the stages that rank QL's candidates."""

WITHOUT = "- "
"""Prefix of the left-out family in a row's name."""


def _lexical_families(model: str) -> list[str]:
    """Families of the model's first configuration, without the neural score."""
    config = next(iter(models.find(model).configurations.values()))
    return [family for family in config.families.split(",") if family != NEURAL_FAMILY]


def _families(names: Sequence[str]) -> tuple[str, ...]:
    # Always spelled out: a change of the default must give another key.
    return ("--set", f"families={','.join(names)}")


def _stage(name: str, model: str, *, candidates: str = "", is_neural: bool = False) -> System:
    families = [*_lexical_families(model), *([NEURAL_FAMILY] if is_neural else [])]
    limit = ("--set", f"candidate_rankers={candidates}") if candidates else ()
    return System(name, model, _families(families) + limit)


FUSION_STAGES = (
    System("QL, official run", "run:ql"),
    System("RM3, official run", "run:rm3"),
    System("MP-HCNN and QL, mixed by λ", "shipped:mp_hcnn"),
    _stage("linear fusion of QL's candidates", "linear_fusion", candidates=QL_CANDIDATES),
    _stage("fusion of QL's candidates", "fusion", candidates=QL_CANDIDATES),
    _stage(
        "fusion of QL's candidates, with SM-CNN",
        "fusion",
        candidates=QL_CANDIDATES,
        is_neural=True,
    ),
    _stage("fusion of all rankers' candidates", "fusion"),
    _stage("fusion of all rankers' candidates, with SM-CNN", "fusion", is_neural=True),
    _stage("linear fusion of all rankers' candidates", "linear_fusion"),
)
"""From the official run to the full fusion; each row is compared with the one before.

All other settings are the model's defaults.
"""


def _held_out(name: str, families: Sequence[str], *options: str) -> System:
    return System(name, "held-out:fusion", (*_families(families), *options))


_FAMILIES = _lexical_families("fusion")
ALL_FAMILIES = _held_out("all families", _FAMILIES)
"""The fusion with all families but the neural score, on held-out training topics."""

FUSION_ABLATIONS = tuple(
    _held_out(f"{WITHOUT}{left_out}", [name for name in _FAMILIES if name != left_out])
    for left_out in _FAMILIES
)
ONE_OBJECTIVE = _held_out(
    "all families, lambdarank alone", _FAMILIES, "--set", "objectives=lambdarank"
)
"""The fusion's trees by one objective instead of three."""
