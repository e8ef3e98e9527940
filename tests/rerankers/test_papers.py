"""Models against their papers' formulas, in NumPy for one pair."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from conftest import Patch
from helpers import naive_networks as naive
from helpers import reranking_samples as samples
from helpers.naive_networks import Pair, Vector
from helpers.reranking_samples import POSTS, QUERIES, encoder, scores_of, small_model
from sklearn.linear_model import LogisticRegression

from tweetrerank.rerankers import checkpoint, devices, registry
from tweetrerank.rerankers.networks.base import Reranker
from tweetrerank.rerankers.networks.inputs import Tokenized
from tweetrerank.rerankers.networks.models.drmm import histograms
from tweetrerank.rerankers.networks.training import optimizers
from tweetrerank.rerankers.networks.training.examples import Examples
from tweetrerank.rerankers.networks.training.loop import train
from tweetrerank.rerankers.networks.training.optimizers import make_optimizer
from tweetrerank.rerankers.networks.training.training_settings import Settings
from tweetrerank.rerankers.pairs import PRIOR, Pairs, prior_of_rank

Changes = dict[str, Any]  # Fields of a configuration

LONG = " ".join(f"cuts{number % 7} water" for number in range(50))
# Equal spans would differ by rounding only, so this long text repeats no word.
DISTINCT = " ".join(f"cuts{number}" for number in range(31))

SHORT_PAIRS = [
    Pair(QUERIES[0], POSTS[0][0]),
    Pair(
        QUERIES[1],
        "egypt " * 5 + "has no water and shortages of water in many other places",
    ),
    # One word and one word
    Pair(QUERIES[2], POSTS[10][0]),
    Pair(QUERIES[1], QUERIES[1]),
    # Words without vectors
    Pair("xyzzy the plugh", "plugh xyzzy xyzzy a 5 nothing"),
    Pair(QUERIES[0], ""),
    Pair("", POSTS[2][0]),
    # Digits and stop words
    Pair(
        "i was on the bbc again in 1971",
        "again on the bbc, was 650 on the bbc in 2024?",
    ),
    Pair("", ""),
]
ALL_PAIRS = [*SHORT_PAIRS, Pair(LONG, LONG)]
LINKED_PAIRS = [
    Pair(QUERIES[0], POSTS[0][0], POSTS[0][1]),
    Pair(QUERIES[1], POSTS[3][0], POSTS[3][1]),
    Pair(QUERIES[3], POSTS[7][0], POSTS[7][1]),
    # Beyond the lengths of section 4.3 of MP-HCNN
    Pair(LONG, LONG, "http://long.example.org/" + "path/" * 40),
]
# A kernel far from its mean multiplies the rounding of a cosine by up to 70: no long
# texts.
PAIRS_OF_MODEL = {
    "c_dssm": SHORT_PAIRS,
    "cntn": [*SHORT_PAIRS, Pair(DISTINCT, DISTINCT)],
    "dssm": SHORT_PAIRS,
    "knrm": SHORT_PAIRS,
    "mp_cnn": SHORT_PAIRS,
    "mp_hcnn": LINKED_PAIRS + SHORT_PAIRS[2:],
}

MOVED = {"cntn": "weights", "drmm": "gate", "bag_of_words": "", "bigram": ""}
"""Model -> prefix of the parameters that do not matter, or are alike, at the start."""


def varied(name: str, configuration: str, **changes: Any) -> Reranker:
    """A small model whose parameters all matter, and none of whose biases is 0."""
    model = small_model(
        name,
        configuration,
        seed=3,
        **changes,
    )
    generator = torch.Generator().manual_seed(3)
    prefix = MOVED.get(name, "bias")
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "bias" in key or key.startswith(prefix):
                noise = torch.randn(parameter.shape, generator=generator)
                parameter += noise * 0.3
    return model


class WrittenOut(NamedTuple):
    """A model's formula, and the configurations to compare."""

    formula: Callable[[Reranker, Pair], float]
    name: str
    configurations: tuple[str, ...] = ()  # Empty: all
    changes: tuple[Changes, ...] = ({},)


WRITTEN_OUT = [
    WrittenOut(naive.cntn, "cntn"),
    WrittenOut(naive.drmm, "drmm", ("idf", "rao2019")),
    WrittenOut(
        naive.dssm,
        "dssm",
        ("compact",),
        (
            {"trigram_buckets": 64_000, "smoothing": 4.0},
            # Trigrams share rows.
            {"trigram_buckets": 500, "smoothing": 4.0},
        ),
    ),
    WrittenOut(
        naive.dssm,
        "c_dssm",
        ("compact",),
        (
            {"trigram_buckets": 64_000, "smoothing": 4.0},
            {"trigram_buckets": 500, "smoothing": 4.0},
        ),
    ),
    WrittenOut(naive.duet, "duet"),
    WrittenOut(naive.knrm, "knrm"),
    WrittenOut(
        naive.match_pyramid,
        "match_pyramid",
        ("cosine",),
        (
            {"filters": 3, "deep_filters": 4, "similarity": "cosine"},
            {"filters": 3, "deep_filters": 4, "similarity": "dot"},
            # Odd sizes, and texts that are cut
            {
                "filters": 3,
                "deep_filters": 4,
                "width": 3,
                "deep_width": 5,
                "pooled_rows": 3,
                "pooled_columns": 7,
                "query_words": 2,
            },
        ),
    ),
    WrittenOut(
        naive.sm_cnn,
        "sm_cnn",
        ("static",),
        ({"hidden": 0}, {"prior": False, "filters": 1}),
    ),
    WrittenOut(naive.sm_cnn, "sm_cnn", ("text",)),
    WrittenOut(naive.pwim, "pwim", ("compact", "paper"), ({"channel_share": 0.05},)),
    WrittenOut(
        naive.pwim,
        "pwim",
        ("compact",),
        ({"focus_weight": 0.5}, {"size": 5}),
    ),
    WrittenOut(
        naive.mp_cnn,
        "mp_cnn",
        ("compact", "paper"),
        (
            {"dimension_filters": 3},
            {"dimension_filters": 1, "widths": 1},
            {"dimension_filters": 3, "widths": 5},
        ),
    ),
    WrittenOut(naive.bilinear, "bag_of_words", ("plain",)),
    WrittenOut(naive.bilinear, "bigram", ("plain",)),
    WrittenOut(naive.word_count, "word_count"),
    WrittenOut(naive.mp_hcnn, "mp_hcnn"),
    WrittenOut(
        naive.mp_hcnn,
        "mp_hcnn",
        ("robust", "paper", "authors"),
        (
            # Table 4 and Figure 2
            {"max_pooling": False},
            {"mean_pooling": False},
            {"idf_weights": False},
            {"use_words": False, "depth": 1},
            {"use_post_trigrams": False, "use_url_trigrams": False, "depth": 0},
            # Mixtures of the configurations
            {
                "normalization": "post",
                "temperature": 3.0,
                "url_presence": True,
                "urls": "path",
            },
            {"tokens": "treebank", "urls": "path", "separate_urls": False},
            {
                "trigrams": "text",
                "idf": "phrases",
                "use_words": False,
                "separate_urls": True,
            },
            {
                "similarity": "cosine",
                "normalization": "none",
                "url_presence": False,
                "depth": 3,
            },
        ),
    ),
]


def comparisons() -> list[Any]:
    """Each configuration and its changes as a parameter."""
    parameters = []
    for formula, name, configurations, all_changes in WRITTEN_OUT:
        marks = [pytest.mark.slow] if name == "mp_hcnn" else []
        for configuration in configurations or registry.find(name).configurations:
            for changes in all_changes:
                parameter = pytest.param(
                    formula,
                    name,
                    configuration,
                    changes,
                    id=f"{name}-{configuration}-{changes}",
                    marks=marks,
                )
                parameters.append(parameter)
    return parameters


@pytest.mark.parametrize(
    ("formula", "name", "configuration", "changes"),
    comparisons(),
)
def test_scores_are_those_of_the_paper(
    formula: Callable[[Reranker, Pair], float],
    name: str,
    configuration: str,
    changes: Changes,
    monkeypatch: Patch,
) -> None:
    """On the processor, by a fast path if there is one, and as on a GPU."""
    model = varied(name, configuration, **changes)
    cases = PAIRS_OF_MODEL.get(name, ALL_PAIRS)
    rows = np.arange(len(cases))
    priors = prior_of_rank(rows + 1)
    expected = []
    for case, prior in zip(cases, priors.tolist(), strict=True):
        expected.append(formula(model, case._replace(prior=prior)))
    assert np.ptp(expected) > 1e-4, "all pairs score the same"
    pairs = Pairs(
        [case.query for case in cases],
        [case.post for case in cases],
        [case.url for case in cases],
        rows,
        rows,
        {PRIOR: priors},
    )
    for hosts in (devices.HOSTS, ()):
        monkeypatch.setattr(devices, "HOSTS", hosts)
        scores = scores_of(model, pairs)
        np.testing.assert_allclose(
            scores,
            expected,
            rtol=1e-5,
            atol=1e-5,
        )


def test_ends_of_the_range_are_in_the_outer_bins_of_drmm() -> None:
    """Rounding takes cosines beyond 1; a synonym of cosine 1 is no exact match."""
    cosine = torch.tensor([[[-1.0000002, -1.0, 1.0, 1.0000002, 1.0, -0.5, 0.0]]])
    exact = torch.tensor([[[False, False, False, False, True, False, False]]])
    counts = histograms(
        cosine,
        exact,
        torch.ones(1, 7),
        5,
    )
    assert counts.tolist() == [[[2.0, 1.0, 1.0, 2.0, 1.0]]]
    assert not histograms(cosine, exact, torch.zeros(1, 7), 5).any()


def test_convolutions_of_sm_cnn_get_a_tenth_of_the_weight_decay() -> None:
    model = small_model("sm_cnn", "static", vectors="positive")
    settings = Settings(optimizer="adadelta", weight_decay=1e-4)
    decays = {}
    for group in make_optimizer(model, settings).param_groups:
        for parameter in group["params"]:
            decays[id(parameter)] = group["weight_decay"]
    for name, parameter in model.named_parameters():
        expected = 1e-5 if "_sentence." in name else 1e-4
        assert decays.pop(id(parameter)) == pytest.approx(expected), name
    assert not decays


def test_plain_gradient_descent_is_the_same_with_sparse_gradients(
    monkeypatch: Patch,
) -> None:
    """Large tables of DSSM have sparse gradients."""
    tables = []
    for smallest in (1, 10**9):
        monkeypatch.setattr(optimizers, "LARGE", smallest)
        model = small_model("dssm", "rao2019")
        optimizer = make_optimizer(model, model.settings_of("rao2019"))
        pairs = Tokenized.from_pairs(samples.all_pairs(), encoder(), model)
        rows = np.arange(len(pairs.query_index))
        pairs.scores_of(model, rows).sum().backward()
        table = model.tower.trigrams.weight
        assert table.grad.is_sparse == (smallest == 1)
        optimizer.step()
        tables.append(table.detach().clone())
    torch.testing.assert_close(tables[0], tables[1])


def test_momentum_has_no_sparse_gradients(monkeypatch: Patch) -> None:
    monkeypatch.setattr(optimizers, "LARGE", 1)
    model = small_model("dssm", "rao2019")
    make_optimizer(model, Settings(optimizer="sgd"))
    assert not model.tower.trigrams.sparse


PAIRS = samples.all_pairs()
RELEVANT = np.random.default_rng(4).random(len(PAIRS)) < 0.4
TEXTS = [Pair(query, post) for query in QUERIES for post, _ in POSTS]
PASS = Settings(
    loss="pointwise",
    sampling="pairs",
    optimizer="adagrad",
    learning_rate=0.05,
)


@pytest.mark.parametrize("vectors", ["static", "positive"])
def test_training_changes_vectors_only_where_it_may(vectors: str) -> None:
    model = small_model("sm_cnn", "static", vectors=vectors)
    ids = torch.arange(len(samples.vocabulary().known) + 3)
    before = model.vectors(ids).detach().clone()
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    settings = replace(
        PASS,
        batch_pairs=20,
        epochs=1,
        steps=6,
    )
    train(
        model,
        examples,
        None,
        lambda scores: 0.0,
        settings,
    )
    is_changed = (model.vectors(ids).detach() != before).any(dim=1)
    assert not is_changed[0], "padding has a vector"
    assert bool(is_changed.any()) is (vectors == "positive")


@pytest.mark.parametrize("name", ["bag_of_words", "bigram"])
def test_training_of_counts_keeps_the_best_weights(name: str) -> None:
    """The model has no regression yet when it is validated."""
    model = varied(name, "count")
    rows = np.arange(0, len(RELEVANT), 3)
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    validation = Examples(examples.pairs.take(rows), ~RELEVANT[rows])
    matrices: list[torch.Tensor] = []

    def measure(scores: Vector) -> float:
        expected = [naive.bilinear(model, TEXTS[row]) for row in rows]
        np.testing.assert_allclose(
            scores,
            expected,
            rtol=1e-5,
            atol=1e-5,
        )
        matrices.append(model.matrix.detach().clone())
        return [0.1, 0.5, 0.2][len(matrices) - 1]

    settings = replace(
        PASS,
        epochs=3,
        steps=4,
        batch_pairs=12,
    )
    history = train(
        model,
        examples,
        validation,
        measure,
        settings,
    )
    assert history.best == 2
    assert len(matrices) == 3
    assert torch.equal(model.matrix, matrices[1])
    assert bool(model.is_fitted)


@pytest.mark.parametrize("name", ["bag_of_words", "bigram"])
def test_training_of_counts_ends_with_the_regression(name: str, tmp_path: Path) -> None:
    """It is fitted to the training pairs (section 4.2).

    The score is the regression's over common words, their IDF and probability.
    """
    model = varied(name, "count")
    examples = Examples(Tokenized.from_pairs(PAIRS, encoder(), model), RELEVANT)
    settings = replace(
        PASS,
        epochs=3,
        steps=4,
        batch_pairs=12,
    )
    train(
        model,
        examples,
        None,
        lambda scores: 0.0,
        settings,
    )
    scores = scores_of(model, PAIRS)
    assert np.ptp(scores) > 0.1
    rows = []
    for pair in TEXTS:
        probability = 1 / (1 + np.exp(-naive.bilinear(model, pair)))
        overlap = naive.naive_overlap(pair)
        rows.append([overlap.count, overlap.idf, probability])
    features = np.array(rows)
    coefficients = model.coefficients.double().numpy()
    expected = features @ coefficients + float(model.intercept)
    np.testing.assert_allclose(
        scores,
        expected,
        rtol=1e-5,
        atol=1e-5,
    )
    # Where L-BFGS stops depends on how features are rounded, so this is not as exact.
    regression = LogisticRegression(C=100).fit(features, RELEVANT)
    expected = regression.decision_function(features)
    np.testing.assert_allclose(
        scores,
        expected,
        rtol=1e-3,
        atol=1e-3,
    )
    checkpoint.save(tmp_path / "saved", samples.network(model, encoder(), name))
    loaded = checkpoint.load(
        tmp_path / "saved",
        name,
        idf=lambda source: encoder().idf,
    )
    np.testing.assert_array_equal(loaded.score(PAIRS), scores)
