"""Named collections and the locations of data."""

from pathlib import Path

import pytest

from pipeline.collections import named
from pipeline.collections.collection import data_directory, home_directory
from pipeline.command.errors import DataError, UsageError


def test_names_and_aliases() -> None:
    assert {"mb2011", "sample", "trecqa-raw", "trecqa-clean", "wikiqa"} <= {*named.names()}
    assert named.find("mb11").name == "mb2011"
    with pytest.raises(UsageError, match="did you mean 'mb2012'"):
        named.find("mb20012")
    folders = {name: named.find(name).index_directory for name in named.names()}
    # Two years share their tweets.
    assert folders["mb2011"] == folders["mb2012"] != folders["mb2013"] == folders["mb2014"]


def test_where_the_data_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWEETRERANK_HOME", str(tmp_path))
    monkeypatch.delenv("TWEETRERANK_DATA", raising=False)
    assert data_directory() == tmp_path / "data"
    monkeypatch.setenv("TWEETRERANK_DATA", "/data")
    assert data_directory() == Path("/data")
    assert data_directory(Path("mine")) == Path("mine")
    monkeypatch.delenv("TWEETRERANK_HOME")
    assert home_directory().name == "tweetrerank"


def test_missing_data_says_how_to_fetch_it(tmp_path: Path) -> None:
    collection = named.find("mb2012", tmp_path)
    for read in (lambda: collection.topics, lambda: list(collection.posts())):
        with pytest.raises(DataError, match=r"scripts/fetch_data\.py mb2012"):
            read()
    assert collection.qrels is None
    assert "mb2012 has no judgments" in collection.missing_judgments
    with pytest.raises(DataError, match=r"scripts/fetch_data\.py"):
        named.training_collections("mb2012", tmp_path)


def make_pair_folder(folder: Path, rows: list[tuple[str, str, str]]) -> None:
    folder.mkdir(parents=True)
    (folder / "a.toks").write_text("query\n" * len(rows))
    (folder / "b.toks").write_text("".join(f"{text}\n" for _, text, _ in rows))
    (folder / "url.txt").write_text("".join(f"{url}\n" for *_, url in rows))
    (folder / "id.txt").write_text(
        "".join(f"1 Q0 {doc_id} {r} 1.0 x\n" for r, (doc_id, *_) in enumerate(rows, start=1))
    )


def test_posts_of_a_pool_come_once_and_sorted(tmp_path: Path) -> None:
    folder = tmp_path / "microblog"
    make_pair_folder(folder / "trec-2011", [("30", "c", ""), ("9", "", "http://u")])
    make_pair_folder(folder / "trec-2012", [("9", "a", ""), ("100", "d", ""), ("30", "other", "")])
    (folder / "topics.microblog2011.txt").write_text("1\tquery\n")
    (folder / "runs").mkdir()
    (folder / "runs" / "run.microblog2011.RM3.txt").write_text("")
    posts = list(named.find("mb2011", tmp_path).posts())
    assert [(post.doc_id, post.text) for post in posts] == [("9", "a"), ("30", "c"), ("100", "d")]


def test_training_leaves_the_test_year_out(data_dir: Path) -> None:
    judged = named.training_collections(None, data_dir)
    assert "mb2012" in judged
    assert named.training_collections("mb12", data_dir) == [
        name for name in judged if name != "mb2012"
    ]
    with pytest.raises(UsageError):
        named.training_collections("mb2020", data_dir)


GENERAL = [name for name in named.names() if name.endswith("-train")]


@pytest.mark.parametrize("name", GENERAL)
def test_training_parts_of_other_kinds_of_posts(data_dir: Path, name: str) -> None:
    """Their judged topics are those of the training part, whose posts are there."""
    collection = named.find(name, data_dir)
    if not collection.topics_path.exists():
        pytest.skip(f"no {name}")
    qrels, topics = collection.training_qrels, collection.training_topics
    assert qrels and len(topics) >= 50
    assert {topic.query_id for topic in topics} <= {topic.query_id for topic in collection.topics}
    posts = {post.doc_id for post in collection.posts()}
    judged = {doc_id for grades in qrels.values() for doc_id, grade in grades.items() if grade > 0}
    assert judged <= posts and not collection.runs


def test_a_fusion_of_any_kind_learns_from_all(data_dir: Path) -> None:
    years = named.training_collections("mb2012", data_dir)
    assert years == ["mb2011", "mb2013", "mb2014"][: len(years)] and "mb2012" not in years
    every = named.training_collections(None, data_dir, of_any_kind=True)
    assert every[: len(years) + 1] == sorted([*years, "mb2012"])
    if (data_dir / "general").exists():
        assert every[len(years) + 1 :] == GENERAL
        rest = named.training_collections("stackfaq-train", data_dir, of_any_kind=True)
        assert rest == [name for name in every if name != "stackfaq-train"]
