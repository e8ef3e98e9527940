"""The sample collection is what its README says; read here without the project's readers."""

import json
import re
from collections import Counter, defaultdict
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

SAMPLE = Path(__file__).resolve().parent.parent / "pipeline" / "sample"
TWITTER_EPOCH = 1288834974657  # milliseconds since 1970 at which tweet ids start
TWO_WEEKS = 14 * 24 * 3600  # seconds
OFTEN_ENOUGH = 12  # topics out of 20

TOPIC = re.compile(
    r"<top>\n<num> Number: MB(\d{3}) </num>\n<query> (.+) </query>\n"
    r"<querytime> (.+) </querytime>\n<querytweettime> (\d+) </querytweettime>\n</top>\n+"
)
SHORT_LINK = re.compile(r"https?://\S+")


class Asked(NamedTuple):
    """A topic: its words, the time of asking, the newest id that it may find."""

    words: set[str]
    time: datetime
    ceiling: int


def lines(name: str) -> list[str]:
    return (SAMPLE / name).read_text(encoding="utf-8").splitlines()


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", SHORT_LINK.sub(" ", text.lower())))


def seconds(doc_id: int) -> float:
    """When a tweet of this id was written, in seconds since 1970."""
    return ((doc_id >> 22) + TWITTER_EPOCH) / 1000


# Not splitlines(): what JSON leaves bare, such as U+2028, would end a line there.
POSTS = [
    json.loads(line)
    for line in (SAMPLE / "posts.jsonl").read_text(encoding="utf-8").rstrip("\n").split("\n")
]
TEXTS: dict[str, str] = {post["id"]: post["text"] for post in POSTS}
TOPICS = {
    str(int(number)): Asked(
        words(query), datetime.strptime(time, "%a %b %d %H:%M:%S %z %Y"), int(ceiling)
    )
    for number, query, time, ceiling in TOPIC.findall((SAMPLE / "topics.txt").read_text("utf-8"))
}
JUDGED: dict[str, dict[str, int]] = defaultdict(dict)
for _line in lines("qrels.txt"):
    _query_id, _, _doc_id, _grade = _line.split(" ")
    JUDGED[_query_id][_doc_id] = int(_grade)


def judged(query_id: str, relevant: bool) -> list[str]:
    """Ids of the posts that are relevant to a topic, or judged and not."""
    return [doc_id for doc_id, grade in JUDGED[query_id].items() if (grade > 0) == relevant]


def test_posts_are_many_and_in_order() -> None:
    ids = [post["id"] for post in POSTS]
    assert len(ids) >= 600
    assert all(re.fullmatch("[1-9][0-9]{17}", doc_id) for doc_id in ids)
    assert ids == sorted(set(ids))


def test_posts_have_what_the_reader_expects() -> None:
    for post in POSTS:
        assert post.keys() <= {"id", "text", "url"}, post
        assert 0 < len(post["text"].strip()) <= 140, post
        assert bool(SHORT_LINK.search(post["text"])) == bool(post.get("url")), post


def test_ids_are_times_within_two_weeks() -> None:
    first, last = seconds(int(POSTS[0]["id"])), seconds(int(POSTS[-1]["id"]))
    assert last - first <= TWO_WEEKS
    assert datetime.fromtimestamp(first, UTC).date().isoformat() == "2012-01-30"
    assert datetime.fromtimestamp(last, UTC).date().isoformat() == "2012-02-12"


def test_only_retweets_copy_a_text() -> None:
    repeated = [text for text, times in Counter(TEXTS.values()).items() if times > 1]
    assert not repeated


def test_topics_are_twenty_and_every_line_of_their_file_is_one() -> None:
    assert list(TOPICS) == [str(number) for number in range(1, 21)]
    assert not TOPIC.sub("", (SAMPLE / "topics.txt").read_text("utf-8")).strip()


@pytest.mark.parametrize("query_id", TOPICS)
def test_query_time_and_tweet_time_agree(query_id: str) -> None:
    topic = TOPICS[query_id]
    assert abs(seconds(topic.ceiling) - topic.time.timestamp()) <= 1


def test_judgments_name_topics_and_posts_once() -> None:
    assert JUDGED.keys() == TOPICS.keys()
    assert sum(map(len, JUDGED.values())) == len(lines("qrels.txt"))
    for of_topic in JUDGED.values():
        assert of_topic.keys() <= TEXTS.keys()
        assert set(of_topic.values()) == {0, 1, 2}


@pytest.mark.parametrize("query_id", TOPICS)
def test_what_is_judged_was_there_when_the_query_was_asked(query_id: str) -> None:
    assert all(int(doc_id) <= TOPICS[query_id].ceiling for doc_id in JUDGED[query_id])


@pytest.mark.parametrize("query_id", TOPICS)
def test_topics_have_enough_of_both_kinds(query_id: str) -> None:
    assert 10 <= len(judged(query_id, relevant=True)) <= 25
    assert 12 <= len(judged(query_id, relevant=False)) <= 25


def test_several_topics_have_later_posts_with_their_words() -> None:
    later = {
        query_id
        for query_id, topic in TOPICS.items()
        for doc_id, text in TEXTS.items()
        if int(doc_id) > topic.ceiling and topic.words <= words(text)
    }
    assert len(later) >= 5


def test_many_topics_have_a_near_miss_with_every_word() -> None:
    having = {
        query_id
        for query_id, topic in TOPICS.items()
        for doc_id in judged(query_id, relevant=False)
        if topic.words <= words(TEXTS[doc_id])
    }
    assert len(having) >= OFTEN_ENOUGH


def test_many_topics_have_a_relevant_post_with_hardly_a_word() -> None:
    having = {
        query_id
        for query_id, topic in TOPICS.items()
        for doc_id in judged(query_id, relevant=True)
        if len(topic.words & words(TEXTS[doc_id])) <= 1
    }
    assert len(having) >= OFTEN_ENOUGH


def test_the_readme_counts_right() -> None:
    readme = " ".join((SAMPLE / "README.md").read_text(encoding="utf-8").split())
    grades = Counter(grade for of_topic in JUDGED.values() for grade in of_topic.values())
    without_link = sum(not post.get("url") for post in POSTS)
    for said in (
        f"{len(POSTS)} posts",
        f"{without_link} posts",
        f"{len(TOPICS)} topics",
        f"{grades.total()} judgments",
        f"{grades[2]} of grade 2 (highly relevant), {grades[1]} of grade 1, {grades[0]} of grade 0",
    ):
        assert said in readme, said
