"""Tables 3 and 4 and Figure 3 of Qiu & Huang (IJCAI 2015), on the collections that are here."""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from experiments import drawn
from experiments.cells import Result, Setup
from experiments.systems import DRAWN_ANSWERS
from experiments.tables.answer_selection import means
from experiments.tables.base import (
    ResultTable,
    markdown_table,
    mean_of,
    results_of,
    save_figure,
    shown,
)
from indexes.posts import read_posts
from pipeline.collections import named
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import Qrels, Run, best_of, read_qrels
from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.archive import ALPHAS, question_vectors
from pipeline.ranking.interpolation import interpolate
from rerankers import checkpoint as checkpoints
from rerankers.reranker import TrainedReranker


class DrawnAnswers(ResultTable):
    """The right answer among five drawn ones: P@1 and RR, beside the paper's P@1."""

    systems = DRAWN_ANSWERS
    collections = ("wikiqa", "trecqa-raw", "trecqa-all-raw")
    seeds = 3
    notes: ClassVar[str] = (
        f"Each right answer of the test part {drawn.REPEATS} times with five right answers of "
        "other questions, by a fixed seed. The paper's figures are for other data: questions and "
        "answers from Yahoo!, 10,000 each."
    )

    def markdown(self, results: Sequence[Result]) -> str:
        """A row per system; the paper's figures last."""
        names = self.present(results)
        columns = [f"{name} {'/'.join(drawn.MEASURES)}" for name in names]
        published = ("yahoo-dev", "yahoo-test")
        rows = [["system", *columns, *(f"paper, {name} P@1" for name in published)]]
        for system in self.systems:
            ours = [results_of(system, results, name) for name in names]
            paper = [system.published.get(name, (None,)) for name in published]
            rows.append(
                [
                    system.name,
                    *(means([result.measures for result in found]) for found in ours),
                    *(shown(figure, ".3f") for (figure,) in paper),
                ]
            )
        return markdown_table(rows)


NEAREST = 20
"""Candidates of a question, by Okapi (section 6.3: by a vector space model)."""


@dataclasses.dataclass(frozen=True)
class Questions:
    """Questions whose similar ones among ``texts``, doc_id -> text, are judged.

    ``candidates`` has each question's candidates with Okapi's score.
    """

    topics: Sequence[Topic]
    texts: Mapping[str, str]
    qrels: Qrels
    candidates: Run

    @classmethod
    def read(cls, folder: Path, judged_only: bool) -> "Questions":
        """The training topics of a folder; candidates are the judged ones or the nearest."""
        topics = read_topics(folder / "topics.train.tsv")
        texts = {post.doc_id: post.text for post in read_posts(folder / "posts.jsonl")}
        qrels, okapi = read_qrels(folder / "qrels.train.txt"), drawn.Okapi(texts)
        run = {
            topic.query_id: okapi.scores(
                topic.text, list(qrels.get(topic.query_id, {}) if judged_only else texts)
            )
            for topic in topics
        }
        return cls(topics, texts, qrels, best_of(run, NEAREST))

    def neural(self, checkpoint: TrainedReranker) -> Run:
        """Cosine of the question vectors of each candidate and its topic."""
        candidates = sorted({doc_id for scores in self.candidates.values() for doc_id in scores})
        found = question_vectors(checkpoint, [self.texts[doc_id] for doc_id in candidates])
        vectors = dict(zip(candidates, found, strict=True))
        asked = question_vectors(checkpoint, [topic.text for topic in self.topics])
        return {
            topic.query_id: {
                doc_id: float(vector @ vectors[doc_id])
                for doc_id in self.candidates[topic.query_id]
            }
            for topic, vector in zip(self.topics, asked, strict=True)
        }

    def curve(self, checkpoint: TrainedReranker) -> dict[float, float]:
        """α -> mean AP of α · neural + (1 - α) · Okapi, both scaled to [0, 1] per topic."""
        neural = self.neural(checkpoint)
        return {
            alpha: mean(
                evaluate(self.qrels, interpolate(self.candidates, neural, alpha), ["AP"])["AP"]
            )
            for alpha in ALPHAS
        }


QUESTIONS = {"stackfaq": False, "semeval-cqa-b": True}
"""Folder of ``general`` -> whether the candidates are the judged posts."""


class QuestionRetrieval(ResultTable):
    """Figure 3: AP of question retrieval by α, the share of the neural similarity."""

    systems = (DRAWN_ANSWERS[-1],)
    collections = ("trecqa-all-raw",)
    seeds = 3
    has_figure: ClassVar[bool] = True
    notes: ClassVar[str] = (
        "Similar questions by α · cosine of the question vectors + (1 - α) · Okapi BM25, each "
        "scaled to [0, 1] per topic; AP on training topics. The paper mixes the similarity of "
        "questions with the score of the archive's answer, which these collections do not have."
    )

    def finish(self, results: Sequence[Result], setup: Setup) -> list[Result]:
        """The results with the curves as measures, ``stackfaq 0.05`` and so on."""
        folder = named.data_directory(setup.data) / "general"
        data = {name: Questions.read(folder / name, judged) for name, judged in QUESTIONS.items()}
        found = []
        for result in results:
            checkpoint = checkpoints.load(setup.checkpoint(result.cell))
            curves = {
                _measure(name, alpha): round(value, 4)
                for name, questions in data.items()
                for alpha, value in questions.curve(checkpoint).items()
            }
            found.append(dataclasses.replace(result, measures=curves))
        return found

    def markdown(self, results: Sequence[Result]) -> str:
        """A row per α, a column per collection of questions; means over seeds."""
        rows = [["α", *QUESTIONS]]
        for alpha in ALPHAS:
            values = [mean_of(results, _measure(name, alpha)) for name in QUESTIONS]
            rows.append([f"{alpha:.2f}", *map(shown, values)])
        return markdown_table(rows)

    def draw(self, path: Path, results: Sequence[Result], setup: Setup) -> None:
        """A line per collection of questions."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6, 4))
        axes = figure.subplots()
        for name in QUESTIONS:
            values = [mean_of(results, _measure(name, alpha)) or 0.0 for alpha in ALPHAS]
            axes.plot(ALPHAS, values, marker=".", label=name)
        axes.set_xlabel("α")
        axes.set_ylabel("AP")
        axes.grid(axis="y", alpha=0.3)
        axes.legend()
        save_figure(figure, path)


def _measure(name: str, alpha: float) -> str:
    return f"{name} {alpha:.2f}"
