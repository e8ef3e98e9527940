"""Similar questions in an archive of answered ones, by the command pipeline.retrieve."""

from pathlib import Path
from typing import Any

import pytest
from helpers.data_samples import write_answers
from helpers.reranking_samples import encoder, small_model

from pipeline import retrieve
from pipeline.collections.collection import AnswerCollection
from pipeline.collections.named import find_answers
from pipeline.collections.trec import read_run
from pipeline.command.errors import UsageError
from rerankers import checkpoint


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint on disk, beside the data of the archive."""
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nwater\t40\n")
    reader = checkpoint.TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    checkpoint.save(tmp_path / "saved", "cntn", small_model("cntn", "cntn_v"), reader, {})
    write_answers(tmp_path / "data")
    return tmp_path / "saved"


@pytest.fixture
def archive(saved: Path) -> AnswerCollection:
    return find_answers("trecqa-raw", saved.parent / "data").part("train")


def retrieved(saved: Path, **changes: Any) -> None:
    given = {"archive": "trecqa-raw", "checkpoint": saved, "data": saved.parent / "data"}
    retrieve.main(retrieve.Options(**given | changes))


def right_answers(archive: AnswerCollection, query_id: str) -> set[str]:
    return {doc_id for doc_id, grade in (archive.qrels or {})[query_id].items() if grade > 0}


def test_the_command_shows_answered_questions(
    saved: Path, archive: AnswerCollection, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = archive.topics[3]
    retrieved(saved, question=asked.text, alpha=1.0, device="cpu")
    found = capsys.readouterr()
    lines = found.out.splitlines()
    assert lines[0] == f"question “{asked.text}”:"
    assert lines[1].split(maxsplit=3)[:3] == ["1", "1.0000", f"[{asked.query_id}]"]
    texts = {post.doc_id: post.text for post in archive.posts()}
    right = right_answers(archive, asked.query_id)
    assert lines[2].strip() in {" ".join(texts[doc_id].split()) for doc_id in right}
    assert len(lines) == 11
    # One question has no right answer.
    assert "7 of 7 questions for 1 in" in found.err


def test_the_command_writes_a_run(
    saved: Path, archive: AnswerCollection, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each question finds itself, by α = 1, or with its best answer, by α = 0."""
    questions, output = tmp_path / "questions.tsv", tmp_path / "runs" / "run.txt"
    topics = [topic for topic in archive.topics if right_answers(archive, topic.query_id)]
    asked = {topic.query_id: topic.text for topic in topics}
    questions.write_text("".join(f"{query_id}\t{text}\n" for query_id, text in asked.items()))
    runs = []
    for alpha in (1.0, 0.0, 0.7):
        retrieved(saved, questions=questions, hits=4, output=output, alpha=alpha)
        runs.append(read_run(output))
    assert capsys.readouterr().out == ""
    similar, answered, mixed = runs
    assert similar.keys() == asked.keys()
    for query_id, scores in mixed.items():
        assert next(iter(similar[query_id])) == query_id and len(scores) == 4
        expected = {q: 0.7 * similar[query_id][q] + 0.3 * answered[query_id][q] for q in scores}
        assert scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    "wrong", [{}, {"question": "a", "questions": Path("x")}, {"question": " "}]
)
def test_the_command_says_what_is_wrong(saved: Path, wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--question"):
        retrieved(saved, **wrong)
