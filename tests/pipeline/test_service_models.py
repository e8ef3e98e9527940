"""Models of the service: those that read ranks, those that cannot be served, several at once."""

from pathlib import Path

import numpy as np
import pytest
from helpers.reranking_samples import POSTS, network, small_model, vocabulary
from helpers.service_samples import QUERY, TEXTS, client_of

from indexes.posts import Post
from pipeline.collections.topics import Topic
from pipeline.ranking.retrievers import Candidates
from pipeline.service.models import Models
from rerankers import checkpoint as checkpoints
from rerankers import devices
from rerankers.networks.inputs import TextEncoder
from rerankers.pairs import Pairs


def saved(folder: Path, name: str, configuration: str) -> Path:
    """A small untrained checkpoint."""
    encoder = TextEncoder(vocabulary(), checkpoints.idf_from("wordfreq"))
    checkpoints.save(folder, network(small_model(name, configuration), encoder, name))
    return folder


def test_priors_are_of_the_whole_list(tmp_path: Path) -> None:
    """A model that reads a post's rank gets it, whatever slice the post is scored in."""
    models = Models([str(saved(tmp_path / "sm", "sm_cnn", "static"))], 10**6)
    assert models.default.reads_prior
    posts = [(f"{text} {n}", url) for n in range(60) for text, url in POSTS]
    generator = np.random.default_rng(3)
    first = generator.permutation(len(posts)).astype(float)
    run = {"q": {str(n): score for n, score in enumerate(first.tolist())}}
    documents = {str(n): Post(str(n), *post) for n, post in enumerate(posts)}
    candidates = Candidates([Topic("q", QUERY)], run, documents)
    checkpoint = models.default.checkpoint
    slope, intercept = models.default.calibration
    expected = slope * checkpoint.score(candidates.pairs()) + intercept
    body = {
        "query": QUERY,
        "mix": "neural",
        "raw_scores": True,
        "documents": [
            {"text": text, "url": url, "first_stage_score": score}
            for (text, url), score in zip(posts, first.tolist(), strict=True)
        ],
    }
    with client_of(models=models) as client:
        results = client.post("/rerank", json=body).json()["results"]
        actual = {item["index"]: item["relevance_score"] for item in results}
        assert [actual[n] for n in range(len(posts))] == pytest.approx(expected.tolist(), abs=1e-5)
        # Without ranks the prior is 0, as in predict.
        plain = {"query": QUERY, "raw_scores": True, "documents": TEXTS}
        results = client.post("/rerank", json=plain).json()["results"]
        actual = {item["index"]: item["relevance_score"] for item in results}
        rows = np.arange(len(TEXTS))
        pairs = Pairs([QUERY], TEXTS, [""] * len(TEXTS), rows * 0, rows)
        expected = slope * checkpoint.score(pairs) + intercept
        assert [actual[n] for n in range(len(TEXTS))] == pytest.approx(expected.tolist(), abs=1e-5)


def test_names_of_several_models(tmp_path: Path) -> None:
    models = Models([str(saved(tmp_path / "mine", "sm_cnn", "text")), "mp_hcnn"], 10**6)
    assert list(models.served) == ["mine", "mp_hcnn"]
    with client_of(models=models) as client:
        for name, status in ((None, 422), ("rerank-v3.5", 404), ("", 404)):
            body = {"query": QUERY, "documents": TEXTS, "model": name}
            refused = client.post("/v2/rerank", json=body)
            assert refused.status_code == status
            assert "expected one of mine, mp_hcnn" in refused.json()["message"]
        for name in ("mine", "mp_hcnn"):
            body = {"query": QUERY, "documents": TEXTS, "model": name}
            assert client.post("/v2/rerank", json=body).json()["model"] == name
        metrics = client.get("/metrics").text
        assert metrics.count("tweetrerank_model_info{") == 2


def test_a_network_on_a_gpu_gives_the_scores_of_the_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, rows = saved(tmp_path / "mine", "mp_hcnn", "small"), np.arange(len(TEXTS))
    pairs = Pairs([QUERY], TEXTS, [url for _, url in POSTS], 0 * rows, rows)
    expected = Models([str(folder)], 10**6).default.scorer.score(0, "mine", pairs)
    monkeypatch.setattr(devices, "HOSTS", ())  # The CPU is a device like any other.
    served = Models([str(folder)], 10**6).default
    actual = served.scorer.score(0, "mine", pairs)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
