"""``import tweetrerank``: texts in, scores out; PyTerrier and LangChain."""

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyterrier as pt
import pytest
from conftest import Patch
from helpers.processes import elsewhere, run_python
from helpers.reranking_samples import POSTS, QUERIES, all_pairs, network, small_model
from helpers.service_samples import run_apart
from langchain_core.documents import Document

import tweetrerank
from tweetrerank import Reranker, RerankerError
from tweetrerank.rerankers import adapters
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.pairs import FIRST_STAGE, ORDER, PRIOR, Pairs
from tweetrerank.rerankers.trees.boosting import Trees

HEAVY = {"lightgbm", "nltk", "pandas", "scipy", "sklearn"}
"""Packages that no loading of a model needs."""

TEXTS = [text for text, _ in POSTS]
URLS = [url for _, url in POSTS]


@pytest.fixture(scope="module")
def reranker() -> Reranker:
    return tweetrerank.load("mp_hcnn")


def modules_after(*steps: str) -> set[str]:
    """Modules that a new process has imported after these statements."""
    code = "; ".join(["import sys, tweetrerank", *steps, "print(*sys.modules)"])
    return set(run_python("-c", code, code=0).stdout.split())


@pytest.mark.parametrize(
    ("steps", "absent"),
    [
        ([], {"torch", "numpy", "jnius", "pyserini"}),
        (["tweetrerank.load()"], HEAVY),
        (
            ["tweetrerank.load().rank('storm', ['a storm', 'lunch'])"],
            {"torch", "pandas", "lightgbm"},
        ),
        pytest.param(["tweetrerank.load('mp_hcnn')"], HEAVY, marks=pytest.mark.slow),
    ],
    ids=["import", "load", "rank", "load a network"],
)
def test_little_is_imported(steps: list[str], absent: set[str]) -> None:
    assert not absent & modules_after(*steps)


def test_a_network_names_the_extra_that_it_needs() -> None:
    code = "import sys, tweetrerank; sys.modules['torch'] = None"
    process = run_python("-c", f"{code}; tweetrerank.load('mp_hcnn')")
    message = (
        "found no PyTorch, which mp_hcnn needs; install it: "
        "pip install 'tweetrerank[neural]'"
    )
    assert message in process.stderr


@pytest.mark.slow
def test_a_later_import_of_nltk_is_a_whole_one() -> None:
    code = "import tweetrerank.rerankers.text.stems, nltk"
    process = run_python("-c", f"{code}; print(nltk.corpus, nltk.pos_tag)")
    assert "function" in process.stdout


def test_public_names(reranker: Reranker) -> None:
    assert repr(reranker) == f"Reranker('mp_hcnn', '{SHIPPED / 'mp_hcnn' / 'all'}')"
    assert tweetrerank.__version__ == metadata.version("tweetrerank")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tweetrerank.nothing


@pytest.mark.filterwarnings("ignore:fusion was trained with")
@pytest.mark.parametrize("name", ["mp_hcnn", "fusion"])
def test_scores_are_those_of_pairs_as_index_arrays(name: str) -> None:
    reranker = tweetrerank.load(name)
    pairs = [(query, post) for query in QUERIES for post in POSTS]
    predicted = reranker.predict(pairs)
    assert predicted.shape == (len(pairs),)
    assert predicted.dtype == np.float32
    scores = reranker.model.score(all_pairs())
    np.testing.assert_allclose(predicted, scores, rtol=1e-6, atol=2e-6)


def test_a_fusion_warns_that_texts_lack_its_signals() -> None:
    fusion = tweetrerank.load("fusion")
    message = r"fusion was trained with axiom, bm25, .* window ranks better"
    with pytest.warns(RuntimeWarning, match=message) as warnings:
        fusion.rank("water", ["water"])
    assert warnings[0].filename == __file__


def test_a_fusion_reads_the_scores_of_a_first_stage() -> None:
    fusion = tweetrerank.load("fusion")
    first = [float(row % 5) for row in range(len(POSTS))]
    with pytest.warns(RuntimeWarning, match="trained with axiom, bm25, ql, rm3, which"):
        scores = fusion.predict([(QUERIES[0], post) for post in POSTS], first)
    signals = {FIRST_STAGE: np.array(first, np.float32)}
    pairs = dataclasses.replace(all_pairs(QUERIES[:1]), signals=signals)
    np.testing.assert_array_equal(scores, fusion.model.score(pairs))


def test_ranked_posts_are_best_first(reranker: Reranker) -> None:
    scores = reranker.predict([(QUERIES[0], post) for post in POSTS])
    ranked = reranker.rank(QUERIES[0], POSTS)
    order = np.argsort(-scores, kind="stable").tolist()
    assert [post.index for post in ranked] == order
    assert [post.score for post in ranked] == sorted(scores.tolist(), reverse=True)
    assert [post.text for post in ranked] == [POSTS[row][0] for row in order]
    assert reranker.rank(QUERIES[0], POSTS, top_k=3) == ranked[:3]


def test_posts_of_equal_scores_keep_their_order(reranker: Reranker) -> None:
    equal = reranker.rank("water", ["no", "water", "no", "water"])
    assert [post.index for post in equal] == [1, 3, 0, 2]


def test_empty_lists_and_texts(reranker: Reranker) -> None:
    assert reranker.rank("water", []) == []
    assert reranker.rank("water", ["water"], top_k=0) == []
    assert reranker.predict([]).shape == (0,)
    assert len(reranker.rank("", ["", " "])) == 2


STORM = [
    "breaking: storm warning for the whole coast tonight",
    "my coffee is cold and so is the weather",
    "a warning to all readers: spoilers ahead",
    "storm surge expected, the coast guard warns of floods",
    "coast to coast in nine days",
]


@pytest.fixture(scope="module")
def window() -> Reranker:
    return tweetrerank.load("window")


def test_window_ranks_a_set(window: Reranker) -> None:
    ranked = window.rank("storm warning coast", STORM)
    reversed_ranked = window.rank("storm warning coast", STORM[::-1])
    assert [post.text for post in ranked] == [post.text for post in reversed_ranked]
    assert {post.text for post in ranked[:2]} == {STORM[0], STORM[3]}


def test_window_reads_order_and_scores_of_more_than_a_few_posts(
    window: Reranker,
) -> None:
    texts = [f"{post} {number}" for number in range(8) for post in STORM]
    pairs = [("coast", text) for text in texts]
    in_order = window.predict(pairs, in_order=True)
    backwards = window.predict(pairs[::-1], in_order=True)[::-1]
    as_set = window.predict(pairs)
    with_scores = window.predict(pairs, scores=range(40, 0, -1))
    results = [in_order, backwards, as_set, with_scores]
    assert len({tuple(scores.tolist()) for scores in results}) == 4
    # A higher place in the first stage never counts against a post.
    assert in_order[0] > backwards[0]
    assert in_order[-1] < backwards[-1]


def test_window_reads_few_posts_as_a_set(window: Reranker) -> None:
    """Clients send lists in batches, whose first post need not be the best one."""
    pairs = [("storm warning coast", post) for post in STORM]
    alone = [float(window.predict([pair], in_order=True)[0]) for pair in pairs]
    assert window.predict(pairs, in_order=True).tolist() == alone
    assert window.predict(pairs[::-1], in_order=True).tolist() == alone[::-1]
    further = [("storm warning coast", f"storm {number}") for number in range(27)]
    assert window.predict(pairs + further).tolist()[:5] == alone


@pytest.mark.parametrize(
    ("size", "is_ordered", "reads_order"),
    [
        (40, True, True),
        (40, False, False),  # The order is unknown.
        (8, True, False),  # The order is that of a batch.
    ],
)
def test_contributions_add_up_to_scores_with_the_trust(
    window: Reranker, size: int, is_ordered: bool, reads_order: bool
) -> None:
    """The trust is in the first stage, or in the texts where its order is not read."""
    trees = window.model
    assert isinstance(trees, Trees)
    rows = np.arange(size)
    texts = [f"{text} {number}" for number in range(8) for text in STORM][:size]
    signals = {}
    if is_ordered:
        signals[ORDER] = (rows + 1).astype(np.float32)
    pairs = Pairs(["storm coast"], texts, [""] * size, rows * 0, rows, signals)
    values, added = trees.contributions(pairs)
    scores = trees.score(pairs)
    assert np.ptp(scores - added.sum(axis=1)) < 1e-4

    trusting = dataclasses.replace(trees.config, trust=trees.config.trust + 1)
    change = dataclasses.replace(trees, config=trusting).score(pairs) - scores
    feature = dict(zip(trees.names, values.T, strict=True))
    by_texts = 25 * feature["content.bm25"] - 5 + feature["lexical.ql"]
    by_texts -= np.nan_to_num(feature["content.log_rank"])
    assert np.ptp(by_texts) > 1
    expected = -np.log(1 + rows) if reads_order else by_texts
    np.testing.assert_allclose(change, expected, atol=1e-4)


def records() -> list[dict[str, Any]]:
    return [
        {"id": number, "text": text, "url": url or None}
        for number, (text, url) in enumerate(POSTS)
    ]


@pytest.mark.parametrize(
    "posts",
    [
        records,
        lambda: zip(TEXTS, URLS, strict=True),
        lambda: dict(enumerate(POSTS)).values(),
    ],
    ids=["records", "an iterator", "a view"],
)
def test_posts_as_people_hold_them(
    reranker: Reranker, posts: Callable[[], Iterable[Any]]
) -> None:
    expected = reranker.rank(QUERIES[0], POSTS)
    assert reranker.rank(QUERIES[0], posts()) == expected


def test_ids_of_records_come_back(reranker: Reranker) -> None:
    ranked = reranker.rank(QUERIES[0], records())
    assert [post.id for post in ranked] == [post.index for post in ranked]
    assert {post.id for post in reranker.rank(QUERIES[0], POSTS)} == {None}
    # A missing cell of a data frame is NaN.
    mixed = [{"doc_id": "a", "text": "water", "url": float("nan")}, {"text": "no"}]
    assert {post.id for post in reranker.rank("water", mixed)} == {"a", None}


@pytest.mark.parametrize("missing", [None, ""])
def test_a_missing_url_is_no_url(reranker: Reranker, missing: str | None) -> None:
    plain = reranker.rank(QUERIES[0], TEXTS)
    assert plain != reranker.rank(QUERIES[0], POSTS)
    assert reranker.rank(QUERIES[0], [(text, missing) for text in TEXTS]) == plain


def test_a_column_of_a_frame_is_a_list(reranker: Reranker) -> None:
    labels = range(len(TEXTS), 0, -1)
    column = pd.Series(TEXTS, index=labels).sort_index()
    texts = list(column)
    for post in reranker.rank("bbc", column):
        assert post.text == texts[post.index]


def test_scores_may_be_an_iterator(reranker: Reranker) -> None:
    scores = [float(number) for number in range(len(TEXTS))]
    ranked = reranker.rank("bbc", TEXTS, scores=scores)
    assert reranker.rank("bbc", TEXTS, scores=iter(scores)) == ranked


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_models_travel_as_their_folders(name: str) -> None:
    reranker = tweetrerank.load(name)
    expected = reranker.rank("water", POSTS)
    assert copy.deepcopy(reranker).rank("water", POSTS) == expected
    assert elsewhere(reranker.rank, "water", POSTS) == expected
    homeless = dataclasses.replace(reranker.model, directory=Path())
    with pytest.raises(RerankerError, match="has no folder"):
        copy.copy(homeless)


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
@pytest.mark.parametrize("device", ["mps", "gpu", "cpu:0", None])
def test_devices_are_checked(name: str, device: Any) -> None:
    with pytest.raises(RerankerError, match="expected auto, cpu, cuda or cuda:N"):
        tweetrerank.load(name, device=device)


@pytest.mark.parametrize(
    ("weight", "share"),
    [(None, 0.35), (0.0, 0.0), (0.7, 0.7), (1.0, 1.0)],
    ids=["tuned", "first stage", "mixed", "model"],
)
def test_scores_of_a_first_stage_are_mixed_in(
    reranker: Reranker, weight: float | None, share: float
) -> None:
    """For each query apart."""
    first = np.random.default_rng(1).random(len(QUERIES) * len(POSTS)) * 9
    pairs = [(query, post) for query in QUERIES for post in POSTS]
    mixture = reranker.predict(pairs, first.tolist(), weight)
    for number, query in enumerate(QUERIES):
        rows = slice(number * len(POSTS), (number + 1) * len(POSTS))
        neural = reranker.predict(pairs[rows])
        expected = neural
        if share < 1:
            expected = share * scaled(neural) + (1 - share) * scaled(first[rows])
        np.testing.assert_allclose(mixture[rows], expected, atol=1e-5)
        ranked = reranker.rank(query, POSTS, 5, first[rows].tolist(), weight)
        best = np.argsort(-expected, kind="stable")[:5].tolist()
        assert [post.index for post in ranked] == best


def scaled(values: np.ndarray) -> np.ndarray:
    return (values - values.min()) / np.ptp(values)


@pytest.fixture
def without_lambda(tmp_path: Path) -> Reranker:
    """A network in a folder without ``lambda.json``."""
    model = small_model("sm_cnn", "static")
    return Reranker(network(model, name="sm_cnn", directory=tmp_path))


FEW = [(QUERIES[0], post) for post in POSTS[:3]]
FEW_SCORES = [0.5, 0.9, 0.1]


def test_a_prior_is_that_of_the_first_stage(without_lambda: Reranker) -> None:
    scores = without_lambda.predict(FEW, FEW_SCORES, weight=1)
    prior = (1 / np.log([3.0, 2.0, 4.0])).astype(np.float32)
    pairs = all_pairs(QUERIES[:1], POSTS[:3])
    pairs = dataclasses.replace(pairs, signals={PRIOR: prior})
    np.testing.assert_allclose(scores, without_lambda.model.score(pairs), rtol=1e-6)


def test_a_missing_lambda_is_an_error(without_lambda: Reranker) -> None:
    message = r"lambda.json: found no tuned λ .* give `weight`"
    with pytest.raises(RerankerError, match=message):
        without_lambda.predict(FEW, FEW_SCORES)


def test_a_lambda_for_other_scores_is_an_error(
    without_lambda: Reranker, tmp_path: Path
) -> None:
    (tmp_path / "lambda.json").write_text('{"weight": 0.5, "normalization": "none"}')
    with pytest.raises(RerankerError, match="found a λ for scores normalised by none"):
        without_lambda.predict(FEW, FEW_SCORES)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"posts": "a text"}, "posts: 'a text' is no list of posts"),
        ({"posts": {"a": "text"}}, "posts: {'a': 'text'} is no list of posts"),
        ({"posts": 5}, "posts: 5 is no list of posts"),
        ({"query": 5}, "query: 5 is no text"),
        ({"top_k": -1}, "top_k: found -1, expected 0 or more"),
        ({"top_k": 1.5}, "top_k: found 1.5, expected 0 or more"),
        ({"scores": [1.0]}, "scores: found 1 numbers, .* each of 2 posts"),
        ({"scores": "ab"}, "scores: found 'ab', expected 2 numbers"),
        ({"scores": [1e39, float("nan")]}, "2 of them not finite"),
        ({"scores": [1.0, 2.0], "weight": 2.0}, "weight: found 2.0, expected a number"),
        ({"scores": [1.0, 2.0], "weight": -0.1}, "weight: found -0.1, expected"),
        ({"scores": [1.0, 2.0], "weight": "1"}, "weight: found 1, expected a number"),
        ({"weight": 0.5}, "weight: 0.5 needs scores to mix with"),
    ],
)
def test_wrong_arguments_of_rank(
    reranker: Reranker, arguments: dict[str, Any], message: str
) -> None:
    defaults: dict[str, Any] = {"query": "water", "posts": ["water", "coffee"]}
    with pytest.raises(RerankerError, match=message):
        reranker.rank(**(defaults | arguments))


@pytest.mark.parametrize("weight", [0, 1])
def test_weights_at_their_limits(reranker: Reranker, weight: int) -> None:
    assert len(reranker.rank("water", TEXTS[:2], scores=[1, 2], weight=weight)) == 2


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        (5, "pairs: 5 is no list"),
        (["ab"], r"the pair 'ab' is no \(query, post\)"),
        ([(1, "post")], r"the pair \(1, 'post'\) is no"),
        ([("query", "post", "url")], r"the pair \('query', .* is no"),
        ([("query", (None, "url"))], r"the post \(None, 'url'\) has no text"),
        ([("query", {"url": "u"})], r"the post {'url': 'u'} has no text"),
        ([("query", ("text", 5))], r"the post \('text', 5\) has no text"),
    ],
)
def test_wrong_pairs_of_predict(reranker: Reranker, pairs: Any, message: str) -> None:
    with pytest.raises(RerankerError, match=message):
        reranker.predict(pairs)


@pytest.mark.parametrize("kind", [Path, str])
def test_a_folder_may_be_named(kind: Callable[[Path], Any]) -> None:
    folder = SHIPPED / "mp_hcnn" / "mb2011"
    assert tweetrerank.load(kind(folder)).directory == folder


def test_a_model_has_priority_over_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: Patch
) -> None:
    (tmp_path / "fusion").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tweetrerank.load("fusion").directory == SHIPPED / "fusion" / "all"
    with pytest.raises(RerankerError, match=r"config\.json"):
        tweetrerank.load(Path("fusion"))


def test_a_misspelt_model_is_an_error_with_a_hint() -> None:
    with pytest.raises(RerankerError) as error:
        tweetrerank.load("mp_hcn")
    message = str(error.value)
    assert "'mp_hcn', expected one of fusion, mp_hcnn, sm_cnn, window, or" in message
    assert message.endswith("; did you mean mp_hcnn?")


FIRST = [float(row * 7 % 5) for row in range(len(POSTS))]  # Scores of a first stage


def results() -> pd.DataFrame:
    """Every post for every query, as a first stage of PyTerrier returns them."""
    rows = [
        {
            "qid": str(qid),
            "query": query,
            "docno": f"d{row}",
            "text": text,
            "url": url or None,
        }
        for qid, query in enumerate(QUERIES)
        for row, (text, url) in enumerate(POSTS)
    ]
    frame = pd.DataFrame(rows).assign(score=FIRST * len(QUERIES))
    return pt.model.add_ranks(frame)


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_transformer_of_pyterrier(reranker: Reranker, weight: float | None) -> None:
    first_stage = pt.Transformer.from_df(results())
    pipe = first_stage >> adapters.for_pyterrier(reranker, weight)
    frame = pipe.transform(results()[["qid", "query"]].drop_duplicates())
    for qid, query in enumerate(QUERIES):
        expected = reranker.rank(query, POSTS, None, FIRST, weight)
        ranked = frame[frame["qid"] == str(qid)].sort_values("rank")
        scores = [post.score for post in expected]
        assert ranked["rank"].tolist() == list(range(len(POSTS)))
        assert ranked["score"].tolist() == pytest.approx(scores, abs=1e-5)
        assert ranked["docno"].iloc[0] == f"d{expected[0].index}"


def test_topics_of_one_text_are_apart() -> None:
    transformer = adapters.for_pyterrier(tweetrerank.load())
    frame = results()
    topic = frame[frame["qid"] == "0"]
    twin = topic.assign(qid="x", text=topic["text"] + " storm")
    alone = transformer.transform(topic).sort_values("rank")
    together = transformer.transform(pd.concat([topic, twin]).sample(frac=1))
    together = together[together["qid"] == "0"].sort_values("rank")
    assert together["docno"].tolist() == alone["docno"].tolist()
    assert together["score"].tolist() == pytest.approx(alone["score"].tolist())


def test_pyterrier_without_results(reranker: Reranker) -> None:
    empty = adapters.for_pyterrier(reranker).transform(results().iloc[:0])
    assert len(empty) == 0
    assert {"qid", "docno", "text", "score", "rank"} <= set(empty.columns)


def test_pyterrier_without_urls_and_scores(reranker: Reranker) -> None:
    plain = results().drop(columns=["url", "score"]).iloc[:1]
    score = adapters.for_pyterrier(reranker).transform(plain)["score"].item()
    expected = reranker.predict([(QUERIES[0], TEXTS[0])]).item()
    assert score == pytest.approx(expected, abs=1e-5)


def test_pyterrier_names_the_columns_that_it_needs(reranker: Reranker) -> None:
    transformer = adapters.for_pyterrier(reranker)
    inputs = pt.inspect.transformer_inputs(transformer)
    assert inputs == [["qid", "docno", "query", "text"]]
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        transformer.transform(results().drop(columns="text"))


def documents() -> list[Document]:
    return [
        Document(text, id=str(row), metadata={"url": url})
        for row, (text, url) in enumerate(POSTS)
    ]


@pytest.mark.parametrize("is_async", [False, True])
def test_a_compressor_of_langchain(reranker: Reranker, is_async: bool) -> None:
    compressor = adapters.for_langchain(reranker, top_n=3)
    inputs = documents()
    if is_async:
        best = run_apart(lambda: compressor.acompress_documents(inputs, QUERIES[0]))
    else:
        best = compressor.compress_documents(inputs, QUERIES[0])
    ranked = reranker.rank(QUERIES[0], POSTS, 3)
    for document, post in zip(best, ranked, strict=True):
        assert document.id == str(post.index)
        assert document.page_content == post.text
        assert document.metadata == {
            "url": POSTS[post.index][1],
            "relevance_score": post.score,
        }
    assert inputs == documents()


def test_scores_of_langchain_documents_are_mixed_in(reranker: Reranker) -> None:
    inputs = documents()
    for document, score in zip(inputs, FIRST, strict=True):
        document.metadata["score"] = score
    compressor = adapters.for_langchain(reranker, top_n=3)
    best = compressor.compress_documents(inputs, QUERIES[0])
    ranked = reranker.rank(QUERIES[0], POSTS, 3, FIRST)
    assert [document.id for document in best] == [str(post.index) for post in ranked]


def test_langchain_without_a_limit_metadata_or_documents(reranker: Reranker) -> None:
    compressor = adapters.for_langchain(reranker)
    plain = [Document(text) for text in TEXTS]
    assert len(compressor.compress_documents(plain, "cuts")) == len(POSTS)
    assert compressor.compress_documents([], "cuts") == []
    with pytest.raises(RerankerError, match=r"the post .* has no text"):
        compressor.compress_documents([Document("a", metadata={"url": 5})], "a")


def test_the_examples_of_the_readme() -> None:
    readme = Path(adapters.__file__).with_name("README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    frame = results()
    first = frame[frame["query"] == QUERIES[0]].assign(qid="1")
    names = {
        "first_stage": pt.Transformer.from_df(first),
        "documents": [Document(text, metadata={"url": url}) for text, url in POSTS],
    }
    values = []
    for block in blocks:
        if "adapters" in block:
            assert QUERIES[0] in block
            statements, _, expression = block.rstrip().rpartition("\n")
            exec(statements, names)
            values.append(eval(expression, names))
    ranking, compressed = values
    reranker = tweetrerank.load()
    mixed = reranker.rank(QUERIES[0], POSTS, 3, FIRST)
    texts = ranking.sort_values("rank")["text"].tolist()
    assert texts[:3] == [post.text for post in mixed]
    best = reranker.rank(QUERIES[0], POSTS, 3)
    assert [document.page_content for document in compressed] == [
        post.text for post in best
    ]
