"""The command ``python -m pipeline.explain``, and the matches and the page that it shows."""

import base64
import hashlib
import html
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from page_samples import HOSTILE, parsed
from reranking_samples import AWKWARD, POSTS, QUERIES, encoder, small_model

from indexes.posts import Post
from pipeline import explain
from pipeline.collections import named
from pipeline.collections.trec import Run, ranked, write_run
from pipeline.command.options import run_command
from pipeline.explanation import frame, match_page
from pipeline.explanation.matches import Explanation, Segment, columns_of, paint, view
from pipeline.explanation.rank_changes import (
    Place,
    RankChange,
    choose,
    grade_text,
    rank_changes,
    visible,
)
from rerankers.base import TRIGRAMS, URL_TRIGRAMS, WORDS, Pairs
from rerankers.engine.tokenized import Tokenized
from rerankers.evidence import (
    Evidence,
    Matches,
    bounds_of,
    compare,
    find_url,
    find_words,
    mean_by_word,
    measure_of,
    trigram_spans,
)
from rerankers.text.words import character_trigrams, url_text, words

TEXTS = [text for text, _ in POSTS]
URLS = [url for _, url in POSTS]

# What is hard to keep apart: marks, names, links, brackets, styles, and letters that change length.
PIECES = ["a", "Z", "ooo", "é", "e\u0301", "İ", "ß", "ﬁ", "½", "Ⓗ", "™", "Σ", "…", "_", "'", "’",
          "n't", "'s", "@", "@bob", "#", "http://t.co/x", "www.", "-LRB-", "\\", " ", "\n", "\0",
          "\U0001f602", "\u200d", "ع", "ガ", "한", "7", "%C3%BC", "%20", "%", "/", "?"]  # fmt: skip
texts = st.one_of(st.text(), st.lists(st.sampled_from(PIECES)).map("".join))


def original(text: str) -> dict[str, str]:
    """Word -> what it is in the text as it was written."""
    return {word.text: text[slice(*word.place)] for word in find_words(text)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("RT @bbc: Cuts http://t.co/x #BBC!", {"rt": "RT", "cuts": "Cuts", "bbc": "BBC"}),
        ("sooooo gooood", {"soo": "sooooo", "good": "gooood"}),
        ("café MÜNCHEN", {"cafe": "café", "munchen": "MÜNCHEN"}),
        ("cafe\u0301s e\u0301", {"cafes": "cafe\u0301s", "e": "e\u0301"}),
        ("\U0001f602lol\U0001f602 \U0001f1ea\U0001f1ec ok", {"lol": "lol", "ok": "ok"}),
        ("ﬁne ½ İstanbul", {"fine": "ﬁne", "1": "½", "2": "½", "istanbul": "İstanbul"}),
        ("don't snake_case it’s", {"do": "do", "n't": "n't", "snake": "snake", "case": "case",
                                   "it": "it", "s": "s"}),
        ("-LRB- ap -RRB- \\/ @names", {"ap": "ap"}),
        ("\U0001d407\U0001d41e\U0001d425\U0001d425\U0001d428!", {
            "hello": "\U0001d407\U0001d41e\U0001d425\U0001d425\U0001d428"}),
        ("احتجاجات في", {"احتجاجات": "احتجاجات", "في": "في"}),
        ("@bob http://x.y", {}),
    ],
)  # fmt: skip
def test_words_are_found_where_they_were_written(text: str, expected: dict[str, str]) -> None:
    assert original(text) == expected


@settings(max_examples=400, deadline=None)
@given(texts)
def test_the_words_found_are_the_words_read(text: str) -> None:
    found = find_words(text)
    assert [word.text for word in found] == words(text)
    for word in found:
        assert len(word.spans) == len(word.text)
        assert all(0 <= start <= end <= len(text) for start, end in word.spans)
        assert list(word.spans) == sorted(word.spans)


@settings(max_examples=400, deadline=None)
@given(texts.map(lambda text: f"http://{text}") | texts)
def test_the_letters_of_a_url_are_those_read(url: str) -> None:
    letters, spans = find_url(url)
    assert (letters or "<url>") == url_text(url)
    assert len(spans) == len(letters)
    trigrams = character_trigrams([letters])[0] if letters else []
    assert len(trigram_spans(spans, letters)) == len(trigrams)


@pytest.mark.parametrize("text", AWKWARD.values(), ids=AWKWARD)
def test_awkward_texts(text: str) -> None:
    assert [word.text for word in find_words(text)] == words(text)
    for word in find_words(text):
        assert len(trigram_spans(word.spans, word.text)) == len(character_trigrams([word.text])[0])


def test_places_in_a_url() -> None:
    url = " HTTP://www.Example.com/M%C3%BCnchen%20ja?q=1"
    letters, spans = find_url(url)
    assert letters == "example.com/münchen ja"
    written = [url[start:end] for start, end in spans]
    assert written[:7] == list("Example")
    assert written[letters.index("ü")] == "%C3%BC"
    assert written[letters.index(" ")] == "%20"
    assert find_url("") == find_url("http://") == ("", [])


CONFIGURATIONS = [
    ("robust", {}), ("paper", {}), ("paper", {"normalization": "none"}),
    ("robust", {"similarity": "dot"}), ("robust", {"use_url_trigrams": False}),
]  # fmt: skip


def evidence_of(configuration: str, changes: dict[str, Any], query: int) -> list[Evidence]:
    model: Any = small_model("mp_hcnn", configuration, **changes)
    return compare(model, encoder(), QUERIES[query], TEXTS, URLS)


@pytest.mark.parametrize(("configuration", "changes"), CONFIGURATIONS)
def test_matches_are_those_that_the_model_pools(
    configuration: str, changes: dict[str, Any]
) -> None:
    unweighted = {**changes, "idf_weights": False}  # The paper's features are scaled by IDF.
    model: Any = small_model("mp_hcnn", configuration, **unweighted)
    rows = np.arange(len(TEXTS))
    pairs = Pairs([QUERIES[0]], TEXTS, URLS, np.zeros_like(rows), rows)
    with torch.no_grad():
        pooled = Tokenized.of(pairs, encoder(), model).compared(model, rows, model.device_of())
    found = compare(model, encoder(), QUERIES[0], TEXTS, URLS)
    assert set(found[0].matches) == set(pooled) - {"url_presence"}
    for row, evidence in enumerate(found):
        for name, matches in evidence.matches.items():
            for level in range(model.config.depth + 1):
                best = pooled[name][row, :, 2 * level].numpy()
                np.testing.assert_allclose(matches.best(level), best, atol=1e-5)


def test_matches_equal_loops() -> None:
    model: Any = small_model("mp_hcnn", "robust")
    query, texts, urls = QUERIES[1], TEXTS[2:4], URLS[2:4]
    found = compare(model, encoder(), query, texts, urls)
    for row, evidence in enumerate(found):
        read_query = encoder().queries([query], (WORDS, TRIGRAMS))
        read_post = encoder().posts([texts[row]], [urls[row]], (WORDS, TRIGRAMS, URL_TRIGRAMS))
        for name, places in model.perspectives.items():
            tower = model.towers["words" if name == "words" else "trigrams"]
            sides = []
            for packed in (read_query[places.query_input], read_post[places.post_input]):
                with torch.no_grad():
                    levels = tower(torch.tensor(packed.ids[None].astype(np.int64)))
                sides.append([level[0].numpy() for level in levels])
            for level, (asked, said) in enumerate(zip(*sides, strict=True)):
                shades = evidence.matches[name].shades(level)
                best = evidence.matches[name].best(level)
                cosines = [
                    [float(q @ d / max(np.linalg.norm(q) * np.linalg.norm(d), 1e-12)) for d in said]
                    for q in asked
                ]
                np.testing.assert_allclose(shades, [max(c) for c in zip(*cosines, strict=True)],
                                           atol=1e-5)  # fmt: skip
                np.testing.assert_allclose(best, [max(c) for c in cosines], atol=1e-5)
                for place, row_of in zip(evidence.matches[name].where(level), cosines, strict=True):
                    assert place is not None
                    assert row_of[place] == pytest.approx(max(row_of), abs=1e-5)


def test_a_term_has_the_shade_of_its_best_phrase() -> None:
    similarity = np.array([[0.1, 0.9, 0.2, 0.0], [0.3, 0.1, 0.1, 0.5]], np.float32)
    matches = Matches((similarity, similarity), width=2)
    assert matches.term_shades(0) == pytest.approx([0.3, 0.9, 0.2, 0.5])
    # The phrase at 1 is of the words 1 and 2; the last one is of the last word alone.
    assert matches.term_shades(1) == pytest.approx([0.3, 0.9, 0.9, 0.5])
    assert matches.where(0) == [1, 3]
    empty = Matches((np.zeros((2, 0), np.float32),), width=2)
    assert empty.best(0).tolist() == [0, 0]
    assert empty.where(0) == [None, None]
    assert empty.term_shades(0).tolist() == []
    assert Matches((np.zeros((0, 3), np.float32),), width=2).term_shades(0).tolist() == [0, 0, 0]


def test_trigrams_are_averaged_by_word() -> None:
    values = np.array([1, 0, 1, 0.5], np.float32)
    # "é" is two bytes, so it has two trigrams; the last word is cut off, then there is none.
    assert mean_by_word(values, ["é", "abc", "d"]) == [0.5, 0.75, None]


def test_a_model_without_limits_is_measured_by_its_greatest_match() -> None:
    model: Any = small_model("mp_hcnn", "robust", similarity="dot")
    found = compare(model, encoder(), QUERIES[0], TEXTS, URLS)
    greatest = max(level.max() for e in found for m in e.matches.values() for level in m.levels)
    assert bounds_of(model, found)[-1] == pytest.approx(0.95 * greatest)
    assert measure_of(model) == "dot product"
    assert "softmax" in measure_of(small_model("mp_hcnn", "paper"))  # type: ignore[arg-type]


def test_painting() -> None:
    text = "Soo\tgood\x1b[2Jx"
    spans = [(0, 3), (4, 8), (4, 5), (99, 99)]
    assert paint(text, spans, [0.95, 0.75, 0.1], (0.7, 0.8, 0.9, 0.99)) == [
        Segment("Soo", 3), Segment(" ", 0), Segment("good", 1), Segment("�[2Jx", 0)
    ]  # fmt: skip
    assert paint("", [], [], (1.0,)) == []
    assert visible("a\u202eb\u200dc\r\n") == "a�b\u200dc  "


def test_ranks_are_those_of_the_one_tie_rule() -> None:
    before = {"a": 3.0, "b": 2.0, "c": 2.0, "d": 0.0}
    after = {"a": 0.1, "b": 0.4, "c": 0.3, "d": 0.2}
    found = rank_changes(before, after)
    assert list(found) == ["b", "c", "d", "a"]
    assert found["c"].before == Place(2, 2.0)
    assert [found[d].rise for d in "bcda"] == [2, 0, 1, -3]
    assert choose(found, 1) == {
        "best of the new ranking": ["b"], "rose most of the others": ["d"],
        "fell most of the others": ["a"],
    }  # fmt: skip
    assert list(choose(found, 9)) == ["best of the new ranking"]


def explained(text: str, url: str, query: str = QUERIES[1], doc_id: str = "1") -> Explanation:
    model: Any = small_model("mp_hcnn", "robust")
    (evidence,) = compare(model, encoder(), query, [text], [url])
    bounds = bounds_of(model, [evidence])
    standing = RankChange(Place(2, 7.5), Place(1, 0.5), Place(1, 0.25))
    post = view(Post(doc_id, text, url), standing, 2, evidence, bounds)
    return Explanation(
        "<b>", "<7>", query, "a&b.run", "mp_hcnn", "λ = 1", 2, measure_of(model), bounds,
        columns_of(evidence), {"named posts": [post]},
    )  # fmt: skip


@pytest.mark.parametrize("text", [HOSTILE, *AWKWARD.values()], ids=["hostile", *AWKWARD])
def test_the_page_is_whole_and_holds_texts_as_texts(text: str) -> None:
    text = text.replace("\ud83d", "")  # Posts have none when they are read; no file can hold it.
    content = match_page.page(explained(text, 'javascript:"</p><img src=x>', "<i>egypt", '"><u>'))
    content.encode()
    parser = parsed(content)
    names = {tag for tag, _ in parser.seen}
    assert not names & {"script", "img", "i", "u", "b", "a", "link", "iframe"}
    assert not any(key.startswith("on") or key in ("src", "href", "style")
                   for _, attributes in parser.seen for key in attributes)  # fmt: skip
    shown = "".join(parser.texts)
    assert visible(text) in shown
    assert 'javascript:"</p><img src=x>' in shown
    assert not re.search(r"[\x00-\x09\x0b-\x1f\u202a-\u202e\u2066-\u2069]", content)


def test_the_page_forbids_all_but_its_own_style() -> None:
    content = match_page.page(explained(TEXTS[2], URLS[2]))
    (style,) = re.findall(r"<style>(.*?)</style>", content, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = html.unescape(re.findall(r'Content-Security-Policy" content="([^"]*)"', content)[0])
    assert policy.startswith("default-src 'none'")
    assert f"style-src 'sha256-{digest}'" in policy
    assert not re.search(r"url\(|@import", style)
    assert "<title>Topic &lt;7&gt;: water shortages in egypt (&lt;b&gt;)</title>" in content
    for bound in ("0.70", "0.80", "0.90", "0.99"):
        assert f"{bound} or more</mark>" in content


def contrast(first: str, second: str) -> float:
    """WCAG 2.1's contrast ratio of two colours."""
    lights = []
    for colour in (first, second):
        parts = [int(colour[n : n + 2], 16) / 255 for n in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        lights.append(0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2])
    return (max(lights) + 0.05) / (min(lights) + 0.05)


@pytest.mark.parametrize("colours", [frame.LIGHT, frame.DARK], ids=["light", "dark"])
def test_every_text_can_be_read(colours: dict[str, str]) -> None:
    for ground in ("ground", "panel", "s1", "s2", "s3", "s4"):
        assert contrast(colours["text"], colours[ground]) >= 4.5
    for ground in ("ground", "panel"):
        assert contrast(colours["quiet"], colours[ground]) >= 4.5
        for bar in ("plus", "minus"):
            assert contrast(colours[bar], colours[ground]) >= 3


def test_exact_matches_are_the_darkest() -> None:
    post = explained("no Water @water in EGYPT!", "http://x.org/egypt-water").sections[
        "named posts"
    ][0]
    darkest = [text for text, step in post.text if step == 4]
    assert [text.strip() for text in darkest] == ["Water", "in", "EGYPT"]
    # Of "egypt" no four trigrams are in the URL: its word ends there at a hyphen.
    assert "water" in "".join(text for text, step in post.url if step == 4)
    assert [row.word for row in post.rows] == ["water", "shortages", "in", "egypt"]
    assert post.rows[0].cells[0].where == "water"
    assert "".join(text for text, _ in post.url) == "http://x.org/egypt-water"
    assert explained("water", "").sections["named posts"][0].url == []


def test_a_query_and_a_post_without_words() -> None:
    for query in ("!!!", QUERIES[0]):
        content = match_page.page(explained("…", "", query))
        assert "no URL" in content
        parsed(content)


Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Command:
    """Runs the command in an empty folder; gives exit code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            run_command(
                explain.Options, explain.main, "python -m pipeline.explain", None,
                [*arguments, "--device", "cpu"],
            )  # fmt: skip
        output, errors = capsys.readouterr()
        assert isinstance(left.value.code, int)
        return left.value.code, output, errors

    return call


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run of the sample's first two topics, in ``small.run``."""
    sample = named.find("sample")
    qrels = sample.qrels
    assert qrels is not None
    made: Run = {
        query_id: {doc_id: 20 - n / 2 for n, doc_id in enumerate(sorted(qrels[query_id]))}
        for query_id in ("1", "2")
    }
    write_run(tmp_path / "small.run", made, "small")
    return made


SAMPLE = ("--topics", "sample", "--query-id", "1", "--candidates", "small.run")


def ranks(output: str) -> dict[str, tuple[int, int, int]]:
    """doc_id -> ranks before, neural, after, as printed."""
    blocks = re.findall(r"post (\S+)\nbefore #(\d+) .*?, neural #(\d+) .*?, after #(\d+)", output)
    return {doc_id: (int(a), int(b), int(c)) for doc_id, a, b, c in blocks}


def test_a_run_explained_in_the_terminal(command: Command, run: Run) -> None:
    code, output, errors = command(*SAMPLE, "--show", "3")
    assert code == 0, errors
    assert "topic 1 “Harlow Bay marathon winner”, sample" in output
    assert "\x1b" not in output
    assert "‹" in output
    shown = ranks(output)
    before = [doc_id for doc_id, _ in ranked(run["1"])]
    assert {old for doc_id, (old, _, _) in shown.items() if before[old - 1] != doc_id} == set()
    assert [new for _, _, new in shown.values()][:3] == [1, 2, 3]
    qrels = named.find("sample").qrels or {}
    for doc_id in shown:
        grade = grade_text(qrels["1"][doc_id])
        assert re.search(rf"{grade} \[{qrels['1'][doc_id]}\]  post {doc_id}\n", output)


@pytest.mark.parametrize(("weight", "column"), [("0", 0), ("1", 1)])
def test_the_weight_decides_between_the_rankings(
    weight: str, column: int, command: Command, run: Run
) -> None:
    code, output, errors = command(*SAMPLE, "--lambda", weight)
    assert code == 0, errors
    assert all(places[column] == places[2] for places in ranks(output).values())


def test_named_posts_on_a_page(command: Command, run: Run, tmp_path: Path) -> None:
    chosen = sorted(run["1"])[4:6]
    arguments = [part for doc_id in chosen for part in ("--doc-id", doc_id)]
    code, output, errors = command(*SAMPLE, *arguments, "--output", "new/page.html")
    assert (code, output) == (0, ""), errors
    assert "wrote new/page.html" in errors
    content = (tmp_path / "new" / "page.html").read_text(encoding="utf-8")
    parser = parsed(content)
    assert [tag for tag, _ in parser.seen].count("article") == 2
    shown = "".join(parser.texts)
    posts = named.find("sample").find_posts(chosen)
    for doc_id in chosen:
        assert f"post {doc_id}" in shown
        assert visible(posts[doc_id].text) in shown
    assert str(tmp_path) not in content


def test_colours_are_for_terminals(
    command: Command, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _, output, _ = command(*SAMPLE, "--show", "1")
    assert "\x1b[" in output
    assert "‹" not in output


def test_terminals_get_no_orders_from_posts(capsys: pytest.CaptureFixture[str]) -> None:
    match_page.print_explanation(explained("\x1b[2Jwater [bold]x[/bold] :smile: \u202e", ""))
    output = capsys.readouterr().out
    assert "\x1b" not in output
    assert "[bold]x[/bold] :smile: �" in output


def test_a_model_of_another_kind(command: Command, run: Run, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "config.json").write_text(json.dumps({"model": "sm_cnn"}))
    code, _, errors = command(*SAMPLE, "--checkpoint", "other")
    assert code == 2
    assert "found a model of sm_cnn, expected mp_hcnn: explanations exist for mp_hcnn" in errors


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--query-id", "99"], 2, "--query-id: found '99', expected a topic of sample: 1, 2, 3"),
        (["--query-id", "3"], 1, "expected some for the topics 3"),
        (["--doc-id", "42", "--doc-id", "43"], 2, "--doc-id: found '43', expected one of the"),
        (["--reranker", "sm_cnn"], 2, "explanations exist for mp_hcnn"),
        (["--checkpoint", "nowhere"], 1, "nowhere/config.json"),
        (["--method", "bm25"], 2, "--method changes nothing"),
        (["--doc-id", "1", "--show", "3"], 2, "--show: --doc-id says already"),
        (["--lambda", "2", "--show", "0"], 2, "--lambda: found 2"),
        (["--output", "."], 2, "found the folder"),
    ],
)
def test_mistakes(
    arguments: list[str], code: int, message: str, command: Command, run: Run
) -> None:
    found, output, errors = command(*SAMPLE, *arguments)
    assert (found, output) == (code, ""), errors
    assert message in errors


def test_the_sample_from_its_index(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "pipeline.explain", "--topics", "sample", "--query-id", "2",
         "--show", "4", "--threads", "1"],
        capture_output=True, text=True, env=os.environ | {"TWEETRERANK_HOME": str(tmp_path)},
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert "candidates by ql" in result.stdout
    assert [new for _, _, new in ranks(result.stdout).values()][:4] == [1, 2, 3, 4]


def test_a_topic_of_the_real_data(data_dir: Path, command: Command, tmp_path: Path) -> None:
    code, _, errors = command("--topics", "mb2012", "--query-id", "51", "--candidates", "ql",
                              "--data", str(data_dir), "--output", "page.html")  # fmt: skip
    assert code == 0, errors
    parser = parsed((tmp_path / "page.html").read_text(encoding="utf-8"))
    assert [tag for tag, _ in parser.seen].count("article") == 16
