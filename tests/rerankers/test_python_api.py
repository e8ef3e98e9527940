"""``import tweetrerank``: texts in, scores out; rerankers in PyTerrier and LangChain."""

import copy
import dataclasses
import re
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
from tweetrerank.rerankers import RerankerError, adapters, registry
from tweetrerank.rerankers.checkpoint import SHIPPED
from tweetrerank.rerankers.model import Model
from tweetrerank.rerankers.pairs import FIRST_STAGE, ORDER, PRIOR, Pairs

HEAVY = {"lightgbm", "nltk", "pandas", "scipy", "sklearn"}
"""Packages that no loading of a model needs."""


@pytest.fixture(scope="module")
def reranker() -> Model:
    return tweetrerank.load("mp_hcnn")


def test_trees_import_little_and_a_network_names_the_extra_that_it_needs() -> None:
    steps = {
        "import sys, tweetrerank": {"torch", "numpy", "jnius", "pyserini"},
        "tweetrerank.load()": HEAVY,
        "tweetrerank.load().rank('storm', ['a storm', 'lunch'])": {
            "torch",
            "pandas",
            "lightgbm",
        },
    }
    code = "".join(f"{step}; print(*sys.modules)\n" for step in steps)
    done = run_python(
        "-c", f"{code}sys.modules['torch'] = None; tweetrerank.load('mp_hcnn')"
    )
    expected = (
        "no PyTorch, which mp_hcnn needs; install it: pip install 'tweetrerank[neural]'"
    )
    assert f"found {expected}" in done.stderr
    for (step, absent), modules in zip(
        steps.items(), done.stdout.splitlines(), strict=True
    ):
        assert not absent & {*modules.split()}, step


@pytest.mark.slow
def test_a_network_imports_little_and_a_later_import_of_nltk_is_a_whole_one() -> None:
    code = "import sys, tweetrerank; tweetrerank.load('mp_hcnn'); print(*sys.modules)\n"
    code += "import tweetrerank.rerankers.text.stems, nltk; print(nltk.corpus, nltk.pos_tag)"
    modules, _, later = run_python("-c", code).stdout.partition("\n")
    assert not HEAVY & {*modules.split()} and "function" in later


def test_public_names(reranker: Model) -> None:
    assert repr(reranker) == f"Model('mp_hcnn', '{SHIPPED / 'mp_hcnn' / 'all'}')"
    assert "mp_hcnn" in registry.names()
    assert tweetrerank.__version__ == metadata.version("tweetrerank")
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = tweetrerank.nothing


@pytest.mark.filterwarnings("ignore:fusion was trained with")
@pytest.mark.parametrize("name", ["mp_hcnn", "fusion"])
def test_scores_are_those_of_pairs_as_index_arrays(name: str) -> None:
    loaded, pairs = tweetrerank.load(name), all_pairs()
    predicted = loaded.predict([(query, post) for query in QUERIES for post in POSTS])
    assert predicted.shape == (len(pairs),) and predicted.dtype == np.float32
    np.testing.assert_allclose(predicted, loaded.score(pairs), rtol=1e-6, atol=2e-6)


def test_a_fusion_warns_that_texts_lack_its_signals() -> None:
    """It reads the scores of a first stage."""
    fusion, first = (
        tweetrerank.load("fusion"),
        [float(n % 5) for n in range(len(POSTS))],
    )
    message = r"fusion was trained with axiom, bm25, .* window ranks better"
    with pytest.warns(RuntimeWarning, match=message) as found:
        fusion.rank("water", ["water"])
    assert found[0].filename == __file__
    with pytest.warns(RuntimeWarning, match="trained with axiom, bm25, ql, rm3, which"):
        scores = fusion.predict([(QUERIES[0], post) for post in POSTS], first)
    signals = {FIRST_STAGE: np.array(first, np.float32)}
    expected = fusion.score(
        dataclasses.replace(all_pairs(QUERIES[:1]), signals=signals)
    )
    np.testing.assert_array_equal(scores, expected)


def test_ranked_posts_are_best_first(reranker: Model) -> None:
    scores = reranker.predict([(QUERIES[0], post) for post in POSTS])
    ranked = reranker.rank(QUERIES[0], POSTS)
    assert [post.index for post in ranked] == np.argsort(
        -scores, kind="stable"
    ).tolist()
    assert [post.score for post in ranked] == sorted(scores.tolist(), reverse=True)
    assert all(post.text == POSTS[post.index][0] for post in ranked)
    assert reranker.rank(QUERIES[0], POSTS, top_k=3) == ranked[:3]
    equal = reranker.rank("water", ["no", "water", "no", "water"])
    assert [post.index for post in equal] == [1, 3, 0, 2]
    assert (
        reranker.rank("water", []) == reranker.rank("water", ["water"], top_k=0) == []
    )
    assert reranker.predict([]).shape == (0,)
    assert len(reranker.rank("", ["", " "])) == 2


STORM = [
    "breaking: storm warning for the whole coast tonight",
    "my coffee is cold and so is the weather",
    "a warning to all readers: spoilers ahead",
    "storm surge expected, the coast guard warns of floods",
    "coast to coast in nine days",
]


def test_a_window_reads_a_set_an_order_and_scores_of_more_than_a_few_posts() -> None:
    window = tweetrerank.load("window")
    first = window.rank("storm warning coast", STORM)
    again = window.rank("storm warning coast", STORM[::-1])
    assert [post.text for post in first] == [post.text for post in again]
    assert {post.text for post in first[:2]} == {STORM[0], STORM[3]}
    pairs = [("coast", f"{post} {number}") for number in range(8) for post in STORM]
    in_order = window.predict(pairs, in_order=True)
    backwards = window.predict(pairs[::-1], in_order=True)[::-1]
    others = window.predict(pairs), window.predict(pairs, scores=range(40, 0, -1))
    assert len({tuple(v.tolist()) for v in (in_order, backwards, *others)}) == 4
    # A first stage's word for a post never counts against it.
    assert in_order[0] > backwards[0] and in_order[-1] < backwards[-1]
    # Clients send lists in batches, whose first post need not be the best one.
    pairs = [("storm warning coast", post) for post in STORM]
    alone = [float(window.predict([pair], in_order=True)[0]) for pair in pairs]
    assert window.predict(pairs, in_order=True).tolist() == alone
    assert window.predict(pairs[::-1], in_order=True).tolist() == alone[::-1]
    more = [("storm warning coast", f"storm {number}") for number in range(27)]
    assert window.predict([*pairs, *more]).tolist()[:5] == alone


@pytest.mark.parametrize(("size", "is_ordered"), [(40, True), (40, False), (8, True)])
def test_contributions_add_up_to_scores_with_the_trust(
    size: int, is_ordered: bool
) -> None:
    """In the first stage, or in the texts where its order is unknown or is that of a batch."""
    window, rows = tweetrerank.load("window"), np.arange(size)
    texts = [f"{text} {number}" for number in range(8) for text in STORM][:size]
    order = {ORDER: (rows + 1).astype(np.float32)} if is_ordered else {}
    pairs = Pairs(["storm coast"], texts, [""] * size, rows * 0, rows, order)
    values, added = window.contributions(pairs)
    scores, of = window.score(pairs), dict(zip(window.names, values.T, strict=True))
    assert np.ptp(scores - added.sum(axis=1)) < 1e-4
    trusting = dataclasses.replace(window.config, trust=window.config.trust + 1)
    more = dataclasses.replace(window, config=trusting).score(pairs) - scores
    by_texts = 25 * of["content.bm25"] - 5 + of["lexical.ql"]
    by_texts -= np.nan_to_num(of["content.log_rank"])
    assert np.ptp(by_texts) > 1
    expected = -np.log(1 + rows) if is_ordered and size > 32 else by_texts
    np.testing.assert_allclose(more, expected, atol=1e-4)


def test_posts_as_people_hold_them(reranker: Model) -> None:
    """A missing link is none; columns of a frame, records, generators and views are lists."""
    texts, urls = [text for text, _ in POSTS], [url for _, url in POSTS]
    expected = reranker.rank(QUERIES[0], POSTS)
    records = [
        {"id": n, "text": text, "url": url or None}
        for n, (text, url) in enumerate(POSTS)
    ]
    for posts in (
        records,
        zip(texts, urls, strict=True),
        dict(enumerate(POSTS)).values(),
    ):
        assert reranker.rank(QUERIES[0], posts) == expected
    assert all(post.id == post.index for post in reranker.rank(QUERIES[0], records))
    assert {post.id for post in expected} == {None}
    keyed = [{"doc_id": "a", "text": "water", "url": float("nan")}, {"text": "no"}]
    assert {post.id for post in reranker.rank("water", keyed)} == {"a", None}
    plain = reranker.rank(QUERIES[0], texts)
    assert plain != expected
    for missing in (None, ""):
        assert reranker.rank(QUERIES[0], [(text, missing) for text in texts]) == plain
    column = pd.Series(texts, index=range(len(texts), 0, -1)).sort_index()
    assert all(
        post.text == list(column)[post.index] for post in reranker.rank("bbc", column)
    )
    scores = [float(n) for n in range(len(texts))]
    given, read = (
        reranker.rank("bbc", texts, scores=of) for of in (scores, iter(scores))
    )
    assert given == read


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
def test_models_travel_as_their_folders(name: str) -> None:
    model = tweetrerank.load(name)
    expected = model.rank("water", POSTS)
    assert copy.deepcopy(model).rank("water", POSTS) == expected
    assert elsewhere(model.rank, "water", POSTS) == expected
    with pytest.raises(RerankerError, match="without a folder"):
        copy.copy(dataclasses.replace(model, directory=Path()))


@pytest.mark.parametrize("name", ["window", "mp_hcnn"])
@pytest.mark.parametrize("device", ["mps", "gpu", "cpu:0", None])
def test_devices_are_checked(name: str, device: Any) -> None:
    with pytest.raises(RerankerError, match="expected auto, cpu, cuda or cuda:N"):
        tweetrerank.load(name, device=device)


@pytest.mark.parametrize("weight", [None, 0.0, 0.7, 1.0])
def test_scores_of_a_first_stage_are_mixed_in(
    reranker: Model, weight: float | None
) -> None:
    """By the tuned λ, each query apart."""
    first = np.random.default_rng(1).random(len(QUERIES) * len(POSTS)) * 9
    pairs = [(query, post) for query in QUERIES for post in POSTS]
    found = reranker.predict(pairs, first.tolist(), weight)
    share = 0.35 if weight is None else weight
    for n, query in enumerate(QUERIES):
        own = slice(n * len(POSTS), (n + 1) * len(POSTS))
        neural = reranker.predict(pairs[own])
        scaled = [(v - v.min()) / np.ptp(v) for v in (neural, first[own])]
        expected = neural if share == 1 else share * scaled[0] + (1 - share) * scaled[1]
        np.testing.assert_allclose(found[own], expected, atol=1e-5)
        ranked = reranker.rank(query, POSTS, 5, first[own].tolist(), weight)
        assert [post.index for post in ranked] == np.argsort(-expected, kind="stable")[
            :5
        ].tolist()


def test_a_prior_is_that_of_the_first_stage_and_lambda_must_be_known(
    tmp_path: Path,
) -> None:
    ready = network(small_model("sm_cnn", "static"), name="sm_cnn", directory=tmp_path)
    pairs, first = [(QUERIES[0], post) for post in POSTS[:3]], [0.5, 0.9, 0.1]
    found = ready.predict(pairs, first, weight=1)
    prior = (1 / np.log([3.0, 2.0, 4.0])).astype(np.float32)
    known = dataclasses.replace(
        all_pairs(QUERIES[:1], POSTS[:3]), signals={PRIOR: prior}
    )
    np.testing.assert_allclose(found, ready.score(known), rtol=1e-6)
    with pytest.raises(
        RerankerError, match=r"lambda.json: found no tuned λ .* give `weight`"
    ):
        ready.predict(pairs, first)
    (tmp_path / "lambda.json").write_text('{"weight": 0.5, "normalization": "none"}')
    with pytest.raises(RerankerError, match="found a λ for scores normalised by none"):
        ready.predict(pairs, first)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"posts": "a text"}, "posts: found 'a text', expected a list of posts"),
        ({"top_k": -1}, "top_k: found -1, expected 0 or more"),
        ({"scores": [1.0]}, "scores: found 1 numbers, .* each of 2 posts"),
        ({"scores": [1e39, float("nan")]}, "2 of them not finite"),
        (
            {"scores": [1.0, 2.0], "weight": 2.0},
            "weight: found 2.0, expected a number from 0",
        ),
        ({"weight": 0.5}, "weight: found 0.5 without scores to mix"),
        (["ab"], r"found the pair 'ab', expected \(query, post\)"),
        ([(1, "post")], r"found the pair \(1, 'post'\)"),
        ([("query", (None, "url"))], r"found the post \(None, 'url'\)"),
    ],
)
def test_wrong_arguments(reranker: Model, arguments: Any, message: str) -> None:
    """Of ``rank``, and pairs of ``predict``."""
    with pytest.raises(RerankerError, match=message):
        if isinstance(arguments, list):
            reranker.predict(arguments)
        else:
            reranker.rank(
                **{"query": "water", "posts": ["water", "coffee"], **arguments}
            )


def test_a_folder_may_be_named(tmp_path: Path, monkeypatch: Patch) -> None:
    folder = SHIPPED / "mp_hcnn" / "mb2011"
    assert tweetrerank.load(folder).directory == folder
    assert tweetrerank.load(str(folder)).directory == folder
    (tmp_path / "fusion").mkdir()
    monkeypatch.chdir(tmp_path)
    assert tweetrerank.load("fusion").directory == SHIPPED / "fusion" / "all"
    with pytest.raises(RerankerError, match=r"config\.json"):
        tweetrerank.load(Path("fusion"))
    message = "'mp_hcn', expected one of fusion, mp_hcnn, sm_cnn, window, or .*mean mp_hcnn\\?$"
    with pytest.raises(RerankerError, match=message):
        tweetrerank.load("mp_hcn")


FIRST = [float(row * 7 % 5) for row in range(len(POSTS))]  # Scores of a first stage


def results() -> pd.DataFrame:
    """Every post for every query, as a first stage of PyTerrier gives them."""
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
    return pt.model.add_ranks(pd.DataFrame(rows).assign(score=[*FIRST] * len(QUERIES)))


@pytest.mark.parametrize("weight", [None, 1.0])
def test_a_transformer_of_pyterrier(reranker: Model, weight: float | None) -> None:
    steps = pt.Transformer.from_df(results()) >> adapters.for_pyterrier(
        reranker, weight
    )
    found = steps.transform(results()[["qid", "query"]].drop_duplicates())
    for qid, query in enumerate(QUERIES):
        expected = reranker.rank(query, POSTS, None, FIRST, weight)
        ranked = found[found["qid"] == str(qid)].sort_values("rank")
        assert ranked["rank"].tolist() == list(range(len(POSTS)))
        assert ranked["score"].tolist() == pytest.approx(
            [one.score for one in expected], abs=1e-5
        )
        assert ranked["docno"].iloc[0] == f"d{expected[0].index}"


def test_topics_of_one_text_are_apart() -> None:
    ranker = adapters.for_pyterrier(tweetrerank.load())
    one = results()[results()["qid"] == "0"]
    both = pd.concat([one, one.assign(qid="x", text=one["text"] + " storm")]).sample(
        frac=1
    )
    alone, beside = ranker.transform(one), ranker.transform(both)
    beside = beside[beside["qid"] == "0"].sort_values("rank")
    assert beside["docno"].tolist() == alone.sort_values("rank")["docno"].tolist()
    assert beside["score"].tolist() == pytest.approx(
        alone.sort_values("rank")["score"].tolist()
    )


def test_pyterrier_without_urls_or_results(reranker: Model) -> None:
    ranker = adapters.for_pyterrier(reranker)
    empty = ranker.transform(results().iloc[:0])
    assert len(empty) == 0
    assert {"qid", "docno", "text", "score", "rank"} <= set(empty.columns)
    assert pt.inspect.transformer_inputs(ranker) == [["qid", "docno", "query", "text"]]
    one = ranker.transform(results().drop(columns=["url", "score"]).iloc[:1])[
        "score"
    ].item()
    assert one == pytest.approx(
        reranker.predict([(QUERIES[0], POSTS[0][0])]).item(), abs=1e-5
    )
    with pytest.raises(pt.validate.InputValidationError, match="text"):
        ranker.transform(results().drop(columns="text"))


def test_a_compressor_of_langchain(reranker: Model) -> None:
    documents = [
        Document(text, id=str(row), metadata={"url": url})
        for row, (text, url) in enumerate(POSTS)
    ]
    expected = reranker.rank(QUERIES[0], POSTS, 3)
    compressor = adapters.for_langchain(reranker, top_n=3)
    for found in (
        compressor.compress_documents(documents, QUERIES[0]),
        run_apart(lambda: compressor.acompress_documents(documents, QUERIES[0])),
    ):
        for one, other in zip(found, expected, strict=True):
            assert (one.id, one.page_content) == (str(other.index), other.text)
            scored = {"url": POSTS[other.index][1], "relevance_score": other.score}
            assert one.metadata == scored
    assert not any("relevance_score" in one.metadata for one in documents)
    for document, score in zip(documents, FIRST, strict=True):
        document.metadata["score"] = score
    mixed = compressor.compress_documents(documents, QUERIES[0])
    expected = reranker.rank(QUERIES[0], POSTS, 3, FIRST)
    assert [one.id for one in mixed] == [str(one.index) for one in expected]
    whole = adapters.for_langchain(reranker)
    plain = [Document(text) for text, _ in POSTS]
    assert len(whole.compress_documents(plain, "cuts")) == len(POSTS)
    assert whole.compress_documents([], "cuts") == []
    with pytest.raises(RerankerError, match="found the post"):
        whole.compress_documents([Document("a", metadata={"url": 5})], "a")


def test_what_the_readme_shows() -> None:
    text = Path(adapters.__file__).with_name("README.md").read_text(encoding="utf-8")
    blocks = [
        b
        for b in re.findall(r"```python\n(.*?)```", text, re.DOTALL)
        if "adapters" in b
    ]
    first = results()[lambda frame: frame["query"] == QUERIES[0]].assign(qid="1")
    documents = [Document(text, metadata={"url": url}) for text, url in POSTS]
    names = {"first_stage": pt.Transformer.from_df(first), "documents": documents}
    shown = []
    for block in blocks:
        assert QUERIES[0] in block
        steps, _, last = block.rstrip().rpartition("\n")
        exec(steps, names)
        shown.append(eval(last, names))
    frame, compressed = shown
    ranked, reranker = frame.sort_values("rank")["text"].tolist(), tweetrerank.load()
    assert ranked[:3] == [
        one.text for one in reranker.rank(QUERIES[0], POSTS, 3, FIRST)
    ]
    best = [one.text for one in reranker.rank(QUERIES[0], POSTS, 3)]
    assert [one.page_content for one in compressed] == best
