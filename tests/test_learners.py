"""Each faster way to scores with gradients gives those of the model's own forward pass."""

import copy
import pkgutil
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from reranking_samples import (
    AWKWARD,
    POSTS,
    QUERIES,
    all_pairs,
    encoder,
    every_model,
    small_model,
)
from torch import Tensor

from rerankers import learners
from rerankers.base import Reranker
from rerankers.engine.tokenized import Tokenized

CPU = torch.device("cpu")
LEARNED = [module.name for module in pkgutil.iter_modules(learners.__path__)]
LONG = (" ".join(f"word{n % 90}" for n in range(200)), "http://long.example.org/" + "path/" * 60)

TRAINED = [{"train_vectors": v, "train_filters": f} for v in (False, True) for f in (False, True)]
SWITCHES: dict[str, list[dict[str, Any]]] = {
    "mp_hcnn": [
        *({"depth": depth, "train_vectors": True, "train_filters": True} for depth in range(5)),
        *({"normalization": name, "similarity": similarity, "evidence": evidence}
          for name in ("none", "post", "query") for similarity in ("cosine", "dot")
          for evidence in ("terms", "positions")),
        *({"normalization": name, pooling: False} for name in ("none", "post", "query")
          for pooling in ("max_pooling", "mean_pooling")),
        {"normalization": "post", "temperature": 3.0},
        {"normalization": "query", "temperature": 3.0},
        {"idf_weights": False}, {"idf_weights": False, "evidence": "positions"},
        {"use_words": False}, {"use_post_trigrams": False}, {"use_url_trigrams": False},
        {"use_post_trigrams": False, "use_url_trigrams": False}, {"url_presence": True},
        {"url_presence": False}, {"word_width": 1}, {"trigram_width": 1},
        {"query_words": 2, "query_trigrams": 9, "post_words": 4, "post_trigrams": 20,
         "url_trigrams": 3},
    ],
}  # fmt: skip

CASES = [
    *((name, configuration, {**trained}) for name, configuration in every_model()
      if name in LEARNED for trained in TRAINED),
    *((name, configuration, {**TRAINED[-1], **changes}) for name, configuration in every_model()
      if name in LEARNED for changes in SWITCHES[name]),
]  # fmt: skip


def model_of(name: str, configuration: str, **changes: Any) -> Reranker:
    """Without dropout; biases are other than 0, or it would be seen nowhere that one is missing."""
    model = small_model(name, configuration, dropout=0.0, **changes).train()
    torch.manual_seed(2)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.1 * torch.rand_like(parameter))
    return model


def everything(model: Reranker) -> Tokenized:
    """Every query with every post, awkward and long ones among them."""
    texts = [text for text in AWKWARD.values() if len(text) < 5000]
    posts = [*POSTS, *((text, text) for text in texts), LONG]
    return Tokenized.of(all_pairs([*QUERIES, *texts, LONG[0]], posts), encoder(), model)


def plain(model: Reranker, encoded: Tokenized, rows: np.ndarray) -> Tensor:
    scores: Tensor = model(*encoded.batch(rows, CPU))
    return scores


def gradients(model: Reranker, scores: Tensor) -> dict[str, Tensor]:
    """Of a loss in which each score counts another way."""
    model.zero_grad(set_to_none=True)
    pull = torch.linspace(-1.0, 2.0, len(scores), dtype=scores.dtype)
    (scores * pull + scores.square()).sum().backward()
    return {
        name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }


def assert_learns_alike(model: Reranker, encoded: Tokenized, rows: np.ndarray) -> None:
    """Scores as they are; and scores and gradients in double precision.

    Where two windows match nearly alike, rounding decides which of them a maximum learns from.
    """
    assert learners.find(model) is not None
    scores = encoded.scores_of(model, rows, CPU)
    torch.testing.assert_close(scores, plain(model, encoded, rows), rtol=1e-5, atol=1e-5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        exact, wide = copy.deepcopy(model).double(), in_double(encoded)
        ours, theirs = wide.scores_of(exact, rows, CPU), plain(exact, wide, rows)
        assert theirs.dtype == torch.float64
        found, expected = gradients(exact, ours), gradients(exact, theirs)
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)
    for name, gradient in expected.items():
        torch.testing.assert_close(
            found[name], gradient, rtol=1e-7, atol=1e-10, msg=f"{name} differs"
        )


def in_double(encoded: Tokenized) -> Tokenized:
    """With the weights of the queries' terms in double precision."""
    queries = {
        view: replace(packed, weights=packed.weights.astype(np.float64))  # type: ignore[union-attr]
        for view, packed in encoded.queries.items()
    }
    return replace(encoded, queries=queries)


@pytest.mark.parametrize(("name", "configuration", "changes"), CASES)
def test_scores_and_gradients_are_those_of_the_forward_pass(
    name: str, configuration: str, changes: dict[str, Any]
) -> None:
    model = model_of(name, configuration, **changes)
    encoded = everything(model)
    rng = np.random.default_rng(4)
    assert_learns_alike(model, encoded, rng.permutation(len(encoded.query_index))[:60])


@pytest.mark.parametrize("configuration", ["robust", "paper"])
def test_batches_of_every_form_are_alike(configuration: str) -> None:
    model = model_of("mp_hcnn", configuration, **TRAINED[-1])
    encoded = everything(model)
    posts = len(encoded.post_index) // len(np.unique(encoded.query_index))
    batches = {
        "one pair": [5],
        "one query": range(posts),
        "the same post for two queries": [3, posts + 3],
        "a pair twice": [7, 7, 8],
        "queries by turns": [0, posts, 1, posts + 1, 2, posts + 2],
        "one query often, one once": [*range(9), 2 * posts],
    }
    for rows in batches.values():
        assert_learns_alike(model, encoded, np.array(rows))


@pytest.mark.parametrize("configuration", ["robust", "paper"])
@pytest.mark.parametrize("changes", [{}, {"normalization": "query"}, {"depth": 0}], ids=str)
def test_texts_without_terms_are_learned_from(configuration: str, changes: dict[str, Any]) -> None:
    model = model_of("mp_hcnn", configuration, **TRAINED[-1], **changes)
    posts = [("", ""), ("!!!", ""), ("water", "")]
    for queries, some in ((["", "water"], posts), (["", "!!!"], posts[:2]), (["water"], posts[:1])):
        pairs = all_pairs(queries, some)
        encoded = Tokenized.of(pairs, encoder(), model)
        rows = np.arange(len(pairs))
        assert_learns_alike(model, encoded, rows)
        assert all(bool(g.isfinite().all()) for g in
                   gradients(model, encoded.scores_of(model, rows, CPU)).values())  # fmt: skip


def test_a_pair_does_not_depend_on_its_batch() -> None:
    model = model_of("mp_hcnn", "paper")
    encoded = everything(model)
    together = encoded.scores_of(model, np.arange(len(encoded.query_index)), CPU)
    for row in (0, 13, len(together) - 1):
        alone = encoded.scores_of(model, np.array([row]), CPU)
        torch.testing.assert_close(alone[0], together[row], rtol=1e-5, atol=1e-5)


def test_it_is_the_way_of_training_and_of_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("mp_hcnn", "paper")
    encoded, rows = everything(model), np.arange(4)
    forward = copy.copy(model.forward)
    seen: list[int] = []

    def spy(*arguments: Any) -> Tensor:
        seen.append(len(arguments))
        scores: Tensor = forward(*arguments)
        return scores

    monkeypatch.setattr(model, "forward", spy)
    encoded.scores_of(model, rows, CPU)
    assert not seen
    with torch.no_grad():
        encoded.scores_of(model, rows, CPU)
    assert seen


def test_a_model_without_a_file_has_none() -> None:
    assert learners.find(small_model("match_pyramid", "cosine")) is None


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_its_tensors_are_made_where_the_model_is() -> None:
    from rerankers.learners import mp_hcnn

    model: Any = model_of("mp_hcnn", "paper")
    encoded, rows = everything(model), np.arange(40)
    expected = plain(model, encoded, rows)
    on_gpu = copy.deepcopy(model).to("cuda")
    found = on_gpu.integrate(
        mp_hcnn.interact(on_gpu, *encoded.batch(rows, torch.device("cuda")))
    )  # fmt: skip
    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=1e-4)
