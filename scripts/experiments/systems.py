"""The systems of the papers, and the stages and ablations of our learned fusion.

``published/`` has the papers' figures, one CSV file per table, rows named as the systems here.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

from experiments.cells import OKAPI, Cell
from rerankers import models
from rerankers.models._feature_model import ADAPTED_FAMILY

YEARS = ("mb2011", "mb2012", "mb2013", "mb2014")
JUDGED_YEARS = YEARS
CHOSEN_ON = ("mb2011", "mb2012")
"""Years on whose topics word vectors, families and objectives of the fusion, and parameters of our
searches were chosen, by cross-validation."""

ANSWERS = ("trecqa-raw", "trecqa-clean", "trecqa-all-raw", "trecqa-all-clean", "wikiqa")
CLEAN = {"trecqa-raw": "trecqa-clean", "trecqa-all-raw": "trecqa-all-clean"}
"""Collection -> the one with the same training part and a part of the same test questions."""

Figures = Mapping[str, tuple[float, ...]]
"""Collection -> published figures, in the order of the collection's measures."""


def read_published(table: str) -> dict[str, Figures]:
    """System -> figures of a table in ``published/``.

    A column is named by collection and measure; an empty field means no published figure.
    """
    found: dict[str, dict[str, tuple[float, ...]]] = {}
    path = Path(__file__).with_name("published") / f"{table}.csv"
    with path.open(encoding="utf-8", newline="") as stream:
        for row in csv.DictReader(stream):
            figures = found.setdefault(row["system"], {})
            for column, value in row.items():
                if column not in ("system", "source") and value:
                    name = column.partition(" ")[0]
                    figures[name] = (*figures.get(name, ()), float(value))
    return dict(found)


_PUBLISHED = {
    **read_published("rao2019_table3"),
    **read_published("rao2019_table4"),
    **read_published("answer_selection"),
    **read_published("qiu2015"),
}


PAPER, OURS, AUTHORS = " (paper)", " (ours)", " (authors' code)"
"""Forms of a model, at the end of a row's name: as published; this project's; that of its authors'
code."""


def _without_form(name: str) -> str:
    for form in (PAPER, OURS, AUTHORS):
        name = name.removesuffix(form)
    return name


@dataclass(frozen=True)
class System:
    """One row of a table.

    Attributes:
        name: name of the row; a system with a published one has the same figures.
        model: as in :class:`experiments.cells.Cell`.
        training: options of ``pipeline.train``, separated by spaces.
        adapted: collection -> additional training options, chosen on its development part.
        collections: that it is for; () means all of its tables.
        seeds: at most so many.
    """

    name: str
    model: str
    training: str = ""
    adapted: Mapping[str, str] = field(default_factory=dict)
    collections: Sequence[str] = ()
    seeds: int | None = None

    @property
    def published(self) -> Figures:
        """Published figures."""
        return _PUBLISHED.get(self.name) or _PUBLISHED.get(_without_form(self.name), {})

    @property
    def interpolated(self) -> Figures:
        """Published figures of the mixture with query likelihood."""
        return _PUBLISHED.get(f"{_without_form(self.name)}+", {})

    @property
    def mixture(self) -> str:
        """Name of the row of the mixture with query likelihood."""
        plain = _without_form(self.name)
        return self.name.replace(plain, f"{plain}+", 1)

    def cells(self, collections: Sequence[str], seeds: Sequence[int]) -> list[Cell]:
        """A cell per collection and seed; what is not trained has the first seed only."""
        options = {
            name: (*self.training.split(), *self.adapted.get(name, "").split())
            for name in collections
        }
        names = [name for name in collections if name in (self.collections or collections)]
        cells = [
            Cell(self.name, self.model, options[name], name, seed)
            for name, seed in product(names, seeds[: self.seeds])
        ]
        return [cell for cell in cells if cell.seed == seeds[0] or not cell.is_untrained]


# Rao et al. (AAAI 2019): Tables 3 and 4, Figure 2.

QL = System("QL", "run:ql")
RM3 = System("RM3", "run:rm3")
LAMBDAMART = System("LambdaMART (all)", "lambdamart")
NON_NEURAL = (
    QL,
    RM3,
    LAMBDAMART,
    System("LambdaMART (text)", "lambdamart", "--configuration text"),
    System("LambdaMART (text+URL)", "lambdamart", "--configuration text_url"),
    System("LambdaMART (text+hashtag)", "lambdamart", "--configuration text_hashtag"),
)
# "(paper)" is the baseline in the condition of the paper's section 4.3: vectors trained, unknown
# words from U[0, 0.1], plain gradient descent on all pairs.
_RAO_2019 = "--configuration rao2019"
_BASELINES = {
    "DSSM": "dssm",
    "C-DSSM": "c_dssm",
    "DUET": "duet",
    "MatchPyramid": "match_pyramid",
    "DRMM": "drmm",
    "K-NRM": "knrm",
}
NEURAL = (
    *(
        System(f"{label}{form}", model, training)
        for label, model in _BASELINES.items()
        for form, training in ((PAPER, _RAO_2019), (OURS, ""))
    ),
    System("Conv-KNRM (ours)", "knrm", "--configuration conv"),
)

# With five folds the kept model is trained on all training topics.
MP_HCNN = System("MP-HCNN (ours)", "mp_hcnn", "--folds 5")
PUBLISHED_MP_HCNN = (
    System("MP-HCNN (paper)", "mp_hcnn", "--configuration paper --epochs 6", seeds=1),
    System(
        "MP-HCNN (authors' code)",
        "mp_hcnn",
        "--configuration authors --epochs 6",
        {},
        YEARS[2:3],
        seeds=1,
    ),
)
"""The published forms, whose trainings take hours."""


def _changed(name: str, *settings: str) -> System:
    """MP-HCNN with changed settings."""
    return System(name, "mp_hcnn", " --set ".join([MP_HCNN.training, *settings]))


_NO_URLS = ("use_url_trigrams=false", "url_presence=false")
ABLATIONS = (
    _changed("- mean pooling", "mean_pooling=false"),
    _changed("- max pooling", "max_pooling=false"),
    _changed("- IDF weighting", "idf_weights=false"),
    _changed("- word module", "use_words=false"),
    _changed("- URL char rep.", *_NO_URLS),
    _changed("- doc char rep.", "use_post_trigrams=false"),
    _changed("- char module", "use_post_trigrams=false", *_NO_URLS),
)

# Depth 2 is the default: no setting, so that it shares its cell with MP-HCNN.
DEPTHS = tuple(
    _changed(f"depth {depth}", *([] if depth == 2 else [f"depth={depth}"])) for depth in range(5)
)

# What separates our form of MP-HCNN from the published one, a step at a time.
_SGD = (
    "--loss pointwise --sampling pairs --batch-pairs 256 --steps 0 --epochs 8 --patience 2 "
    "--optimizer sgd --momentum 0 --weight-decay 0 --clipping 0 --learning-rate 0.05 "
    "--schedule constant --select loss"
)
FORMS = (
    System("trained by the paper's settings", "mp_hcnn", f"{MP_HCNN.training} {_SGD}"),
    _changed("dot products", "similarity=dot"),
    _changed("dot products, softmax over the post", "similarity=dot", "normalization=post"),
    _changed("a feature for each query position", "evidence=positions"),
    System(
        "filters trained", "mp_hcnn", "--folds 1 --set train_filters=true", {}, YEARS[2:3], seeds=1
    ),
    System(
        "filters and vectors trained",
        "mp_hcnn",
        "--folds 1 --set train_filters=true --set train_vectors=true",
        {},
        YEARS[2:3],
        seeds=1,
    ),
)

# Answer selection: Rao et al. (2016), Table 2 and Figures 2 and 3; Severyn & Moschitti (2015),
# Tables 2 and 3; Yu et al. (2014). "(paper)" is the published model with its published training;
# "(ours)" is the smaller or otherwise changed form that is this project's default.

ALL_RAW = "trecqa-all-raw"

# Vectors of 50 dimensions (Yu et al., section 4.2; Severyn & Moschitti, section 3.2).
_50 = "--vectors glove.6B.50d.bin.gz "

# TRAIN-ALL has eleven times the pairs of TRAIN. Epochs are longer, so that validation costs less;
# trainings of models whose papers give their length are as many passes over the pairs.
_BILINEAR = {ALL_RAW: "--steps 534"}
_SM_CNN = {ALL_RAW: "--steps 100 --epochs 267 --patience 53"}
_LONG = {ALL_RAW: "--steps 160"}

_POINTWISE = (
    "--loss pointwise --sampling pairs --optimizer adamw --learning-rate 0.001 --batch-pairs 100 "
    "--epochs 20"
)
# The triplet hinge loss (Rao et al. 2016, section 3).
_PAIRWISE = "--loss pairwise --sampling {sampling} --negatives {negatives}"
_MAX_8 = _PAIRWISE.format(sampling="max", negatives=8)

# WikiQA has four times the pairs, and one in twenty is relevant. With the settings for TrecQA,
# MP-CNN peaks after one epoch at a low AP.
_SLOWER = {"wikiqa": "--learning-rate 0.0003 --epochs 30 --patience 8"}

# Ten pairs a step at ten times the rate learn as a pair a step does, in a third of the time.
_MP_CNN = "--configuration paper --batch-pairs 10 --learning-rate 0.01"
# RMSprop's step does not grow with the gradient.
_PWIM = "--configuration paper --batch-pairs 10"
# A step has one relevant answer, as in the paper's code; a pass has as many as are relevant. That
# code adds the losses of the triplets up, and ours takes their mean, at the same rate: at 8 times
# that the loss in training rises after the first pass, with every sampling.
_ONE_ANSWER = "--configuration paper --positives 1 --batch-topics 1 "
_ANSWERS_ONCE = {ALL_RAW: "--steps 6403", "wikiqa": "--steps 1040"}

_LARGE = (ALL_RAW, "wikiqa")
"""Collections on which Rao et al. (2016) trained."""


def _pairwise_mp_cnn(name: str, sampling: str, negatives: int, *collections: str) -> System:
    """The published model, trained with pairs of answers."""
    loss = _PAIRWISE.format(sampling=sampling, negatives=negatives)
    return System(name, "mp_cnn", _ONE_ANSWER + loss, _ANSWERS_ONCE, collections, seeds=1)


ANSWER_SELECTION = (
    System("Word count", "word_count", seeds=1),
    System("Weighted word count", "word_count", "--configuration weighted", seeds=1),
    System("Bag of words (paper)", "bag_of_words", f"{_50}--configuration plain", _BILINEAR),
    System("Bag of words + count (paper)", "bag_of_words", _50.strip(), _BILINEAR),
    System("Bigram (paper)", "bigram", f"{_50}--configuration plain", _BILINEAR),
    System("Bigram + count (paper)", "bigram", _50.strip(), _BILINEAR),
    System("Bag of words (ours)", "bag_of_words", "--configuration plain", _BILINEAR),
    System("Bag of words + count (ours)", "bag_of_words", "", _BILINEAR),
    System("Bigram (ours)", "bigram", "--configuration plain", _BILINEAR),
    System("Bigram + count (ours)", "bigram", "", _BILINEAR),
    System("CNTN-V", "cntn"),
    System("SM-CNN (paper), no overlap", "sm_cnn", f"{_50}--configuration text", _SM_CNN),
    System("SM-CNN (paper)", "sm_cnn", f"{_50}--set prior=false", _SM_CNN),
    System("SM-CNN (ours)", "sm_cnn", "", _SM_CNN),
    System("MP-CNN (paper)", "mp_cnn", _MP_CNN, {}, _LARGE, seeds=1),
    System("MP-CNN (ours)", "mp_cnn", _POINTWISE, _SLOWER | _LONG),
    System("PWIM (paper)", "pwim", _PWIM, {}, _LARGE, seeds=1),
    System("PWIM (ours)", "pwim", _POINTWISE, _LONG),
    _pairwise_mp_cnn("Pairwise MP-CNN (paper)", "max", 8, *_LARGE),
    System("Pairwise MP-CNN (ours)", "mp_cnn", _MAX_8, _SLOWER | _LONG),
    System("Pairwise PWIM (paper)", "pwim", _ONE_ANSWER + _MAX_8, _ANSWERS_ONCE, _LARGE, seeds=1),
    System("Pairwise PWIM (ours)", "pwim", _MAX_8, _LONG),
    System("MP-HCNN (ours)", "mp_hcnn", "--steps 10 --epochs 40 --patience 8", _LONG),
)
SAMPLING = (
    *(
        _pairwise_mp_cnn(f"MP-CNN (paper), {how}, {negatives} negatives", how, negatives, ALL_RAW)
        for negatives in (6, 8)
        for how in ("random", "max", "mix")
    ),
    *(
        System(
            f"{label} (ours), {sampling}, {negatives} negatives",
            model,
            _PAIRWISE.format(sampling=sampling, negatives=negatives),
            _LONG,
        )
        for label, model in (("MP-CNN", "mp_cnn"), ("PWIM", "pwim"))
        for negatives in (6, 8)
        for sampling in ("random", "max", "mix")
    ),
)

# Qiu & Huang (2015), Tables 3 and 4 and Figure 3: the answer of a question among six.

_DRAWN = "--development drawn --select mrr --configuration "

DRAWN_ANSWERS = (
    System("Okapi BM25", OKAPI),
    System("NBOW+MLP", "drawn:cntn", f"{_DRAWN}nbow_mlp"),
    System("CNN+MLP", "drawn:cntn", f"{_DRAWN}cnn_mlp"),
    System("CNTN-I", "drawn:cntn", f"{_DRAWN}cntn_i"),
    System("CNTN-II", "drawn:cntn", f"{_DRAWN}cntn_ii"),
    System("CNTN-III", "drawn:cntn", f"{_DRAWN}cntn_iii"),
    System("CNTN-IV", "drawn:cntn", f"{_DRAWN}cntn_iv"),
    System("CNTN-V", "drawn:cntn", f"{_DRAWN}cntn_v"),
)

MICROBLOG = (
    System("Bag of words + count (ours)", "bag_of_words", "--steps 200"),
    System("Bigram + count (ours)", "bigram", "--steps 200"),
    System("CNTN-V", "cntn"),
    System("SM-CNN (ours)", "sm_cnn", "--steps 20 --epochs 60 --patience 12"),
    System("MP-CNN (ours)", "mp_cnn", "--select map"),
    System("PWIM (ours)", "pwim", "--select map"),
)
"""The models of answer selection on TREC Microblog."""

# The learned fusion; no paper has these rows.

QL_CANDIDATES = "run_ql"
"""Candidate ranker of the stages that rank QL's candidates."""

_FROM_QL = f" --set candidate_rankers={QL_CANDIDATES}"

WITHOUT = "- "
"""Prefix of the left-out family in a row's name."""


def _families_of(model: str) -> list[str]:
    """Families of the model's configuration for TREC Microblog."""
    families: str = models.find(model).configurations["microblog"].families
    return families.split(",")


def _families(names: Sequence[str], folds: int = 5) -> str:
    # Always spelled out: a change of the default must give another key.
    return f"--configuration microblog --folds {folds} --set families={','.join(names)}"


def _stage(name: str, model: str, limit: str = "", more: Sequence[str] = ()) -> System:
    return System(name, model, _families([*_families_of(model), *more], folds=2) + limit)


FUSION_STAGES = (
    System("QL, official run", "run:ql"),
    System("RM3, official run", "run:rm3"),
    System("MP-HCNN and QL, mixed by λ", "shipped:mp_hcnn"),
    _stage("linear fusion of QL's candidates", "linear_fusion", _FROM_QL),
    _stage("fusion of QL's candidates", "fusion", _FROM_QL),
    _stage("fusion of all rankers' candidates", "fusion"),
    _stage("the same with adapted vectors ‡", "fusion", more=[ADAPTED_FAMILY]),
    _stage("linear fusion of all rankers' candidates", "linear_fusion"),
)
"""From the official run to the full fusion; each row is compared with the one before.

All other settings are the model's defaults.
"""


_FAMILIES = [*_families_of("fusion"), ADAPTED_FAMILY]
_MEANING = "meaning"
"""Left out as a whole, too: general and adapted vectors can stand for one another."""

# Without the year that the cell leaves out, and without 2014.
_CHOSEN = f"--train-on {' '.join(CHOSEN_ON)} "

ALL_FAMILIES = System("all families", "held-out:fusion", _CHOSEN + _families(_FAMILIES))
"""The fusion with these families, on held-out training topics."""

FUSION_ABLATIONS = tuple(
    System(
        f"{WITHOUT}{left_out}",
        "held-out:fusion",
        _CHOSEN
        + _families([name for name in _FAMILIES if left_out not in (name, name.partition(":")[0])]),
    )
    for left_out in (*_FAMILIES, _MEANING)
)
ONE_OBJECTIVE = System(
    "all families, lambdarank alone",
    "held-out:fusion",
    f"{ALL_FAMILIES.training} --set objectives=lambdarank",
)
"""The fusion's trees by one objective instead of three."""
