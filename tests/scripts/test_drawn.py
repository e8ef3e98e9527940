"""Right answers among drawn ones, Okapi BM25, and question retrieval by α."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from experiments import drawn
from experiments.cells import OKAPI, Cell, Setup, run_cell
from experiments.systems import DRAWN_ANSWERS, System
from experiments.tables.cntn import DrawnAnswers, QuestionRetrieval, Questions
from helpers.data_samples import write_answers
from helpers.experiment_samples import run_commands_here
from test_tables import result, row_of

from pipeline.evaluation.measures import evaluate, mean
from pipeline.ranking.archive import question_vectors
from rerankers import checkpoint as checkpoints

pytestmark = pytest.mark.slow  # experiments are no part of the packages

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
        found = drawn.Okapi(TEXTS).scores(query, list(TEXTS))
        np.testing.assert_allclose(list(found.values()), expected, rtol=1e-12)


def test_cells_pick_right_answers_with_and_without_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_commands_here(monkeypatch)
    data = write_answers(tmp_path / "data")
    setup = Setup(tmp_path / "kept", data, "cpu")
    (okapi,) = System("Okapi", OKAPI).cells(["wikiqa"], [1, 2])
    found = run_cell(okapi, setup)
    assert set(found.measures) == {"P@1", "RR"}
    assert 0 < found.measures["P@1"] <= found.measures["RR"] <= 1
    assert not setup.directory.exists()
    # A right answer has all words of its question, and nearly always the most.
    assert found.measures["P@1"] > 0.5

    options = "--development drawn --steps 1 --epochs 1 --configuration nbow_mlp --vectors"
    cell = Cell("NBOW", "drawn:cntn", (*options.split(), f"{data}/vectors.txt"), "wikiqa")
    found = run_cell(cell, setup)
    assert found.measures == drawn.measure(
        setup.collection("wikiqa"),
        setup.checkpoint(cell),  # type: ignore[arg-type]
    )
    assert not setup.run_file(cell).exists()


def test_the_table_has_the_papers_figures_for_its_data() -> None:
    table = DrawnAnswers()
    last = DRAWN_ANSWERS[-1]
    text = table.markdown([result(last, "wikiqa", **{"P@1": 0.5, "RR": 0.6})])
    assert text.splitlines()[0] == (
        "| system | wikiqa P@1/RR | paper, yahoo-dev P@1 | paper, yahoo-test P@1 |"
    )
    assert row_of(text, "CNTN-V") == "| CNTN-V | 0.5000 / 0.6000 | 0.758 | 0.707 |"
    assert row_of(text, "Okapi BM25") == "| Okapi BM25 | - | - | 0.356 |"


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
    table = QuestionRetrieval()
    (finished,) = table.finish([run_cell(cell, setup)], setup)
    read = Questions.read(questions / "general" / "semeval-cqa-b", judged_only=True)
    assert {query_id: set(run) for query_id, run in read.candidates.items()} == {
        "7": {"1", "3"},
        "8": {"2", "3"},
    }
    # α = 0 is Okapi's ranking, α = 1 that of the cosines.
    checkpoint = checkpoints.load(setup.checkpoint(cell))
    asked = question_vectors(checkpoint, [topic.text for topic in read.topics])
    neural = {
        topic.query_id: {
            doc_id: float(vector @ question_vectors(checkpoint, [TEXTS[doc_id]])[0])
            for doc_id in read.candidates[topic.query_id]
        }
        for topic, vector in zip(read.topics, asked, strict=True)
    }
    for alpha, run in (("0.00", read.candidates), ("1.00", neural)):
        expected = mean(evaluate(read.qrels, run, ["AP"])["AP"])
        assert finished.measures[f"semeval-cqa-b {alpha}"] == pytest.approx(expected, abs=1e-4)
    everything = Questions.read(questions / "general" / "stackfaq", judged_only=False)
    assert set(everything.candidates["7"]) == set(TEXTS)
    text = table.markdown([finished])
    assert len(text.splitlines()) == 2 + 21
    value = finished.measures["stackfaq 0.50"]
    assert row_of(text, "0.50").startswith(f"| 0.50 | {value:.4f} |")
    table.draw(tmp_path / "figure.png", [finished], setup)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")
