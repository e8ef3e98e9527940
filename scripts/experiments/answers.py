"""Questions and answers (Qiu & Huang, IJCAI 2015): drawn answers, Okapi, question retrieval."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import normalize

from indexes.posts import read_posts
from pipeline.collections.collection import Collection
from pipeline.collections.topics import read_topics
from pipeline.collections.trec import Qrels, Run, best_of, read_qrels
from pipeline.evaluation.measures import evaluate, mean
from pipeline.training.training_set import draw_answers
from pipeline.training.tuning import HeldOut
from rerankers import checkpoint as checkpoints
from rerankers.networks.base import QUERY
from rerankers.networks.network import Network
from rerankers.text.words import words

MEASURES = ("P@1", "RR")
REPEATS = 10  # Draws for each right answer: of a few hundred one would decide too much
NEAREST = 20  # Candidates of a question, by Okapi (section 6.3: by a vector space model)
BATCH_SIZE = 256  # Questions per forward pass
QUESTIONS = {"stackfaq": False, "semeval-cqa-b": True}  # Whether candidates are the judged posts


def okapi(texts: Mapping[str, str]) -> Callable[[str, Iterable[str]], dict[str, float]]:
    """BM25 (Robertson et al. 1994): scores of a query and doc_ids of ``texts``, by doc_id.

    As in Lucene: IDF ln(1 + (N - n + 0.5) / (n + 0.5)), without the constant factor k1 + 1. Words
    are those that the models read, with stop words and without stemming.
    """
    k1, b = 1.2, 0.75
    counts = {doc_id: Counter(words(text)) for doc_id, text in texts.items()}
    documents = Counter(word for of_text in counts.values() for word in of_text)
    idf = {w: math.log1p((len(counts) - n + 0.5) / (n + 0.5)) for w, n in documents.items()}
    mean_length = max(1.0, mean([of_text.total() for of_text in counts.values()]))

    def score(terms: Counter[str], found: Counter[str]) -> float:
        norm = k1 * (1 - b + b * found.total() / mean_length)
        common = [word for word in terms if word in found]
        return sum(terms[w] * idf[w] * found[w] / (found[w] + norm) for w in common)

    def scores(query: str, doc_ids: Iterable[str]) -> dict[str, float]:
        terms = Counter(words(query))
        return {doc_id: score(terms, counts[doc_id]) for doc_id in doc_ids}

    return scores


def measure_drawn(part: Collection, checkpoint: Path | None) -> dict[str, float]:
    """Means of :data:`MEASURES` over all draws, of a trained model or, without one, of Okapi."""
    drawn = draw_answers(part, REPEATS)
    if checkpoint is None:
        scores, given = okapi({p.doc_id: p.text for p in part.posts()}), drawn.candidates
        run = {t.query_id: scores(t.text, given.run[t.query_id]) for t in given.topics}
    else:
        run = drawn.candidates.scored_by(checkpoints.load(checkpoint))
    return means(drawn.qrels, run, MEASURES)


def means(qrels: Qrels | None, run: Run, measures: Sequence[str]) -> dict[str, float]:
    """Measure -> mean; empty without judgments."""
    values = evaluate(qrels, run, measures) if qrels else {}
    return {name: round(mean(of_topics), 4) for name, of_topics in values.items()}


def question_curves(general: Path, trained: Network) -> dict[str, float]:
    """``stackfaq 0.05`` -> AP of α · cosine of question vectors + (1 - α) · Okapi, and so on.

    Each is scaled to [0, 1] per topic; α is 0, 0.05, …, 1 (section 6.3). Candidates of the training
    topics are the judged posts or the nearest.
    """
    curves = {}
    for name, judged_only in QUESTIONS.items():
        topics = read_topics(general / name / "topics.train.tsv")
        texts = {post.doc_id: post.text for post in read_posts(general / name / "posts.jsonl")}
        qrels, scores = read_qrels(general / name / "qrels.train.txt"), okapi(texts)
        given = {t.query_id: qrels.get(t.query_id, {}) if judged_only else texts for t in topics}
        lexical = best_of({t.query_id: scores(t.text, given[t.query_id]) for t in topics}, NEAREST)
        doc_ids = sorted({doc_id for of_topic in lexical.values() for doc_id in of_topic})
        of_posts = question_vectors(trained, [texts[d] for d in doc_ids])
        vectors = dict(zip(doc_ids, of_posts, strict=True))
        of_topics = question_vectors(trained, [topic.text for topic in topics])
        neural = {
            topic.query_id: {d: float(vector @ vectors[d]) for d in lexical[topic.query_id]}
            for topic, vector in zip(topics, of_topics, strict=True)
        }
        for alpha, value in HeldOut(lexical, neural, qrels).tune().curve.items():
            curves[f"{name} {alpha:.2f}"] = round(value, 4)
    return curves


def question_vectors(trained: Network, questions: Sequence[str]) -> npt.NDArray[np.float32]:
    """Sentence vectors of questions by a CNTN, normalized to length 1: [N, E].

    The paper calls its model with M = I "just a cosine", which v_qᵀ v_a is for such vectors alone.
    """
    model, encoder = trained.model, trained.encoder
    inputs = encoder.tokens(model, QUERY, questions)
    parts = np.array_split(np.arange(len(questions)), -(-len(questions) // BATCH_SIZE))
    with torch.inference_mode():
        batches = [
            {n: of.batch(rows, model.device_of()) for n, of in inputs.items()} for rows in parts
        ]
        vectors = torch.cat([cast(torch.Tensor, model.encode(batch, QUERY)) for batch in batches])
    return normalize(vectors, dim=1).float().cpu().numpy()
