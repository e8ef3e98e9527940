"""Made-up explanations, and a strict reader of their pages."""

from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from reranking_samples import QUERIES, encoder, small_model

from indexes.posts import Post
from pipeline import explain
from pipeline.collections.topics import Topic
from pipeline.command.options import run_command
from pipeline.explanation.contributions import Contribution, FusionExplanation, PostContributions
from pipeline.explanation.matches import MatchExplanation, columns_of, explain_post
from pipeline.explanation.rank_changes import RerankedTopic, rank_changes
from pipeline.reranking import Candidates
from rerankers.models._mp_hcnn_matches import find_matches, measure_name, strength_bounds

HOSTILE = """<script>alert("1")</script> & 'water' </p>\x00\u202e Egypt"""
POST = Post("5", "storm today", "http://x.org")


def reranked(*posts: Post, query: str, query_id: str = "7", name: str = "made up") -> RerankedTopic:
    """Posts in the order of the new ranking, which is the reverse of the old one."""
    before = {post.doc_id: float(n) for n, post in enumerate(posts)}
    after = {doc_id: 1 - score for doc_id, score in before.items()}
    return RerankedTopic(
        name,
        Topic(query_id, query),
        Candidates([Topic(query_id, query)], {query_id: before}, {p.doc_id: p for p in posts}),
        rank_changes({"before": before, "after": after}),
        {post.doc_id: 2 for post in posts[:1]},
        {"named posts": list(before)},
    )


def match_explanation(
    text: str,
    url: str = "",
    query: str = QUERIES[1],
    doc_id: str = "1",
    **changes: str,
) -> MatchExplanation:
    """Matches of one post, by a small model with random weights."""
    model: Any = small_model("mp_hcnn", "robust")
    (evidence,) = find_matches(model, encoder(), query, [text], [url])
    bounds, post = strength_bounds(model, [evidence]), Post(doc_id, text, url)
    return MatchExplanation(
        reranked(post, query=query, **changes),
        {"Model": "<a>"},
        measure_name(model),
        bounds,
        columns_of(evidence),
        {doc_id: explain_post(post, evidence, bounds)},
    )


def fusion_explanation(
    *families: Mapping[str, float],
    post: Post = POST,
    features: Mapping[str, float] | None = None,
    query: str = "storm",
    **changes: str,
) -> FusionExplanation:
    """Contributions by ``families``, one mapping per post; all posts have one text."""
    posts = [post._replace(doc_id=f"{post.doc_id}{'+' * n}") for n in range(len(families))]
    parts = [Contribution(name, 1 / 3, added) for name, added in (features or {}).items()]
    return FusionExplanation(
        reranked(*posts, query=query, **changes),
        {"Model": "<a>"},
        "<iframe>",
        -0.5,
        dict.fromkeys(families[0], 0.5),
        {
            post.doc_id: PostContributions(added, parts, [])
            for post, added in zip(posts, families, strict=True)
        },
    )


def run_explain(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of ``python -m pipeline.explain`` on the CPU."""
    words = [*map(str, arguments), "--device", "cpu"]
    with pytest.raises(SystemExit) as left:
        run_command(explain.Options, explain.main, "python -m pipeline.explain", None, words)
    output, errors = capsys.readouterr()
    assert isinstance(left.value.code, int)
    return left.value.code, output, errors


class Page(HTMLParser):
    """Elements and texts of a page whose elements all end where they should."""

    VOID = ("meta", "br")

    def __init__(self, content: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(content)
        self.close()
        assert not self.open

    @property
    def text(self) -> str:
        return "".join(self.texts)

    def count(self, tag: str) -> int:
        return [name for name, _ in self.elements].count(tag)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)
