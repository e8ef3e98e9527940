"""Question retrieval against brute force: equation 4 over every pair of a small archive."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from helpers.reranking_samples import POSTS, QUERIES, encoder, small_model

from indexes.posts import Post
from pipeline import retrieve
from pipeline.collections import named
from pipeline.collections.topics import Topic
from pipeline.collections.trec import read_run
from pipeline.command.errors import UsageError
from pipeline.ranking.archive import ArchivedPair, QuestionArchive, mix
from rerankers import checkpoint
from rerankers.reranker import TrainedReranker

# Every post's first words as a question, with one answer; the first two have a second one.
QUESTIONS = {f"q{n}": " ".join(text.split()[:3]) for n, (text, _) in enumerate(POSTS)}
PAIRS = [
    *(ArchivedPair(f"q{n}", QUESTIONS[f"q{n}"], Post(f"a{n}", POSTS[-n][0])) for n in range(12)),
    ArchivedPair("q0", QUESTIONS["q0"], Post("a20", "world service with a smile")),
    ArchivedPair("q1", QUESTIONS["q1"], Post("a21", "no cuts")),
]
TOPICS = [Topic(f"t{n}", text) for n, text in enumerate(QUERIES)]


@cache
def trained(model: str = "cntn", configuration: str = "cntn_v", seed: int = 0) -> Any:
    return TrainedReranker(
        model, small_model(model, configuration, seed), encoder(), {}, Path("checkpoint")
    )


class Answers:
    """The parts of an AnswerCollection that the archive reads; all parts are the same."""

    name = "answers"

    def __init__(self, judged: bool = True) -> None:
        self.judged = judged

    def part(self, name: str) -> "Answers":
        assert name == "train"
        return self

    @property
    def topics(self) -> list[Topic]:
        return [Topic(name, text) for name, text in QUESTIONS.items()]

    def posts(self) -> list[Post]:
        return [pair.answer for pair in PAIRS]

    @property
    def qrels(self) -> dict[str, dict[str, int]] | None:
        grades = {name: {"a5": 0, "a6": -1} for name in QUESTIONS}
        for pair in PAIRS[2:]:
            grades[pair.query_id][pair.answer.doc_id] = 1
        return grades if self.judged else None

    @property
    def missing_judgments(self) -> str:
        return "answers has no judgments here"


@pytest.fixture
def saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint on disk, and a collection ``answers`` for it."""
    idf = tmp_path / "idf.tsv"
    idf.write_text("1000\nwater\t40\n")
    reader = checkpoint.TextEncoder(encoder().vocabulary, checkpoint.idf_from(str(idf)))
    model = small_model("cntn", "cntn_v")
    checkpoint.save(tmp_path / "saved", "cntn", model, reader, {})
    monkeypatch.setattr(named, "find_answers", lambda name, data: Answers(), raising=False)
    return tmp_path / "saved"


def options(checkpoint: Path, **changes: Any) -> retrieve.Options:
    return retrieve.Options(**{"archive": "answers", "checkpoint": checkpoint} | changes)


def written_questions(folder: Path) -> Path:
    path = folder / "questions.tsv"
    path.write_text("".join(f"{topic.query_id}\t{topic.text}\n" for topic in TOPICS))
    return path


def test_the_command_shows_answered_questions(
    saved: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    retrieve.main(options(saved, question=QUESTIONS["q3"], alpha=1.0, device="cpu"))
    found = capsys.readouterr()
    lines = found.out.splitlines()
    assert lines[0] == f"question “{QUESTIONS['q3']}”:"
    assert lines[1].split(maxsplit=3)[:3] == ["1", "1.0000", "[q3]"]
    assert lines[2].strip() == POSTS[-3][0]
    assert len(lines) == 11
    assert "12 of 12 questions for 1 in" in found.err


def test_the_command_writes_a_run(
    saved: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    questions, output = written_questions(tmp_path), tmp_path / "runs" / "run.txt"
    retrieve.main(options(saved, questions=questions, hits=4, output=output))
    assert capsys.readouterr().out == ""
    expected = mix(
        QuestionArchive.build(PAIRS[2:], trained()).search(TOPICS, 4), retrieve.DEFAULT_ALPHA
    )
    run = read_run(output)
    assert run.keys() == expected.keys()
    for name, scores in run.items():
        assert scores == pytest.approx(expected[name], abs=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "--question"),
        ({"question": "a", "questions": Path("x")}, "--question"),
        ({"question": " "}, "--question"),
    ],
)
def test_the_command_says_what_is_wrong(saved: Path, wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        retrieve.main(options(saved, **wrong))
