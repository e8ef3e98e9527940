"""Question retrieval by sentence vectors (Qiu & Huang 2015, section 6.3)."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from experiments.cell_runs import okapi
from experiments.cells import Result, Setup
from experiments.tables import Table
from tweetrerank.indexes.posts import read_posts
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.topics import read_topics
from tweetrerank.pipeline.collections.trec import Run, best_of, read_qrels
from tweetrerank.pipeline.training.cross_validation import HeldOut
from tweetrerank.rerankers import checkpoint
from tweetrerank.rerankers.networks.base import QUERY
from tweetrerank.rerankers.networks.network import Network

JUDGED_ONLY = {"stackfaq": False, "semeval-cqa-b": True}
"""For each collection, whether only the judged posts are candidates."""

NEAREST = 20  # Candidates of a question by Okapi; the paper uses a vector space model
BATCH_SIZE = 256  # Questions in a forward pass


def question_curves(
    table: Table, results: Sequence[Result], setup: Setup
) -> list[Result]:
    """Return the results with the AP for each α as measures, such as ``stackfaq 0.05``.

    The score is α · cosine of question vectors + (1 - α) · Okapi, with both scaled to
    [0, 1] in each topic. The values of α are 0, 0.05, …, 1. The candidates of a
    training topic are the judged posts or the nearest posts, by :data:`JUDGED_ONLY`.
    """
    general = named.data_directory(setup.data) / "general"
    extended = []
    for result in results:
        trained = cast(Network, checkpoint.load(setup.checkpoint(result.cell)))
        measures = {}
        for name, judged_only in JUDGED_ONLY.items():
            curve = _curve(trained, general / name, judged_only)
            for alpha, value in curve.items():
                measures[f"{name} {alpha:.2f}"] = round(value, 4)
        extended.append(replace(result, measures=measures))
    return extended


def _curve(
    trained: Network,
    folder: Path,
    judged_only: bool,
) -> dict[float, float]:
    """Return the AP for each α, on the training topics of a collection's folder."""
    topics = read_topics(folder / "topics.train.tsv")
    texts = {post.doc_id: post.text for post in read_posts(folder / "posts.jsonl")}
    qrels = read_qrels(folder / "qrels.train.txt")
    scores = okapi(texts)
    scored: Run = {}
    for topic in topics:
        candidates = qrels.get(topic.query_id, {}) if judged_only else texts
        scored[topic.query_id] = scores(topic.text, candidates)
    lexical = best_of(scored, NEAREST)
    doc_ids: set[str] = set()
    for of_topic in lexical.values():
        doc_ids.update(of_topic)
    ordered = sorted(doc_ids)
    post_vectors = question_vectors(trained, [texts[doc_id] for doc_id in ordered])
    vectors = dict(zip(ordered, post_vectors, strict=True))
    topic_vectors = question_vectors(trained, [topic.text for topic in topics])
    neural: Run = {}
    for topic, vector in zip(topics, topic_vectors, strict=True):
        neural[topic.query_id] = {
            doc_id: float(vector @ vectors[doc_id])
            for doc_id in lexical[topic.query_id]
        }
    return HeldOut(lexical, neural, qrels).tune().curve


def question_vectors(
    trained: Network, questions: Sequence[str]
) -> npt.NDArray[np.float32]:
    """Return the sentence vectors [N, E] of questions by a CNTN, of length 1.

    The paper calls its model with M = I "just a cosine", but v_qᵀ v_a is a cosine only
    for vectors of this length.
    """
    model = trained.model
    inputs = trained.encoder.tokens(model, QUERY, questions)
    batch_count = -(-len(questions) // BATCH_SIZE)
    encoded = []
    with torch.inference_mode():
        for rows in np.array_split(np.arange(len(questions)), batch_count):
            batch = {
                name: tokens.batch(rows, model.device_of())
                for name, tokens in inputs.items()
            }
            encoded.append(cast(torch.Tensor, model.encode(batch, QUERY)))
        vectors = torch.cat(encoded)
    return normalize(vectors, dim=1).float().cpu().numpy()
