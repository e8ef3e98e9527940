"""Right answers among drawn ones, Okapi BM25, and question retrieval by α."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from experiments.answers import Okapi, measure_drawn
from experiments.cells import OKAPI, Cell, Setup, run_cell
from experiments.extras import finished
from experiments.rendering import render
from experiments.reports import draw
from experiments.tables import read_tables
from helpers.data_samples import write_answers
from helpers.experiment_samples import result, row_of, run_commands_here

from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.archive import question_vectors
from rerankers import checkpoint as checkpoints

pytestmark = pytest.mark.slow  # experiments are no part of the packages

_, TABLES = read_tables()
TEXTS = {
    "1": "storm storm at the harbour",
    "2": "coffee",
    "3": "the harbour , the village",
    "4": "",
}


def naive_bm25(query: list[str], text: list[str], texts: list[list[str]]) -> float:
    """Robertson et al. (1994) as Lucene has it, for k1 = 1.2 and b = 0.75."""
    length = len(text) / (sum(map(len, texts)) / len(texts))
    score = 0.0
    for word in query:
        count, n = text.count(word), sum(word in other for other in texts)
        idf = math.log(1 + (len(texts) - n + 0.5) / (n + 0.5))
        score += idf * count / (count + 1.2 * (1 - 0.75 + 0.75 * length))
    return score


def test_okapi_is_the_formula() -> None:
    texts = [text.replace(",", "").split() for text in TEXTS.values()]
    for query in ("the harbour", "storm storm coffee", "unknown", ""):
        expected = [naive_bm25(query.split(), text, texts) for text in texts]
        scores = Okapi(TEXTS).scores(query, list(TEXTS))
        np.testing.assert_allclose(list(scores.values()), expected, rtol=1e-12)


def test_cells_pick_right_answers_with_and_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    data = write_answers(tmp_path / "data")
    setup = Setup(tmp_path / "kept", data, "cpu")
    measured = run_cell(Cell("Okapi", OKAPI, (), "wikiqa"), setup)
    assert set(measured.measures) == {"P@1", "RR"}
    # A right answer has all words of its question, and nearly always the most.
    assert 0.5 < measured.measures["P@1"] <= measured.measures["RR"] <= 1
    assert not setup.directory.exists()

    options = "--development drawn --steps 1 --epochs 1 --configuration nbow_mlp --vectors"
    cell = Cell("NBOW", "drawn:cntn", (*options.split(), f"{data}/vectors.txt"), "wikiqa")
    measured = run_cell(cell, setup)
    part = setup.collection("wikiqa")
    assert measured.measures == measure_drawn(part, setup.checkpoint(cell))  # type: ignore[arg-type]


def test_the_table_has_the_papers_figures_for_its_data() -> None:
    table = TABLES["cntn"]
    text = render(table, [result(table.systems[-1], "wikiqa", **{"P@1": 0.5, "RR": 0.6})])
    header = "| system | wikiqa P@1/RR | paper, yahoo-test | paper, yahoo-dev |"
    assert text.splitlines()[0] == header
    assert row_of(text, "CNTN-V") == "| CNTN-V | 0.5000 / 0.6000 | 0.707 | 0.758 |"
    assert row_of(text, "Okapi BM25") == "| Okapi BM25 | - | 0.356 | - |"


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Two topics and the posts of ``TEXTS``, some of which are judged."""
    for name in ("stackfaq", "semeval-cqa-b"):
        folder = tmp_path / "data" / "general" / name
        folder.mkdir(parents=True)
        lines = [json.dumps({"id": key, "text": text}) for key, text in TEXTS.items()]
        (folder / "posts.jsonl").write_text("\n".join(lines))
        (folder / "topics.train.tsv").write_text("7\tstorm harbour\n8\twhere is the village\n")
        (folder / "qrels.train.txt").write_text("7 0 3 1\n7 0 1 0\n8 0 3 1\n8 0 2 0\n")
    return tmp_path / "data"


def test_question_retrieval_by_alpha(
    questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    setup = Setup(tmp_path / "kept", write_answers(questions), "cpu")
    options = f"--vectors {questions}/vectors.txt --steps 1 --epochs 1"
    cell = Cell("CNTN-V", "drawn:cntn", tuple(options.split()), "wikiqa")
    table = TABLES["question-retrieval"]
    (done,) = finished(table, [run_cell(cell, setup)], setup)
    # α = 0 is Okapi's ranking of the judged posts, α = 1 that of the cosines.
    checkpoint = checkpoints.load(setup.checkpoint(cell))
    qrels = {"7": {"3": 1, "1": 0}, "8": {"3": 1, "2": 0}}
    topics = {"7": "storm harbour", "8": "where is the village"}
    vector = {text: question_vectors(checkpoint, [text])[0] for text in TEXTS.values()}
    okapi = {
        query_id: Okapi(TEXTS).scores(topics[query_id], list(qrels[query_id])) for query_id in qrels
    }
    cosine = {
        query_id: {
            doc_id: float(
                question_vectors(checkpoint, [topics[query_id]])[0] @ vector[TEXTS[doc_id]]
            )
            for doc_id in qrels[query_id]
        }
        for query_id in qrels
    }
    for alpha, run in (("0.00", okapi), ("1.00", cosine)):
        expected = mean(evaluate(qrels, run, ["AP"])["AP"])
        assert done.measures[f"semeval-cqa-b {alpha}"] == pytest.approx(expected, abs=1e-4)
    text = render(table, [done])
    assert len(text.splitlines()) == 2 + 21
    value = done.measures["stackfaq 0.50"]
    assert row_of(text, "0.50").startswith(f"| 0.50 | {value:.4f} |")
    draw(tmp_path / "figure.png", table, [done], setup)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
