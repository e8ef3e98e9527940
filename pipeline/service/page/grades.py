"""Grades given by hand on the page, in a file of judgments."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from indexes.files import atomic_file
from pipeline.collections.clicks import normalize, query_id
from pipeline.collections.topics import Topic, read_topics
from pipeline.collections.trec import Qrels, read_qrels


class Grades:
    """A file of judgments, in TREC's form, and one of their topics beside it.

    Both are read before each change, so that changes by others stay, and written as a whole.
    The topics of ``grades.txt`` are in ``grades.topics.jsonl``.

    Raises DataError for a malformed file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.topics_path = path.with_name(f"{path.name.split('.')[0]}.topics.jsonl")
        self.reload()

    def reload(self) -> tuple[Qrels, dict[str, Topic]]:
        """Both files as they are now."""
        qrels = read_qrels(self.path) if _has_lines(self.path) else {}
        topics = read_topics(self.topics_path) if _has_lines(self.topics_path) else []
        self._of_topics = qrels
        return qrels, {topic.query_id: topic for topic in topics}

    def of(self, query_id: str) -> Mapping[str, int]:
        """doc_id -> grade, as last read."""
        return self._of_topics.get(query_id, {})

    def set(self, topic: Topic, doc_id: str, grade: int | None) -> None:
        """Write a grade; None takes it back. Raises DataError for a malformed file, or OSError."""
        qrels, topics = self.reload()
        of_topic = qrels.setdefault(topic.query_id, {})
        of_topic.pop(doc_id, None)
        if grade is not None:
            of_topic[doc_id] = grade
            topics[topic.query_id] = topic
        with atomic_file(self.topics_path) as stream:
            for each in topics.values():
                known = {name: value for name, value in each._asdict().items() if value is not None}
                stream.write(f"{json.dumps(known, ensure_ascii=False)}\n")
        with atomic_file(self.path) as stream:
            for name, grades in qrels.items():
                stream.writelines(f"{name} 0 {d} {value}\n" for d, value in grades.items())


def own_id(text: str) -> str:
    """The query_id of a text that is no topic: that of click logs."""
    return query_id(normalize(text))


def _has_lines(path: Path) -> bool:
    return path.exists() and bool(path.stat().st_size)
