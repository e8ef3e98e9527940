"""The sample collection: what its README says of posts, topics and judgments."""

from datetime import UTC, datetime
from pathlib import Path

from indexes.posts import read_posts
from pipeline.collections.topics import read_topics
from pipeline.collections.trec import read_qrels

SAMPLE = Path(__file__).resolve().parents[2] / "pipeline" / "sample"
TWITTER_EPOCH = 1288834974657  # milliseconds since 1970 at which tweet ids start

POSTS = list(read_posts(SAMPLE / "posts.jsonl"))
TOPICS = read_topics(SAMPLE / "topics.txt")
QRELS = read_qrels(SAMPLE / "qrels.txt")


def date_of(doc_id: str) -> str:
    """The day on which a tweet of this id was written."""
    milliseconds = (int(doc_id) >> 22) + TWITTER_EPOCH
    return datetime.fromtimestamp(milliseconds / 1000, UTC).date().isoformat()


def test_posts_are_in_order_and_short() -> None:
    ids = [post.doc_id for post in POSTS]
    assert ids == sorted(set(ids), key=int)
    assert (date_of(ids[0]), date_of(ids[-1])) == ("2012-01-30", "2012-02-12")
    assert len({post.text for post in POSTS}) == len(POSTS)
    assert all(0 < len(post.text.strip()) <= 140 for post in POSTS)


def test_judged_posts_are_there_when_the_query_is_asked() -> None:
    assert [topic.query_id for topic in TOPICS] == list(QRELS)
    there = {post.doc_id for post in POSTS}
    for topic in TOPICS:
        judged = QRELS[topic.query_id]
        assert judged.keys() <= there
        assert max(map(int, judged)) <= int(topic.max_doc_id or 0)
        assert set(judged.values()) == {0, 1, 2}
