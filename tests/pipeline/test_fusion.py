"""The fusion of trees: learning, contributions of features, and its checkpoint."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from helpers.data_samples import write_microblog
from helpers.fusion_samples import (
    fit,
    pairs_that_rm3_orders,
    represented,
    require_new_topics_ordered,
)
from helpers.reranking_samples import all_pairs, encoder, small_config, vocabulary

from pipeline.collections import named
from pipeline.collections.trec import Run
from pipeline.ranking.scorers import ModelScorer
from pipeline.training.training_set import JudgedCandidates, load_training_data
from rerankers import checkpoint, features, models
from rerankers.errors import RerankerError
from rerankers.models.fusion import Model
from rerankers.reranker import TrainedReranker
from rerankers.scoring import batches as scoring
from rerankers.scoring.tokenized import Tokenized
from rerankers.text.inputs import TextEncoder
from rerankers.text.vectors import read_vectors
from rerankers.text.vocabulary import Vocabulary
from rerankers.training.examples import CachedInteractions

NAME = "fusion"
SMALL = "signal:rm3,signal:ql,signal:unknown,first_stage,links"
TWO = "lambdarank,binary"


def small(families: str = SMALL, **changes: Any) -> Model:
    changes = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5} | changes
    return Model(small_config(NAME, "general", families=families, **changes), vocabulary())


def fitted(**changes: Any) -> Model:
    model = small(**changes)
    fit(model, *pairs_that_rm3_orders())
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    """Two objectives, and features unknown in training."""
    return fitted(families=f"{SMALL},overlap", objectives=TWO)


@pytest.mark.parametrize(
    ("name", "share"), [("fusion", 0.9), ("lambdamart", 0.9), ("linear_fusion", 0.6)]
)
def test_a_signal_that_orders_posts_is_learnt_for_new_topics(name: str, share: float) -> None:
    """Before that the model is an error; posts without the signal end up below the others."""
    changes = {"trees": 40, "minimum_leaf": 5, "feature_fraction": 0.5, "penalty": 0.001}
    [first, *_] = models.find(name).configurations
    config = small_config(name, first, **{"families": SMALL} | changes)
    model: Any = models.find(name)(config, vocabulary())
    values = torch.zeros(1, len(model.names))
    for ask in (model.head, model.contributions):
        with pytest.raises(RerankerError, match=r"without (trees|weights); train it before"):
            ask(values)
    require_new_topics_ordered(model)
    shares = model.importances()
    of_signal = [shares[feature] for feature in features.names_of(["signal:rm3"])]
    assert sum(of_signal) > share * sum(shares.values())


def test_scores_are_the_mean_over_objectives(model: Model) -> None:
    """Each list of trees is that of its objective and seed alone; importances are, too."""
    pairs, _ = pairs_that_rm3_orders()
    values = represented(model, pairs)
    families = model.config.families
    alone = [
        fitted(families=families, objectives=objective, seed=seed)
        for seed, objective in enumerate(TWO.split(","), start=1)
    ]
    first, second = (each.head(values) for each in alone)
    assert not torch.equal(first, second)
    torch.testing.assert_close(model.head(values), (first + second) / 2)
    assert model.files() == {
        "model.txt": alone[0].files()["model.txt"],
        "model_2.txt": alone[1].files()["model.txt"],
    }


def test_scores_are_sums_of_leaves(model: Model) -> None:
    """Of all objectives: the one of pairs gives no probabilities."""
    values = represented(model, pairs_that_rm3_orders()[0])
    raw = [booster.predict(values.numpy(), raw_score=True) for booster in model.boosters]
    expected = torch.from_numpy(np.mean(raw, axis=0).astype(np.float32))
    torch.testing.assert_close(model.head(values), expected)


def test_trees_that_extend_those_of_fewer_features(tmp_path: Path) -> None:
    """Half as many are added; the first ones are those of the start, which reads no RM3."""
    start = fitted(families="signal:ql,first_stage", objectives=TWO)
    model = small(families="signal:ql,first_stage,signal:rm3", objectives=TWO)
    model.start_from(start)
    require_new_topics_ordered(model)
    pairs, _ = pairs_that_rm3_orders()
    values = represented(model, pairs)
    for grown, first in zip(model.boosters, start.boosters, strict=True):
        assert (grown.num_trees(), first.num_trees()) == (60, 40)
        known = values[:, : len(start.names)].numpy()
        np.testing.assert_array_equal(
            grown.predict(values.numpy(), raw_score=True, num_iteration=40),
            first.predict(known, raw_score=True),
        )
    for name, content in model.files().items():
        (tmp_path / name).write_bytes(content)
    read = small(families=model.config.families, objectives=TWO)
    read.read_files(tmp_path)
    torch.testing.assert_close(read.head(values), model.head(values), rtol=0, atol=0)
    for families, objectives in (("signal:rm3,signal:ql,first_stage", TWO), (SMALL, "binary")):
        with pytest.raises(RerankerError, match="other features or objectives"):
            small(families=families, objectives=objectives).start_from(start)


def test_training_is_deterministic(model: Model) -> None:
    again = fitted(families=model.config.families, objectives=TWO)
    assert again.files() == model.files()


def test_unknown_signals_reach_the_trees_as_nan(model: Model) -> None:
    """In scoring, and in the cached interactions of training."""
    pairs, _ = pairs_that_rm3_orders()
    tokenized = Tokenized.from_pairs(pairs, encoder(), model)
    unknown = np.isnan(pairs.signals["rm3"])
    assert 0 < unknown.sum() < len(pairs)
    for scorable in (tokenized, CachedInteractions.compute(model, tokenized)):
        values = scoring.represent_tokenized(model, scorable).numpy()
        assert tokenized.features is not None
        np.testing.assert_array_equal(values, tokenized.features)
        found = np.isnan(values)
        for column, name in enumerate(model.names):
            wanted = {"signal:rm3": unknown, "signal:unknown": True}.get(name.split(".")[0], False)
            assert (found[:, column] == wanted).all(), name
    scores = scoring.score(model, pairs, encoder())
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scoring.score(model, pairs, encoder(), batch_size=1), scores)


def test_contributions_add_up_to_the_scores(model: Model) -> None:
    """But for a constant; features that no tree reads add nothing."""
    values = represented(model, pairs_that_rm3_orders()[0])
    parts = model.contributions(values)
    assert parts.shape == values.shape
    rest = model.head(values) - parts.sum(dim=1)
    torch.testing.assert_close(rest, rest[:1].expand(len(rest)), rtol=0, atol=1e-4)
    by_name = dict(zip(model.names, parts.T, strict=True))
    for name, share in model.importances().items():
        assert bool(by_name[name].any()) == (share > 0), name
    assert not by_name["signal:unknown.z"].any()
    # Among posts that differ in nothing else, the signal decides: see pairs_that_rm3_orders.
    of_rm3 = sum(part for name, part in by_name.items() if name.startswith("signal:rm3."))
    assert isinstance(of_rm3, torch.Tensor)
    assert np.corrcoef(of_rm3, model.head(values))[0, 1] > 0.95


def save(model: Model, directory: Path) -> Path:
    checkpoint.save(directory, NAME, model, encoder(), {})
    return directory


def load(directory: Path) -> TrainedReranker:
    return checkpoint.load(directory, NAME, idf=encoder().idf)


def test_scores_are_the_same_after_loading(model: Model, tmp_path: Path) -> None:
    """Also the trees of both objectives."""
    pairs, _ = pairs_that_rm3_orders()
    saved = load(save(model, tmp_path / "saved"))
    np.testing.assert_array_equal(saved.score(pairs), scoring.score(model, pairs, encoder()))
    loaded: Any = saved.model
    assert loaded.importances() == model.importances()
    np.testing.assert_array_equal(represented(loaded, all_pairs()), represented(model, all_pairs()))


@pytest.mark.parametrize("name", ["fusion", "linear_fusion"])
def test_candidates_with_the_scores_of_another_ranker(name: str, tmp_path: Path) -> None:
    """Two made-up years to learn from and one to rank; an unknown ranker changes nothing."""
    data = write_microblog(tmp_path / "data")
    known = load_training_data([named.find(year, data) for year in ("mb2011", "mb2013")])
    texts = [post.text for post in known.candidates.posts.values()]
    words = Vocabulary.build(texts, read_vectors(data / "vectors.txt"))
    reader = TextEncoder(words, encoder().idf)
    config = small_config(name, "general", families="signal:rm3,signal:bm25,first_stage,overlap")
    model = models.find(name)(config, words)
    # A perfect ranker, but for a few posts that it lacks.
    candidates = dataclasses.replace(known.candidates, signals={"rm3": _perfect(known)})
    tokenized = Tokenized.from_pairs(candidates.pairs(), reader, model)
    assert tokenized.features is not None
    assert 0 < np.isnan(tokenized.features[:, model.names.index("signal:rm3.z")]).mean() < 0.3
    queries = torch.from_numpy(tokenized.query_index)
    values = scoring.represent_tokenized(model, tokenized)
    model.fit(values, torch.from_numpy(known.relevant()), queries)
    checkpoint.save(tmp_path / "saved", name, model, reader, {})
    reranker = ModelScorer(checkpoint.load(tmp_path / "saved", name, idf=encoder().idf))

    new = load_training_data([named.find("mb2012", data)])
    candidates = dataclasses.replace(new.candidates, signals={"rm3": _perfect(new)})
    run = reranker.score(candidates)
    assert new.mean_of("AP", run) > 0.95 > new.mean_of("AP", reranker.score(new.candidates))
    other = dataclasses.replace(candidates, signals={**candidates.signals, "bm25": candidates.run})
    assert reranker.score(other) == run


def _perfect(data: JudgedCandidates) -> Run:
    """A run with every relevant post above the others, and a seventh of the others missing."""
    run: Run = {}
    rows = zip(data.candidates.keys(), data.relevant().tolist(), strict=True)
    for row, ((query_id, doc_id), relevant) in enumerate(rows):
        if relevant or row % 7:
            run.setdefault(query_id, {})[doc_id] = 10.0 * relevant + row % 7
    return run
