"""The judgments that users give by hand on the page."""

import json
from pathlib import Path

from tweetrerank.indexes.files import atomic_file
from tweetrerank.pipeline.collections.topics import Topic, read_topics
from tweetrerank.pipeline.collections.trec import read_qrels


class Grades:
    """A file of judgments in TREC's format, and beside it a file of their topics.

    The topics of ``grades.txt`` are in ``grades.topics.jsonl``. Both files are read
    again before each change, so that changes by other programs are kept. Each file is
    replaced as a whole. Raises DataError if a file is malformed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics_path = path.with_name(f"{path.name.split('.')[0]}.topics.jsonl")
        self.reload()

    def reload(self) -> dict[str, Topic]:
        """Read both files, and return the topics by their ``query_id``."""
        self.qrels = read_qrels(self.path) if _has_content(self.path) else {}
        if not _has_content(self.topics_path):
            return {}
        return {topic.query_id: topic for topic in read_topics(self.topics_path)}

    def set(self, topic: Topic, doc_id: str, grade: int | None) -> None:
        """Write the grade of a post; None deletes the grade.

        Raises DataError if a file is malformed, or OSError if it cannot be written.
        """
        topics = self.reload()
        grades = self.qrels.setdefault(topic.query_id, {})
        grades.pop(doc_id, None)
        if grade is not None:
            grades[doc_id] = grade
            topics[topic.query_id] = topic
        with atomic_file(self.topics_path) as stream:
            for topic_of_grade in topics.values():
                stream.write(f"{_json_of(topic_of_grade)}\n")
        with atomic_file(self.path) as stream:
            for query_id, judgments in self.qrels.items():
                for name, value in judgments.items():
                    stream.write(f"{query_id} 0 {name} {value}\n")


def _has_content(path: Path) -> bool:
    return path.exists() and path.stat().st_size > 0


def _json_of(topic: Topic) -> str:
    fields = topic._asdict().items()
    present = {name: value for name, value in fields if value is not None}
    return json.dumps(present, ensure_ascii=False)
