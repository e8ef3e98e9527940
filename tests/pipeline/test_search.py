"""The whole path on the sample collection and on files of one's own, as a user runs it."""

import json
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from conftest import Command, Result
from helpers.processes import run_python

from pipeline.collections import named
from pipeline.collections.trec import read_run

Search = Callable[..., Result]


@pytest.fixture(scope="module")
def home_of_module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home folder whose index of the sample is built once for all tests of this file."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def search(command: Command, home_of_module: Path, monkeypatch: pytest.MonkeyPatch) -> Search:
    """Runs ``pipeline.search --topics`` on the CPU."""
    monkeypatch.setenv("TWEETRERANK_HOME", str(home_of_module))
    return partial(command, "search", "--device", "cpu", "--topics")


def measures(output: str) -> dict[str, list[float]]:
    """Row name -> AP and P@30 of the table that a search prints."""
    lines = output.splitlines()
    start = next(n for n, line in enumerate(lines) if line.split()[-3:-1] == ["AP", "P@30"])
    rows = [line.partition(" -> ")[0] for line in lines[start + 1 : start + 4] if line.strip()]
    rows = [line.rsplit(maxsplit=3)[:3] for line in rows]
    return {name.strip(): [float(ap), float(p)] for name, ap, p in rows}


def test_the_whole_pipeline_is_shown(
    search: Search, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The neural model alone and mixed, the rankers, and the fusion; both results are written."""
    monkeypatch.chdir(tmp_path)
    result = search("sample", "--hits", "50", "--show", "none")
    assert result.code == 0, result.err
    assert "fusion reads no score of mp_hcnn" in result.err
    first, *rows = result.out.splitlines()
    names = [re.split(r"\s{2,}", row)[0] for row in rows]
    assert names == [
        *("ql", "mp_hcnn", "mp_hcnn + ql (λ = 0.35)", "bm25", "rm3", "axiom"),
        *("mean of min-max scores", "fusion"),
    ]
    assert rows[2].endswith("-> runs/sample.mp_hcnn.txt")
    assert rows[-1].endswith("-> runs/sample.fusion.txt")
    assert first.split()[-3] == "AP"
    ap = {
        name: float(row.partition(" -> ")[0].split()[-3])
        for name, row in zip(names, rows, strict=True)
    }
    assert ap["ql"] < min(ap["mp_hcnn + ql (λ = 0.35)"], ap["fusion"])
    for model in ("mp_hcnn", "fusion"):
        run = read_run(tmp_path / "runs" / f"sample.{model}.txt")
        assert set(map(len, run.values())) <= set(range(1, 51))


def test_the_sample_from_topics_to_run(search: Search, tmp_path: Path) -> None:
    """With MP-HCNN, whose score is mixed with the first stage's."""
    output = tmp_path / "run.txt"
    result = search("sample", "--reranker", "mp_hcnn", "--output", output, "--runtag", "mine")
    assert result.code == 0, result.err
    found = measures(result.out)
    assert set(found) == {"ql", "mp_hcnn", "mp_hcnn + ql (λ = 0.35)"}
    assert all(0 < value <= 1 for row in found.values() for value in row)
    assert "before:" in result.out and "after:" in result.out and "λ = " in result.err
    assert output.read_text().splitlines()[0].endswith(" mine")
    run = read_run(output)
    ceilings = {t.query_id: int(t.max_doc_id or 0) for t in named.find("sample").topics}
    for query_id, scores in run.items():
        assert all(int(doc_id) <= ceilings[query_id] for doc_id in scores)
    # The same in batches of another size.
    others = ("--batch-size", "7", "--threads", "1")
    again = search("sample", "--reranker", "mp_hcnn", "--output", output, *others)
    assert again.code == 0, again.err
    for query_id, scores in read_run(output).items():
        assert scores == pytest.approx(run[query_id], abs=1e-5)


POSTS = [
    {"id": "a", "text": "Gale force winds expected on the coast tonite #storm"},
    {"id": "b", "text": "", "url": "http://news.example.com/storm-warning"},
    {"id": "c", "text": "!!! ??? …"},
    {"id": "d", "text": "storm " * 2000},
    {"id": "e", "text": "تحذير من عاصفة على الساحل storm 🌪️🌪️"},
    {"id": "f", "text": "nul \u0000 byte storm"},
]


def test_ones_own_posts_with_strange_texts(
    search: Search, command: Command, tmp_path: Path
) -> None:
    posts, topics = tmp_path / "posts.jsonl", tmp_path / "topics.tsv"
    index, output = tmp_path / "index", tmp_path / "run"
    posts.write_text("".join(json.dumps(post) + "\n" for post in POSTS), encoding="utf-8")
    topics.write_text("1\tstorm warning coast\n2\t!!!\n3\t\n4\tnothingmatchesthis\n")
    refused = search(topics)
    assert refused.code == 2
    assert "pipeline.index --posts" in refused.err
    built = command("index", "--posts", posts, "--index", index)
    assert built.code == 0, built.err
    result = search(topics, "--index", index, "--output", output)
    assert result.code == 0, result.err
    assert {q: set(s) for q, s in read_run(output).items()} == {"1": {"a", "d", "e", "f"}}
    assert "no judgments" in result.out
    assert "\x00" not in result.out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ("mb2021", 2, "did you mean"),
        ("sample --hits 0 --lambda 7", 2, "--lambda: found 7"),
        ("sample --mu 9 --method bm25", 2, "bm25 has no μ"),
        ("sample --method qll", 2, "did you mean 'ql'"),
        ("sample --reranker bert", 2, "found 'bert', expected one of"),
        ("sample --candidates none.txt", 1, "none.txt"),
        ("sample --checkpoint nowhere", 1, "nowhere/config.json"),
        ("sample --parameter mu=1 --parameter nu=1", 2, "nu"),
        ("sample --show 99", 2, "expected a topic with results"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    arguments: str, code: int, message: str, search: Search, tmp_path: Path
) -> None:
    result = search(*arguments.split(), "--output", tmp_path / "run")
    assert result.code == code, result.err
    assert message in result.err
    assert "Traceback" not in result.err


@pytest.mark.slow
def test_the_papers_protocol(data_dir: Path, search: Search, tmp_path: Path) -> None:
    paths = ("--data", data_dir, "--output", tmp_path / "run")
    result = search("mb2012", "--candidates", "ql", "--reranker", "mp_hcnn", *paths)
    assert result.code == 0, result.err
    found = measures(result.out)
    assert found["ql"] == [0.2091, 0.3311]
    # The paper's neural row has .2313 and .3757.
    assert found["mp_hcnn"][0] > 0.2313
    mixture = next(name for name in found if "λ" in name)
    assert found[mixture][0] > 0.2482


@pytest.mark.slow
@pytest.mark.parametrize("reranker", ["auto", "none"])
def test_a_search_without_pytorch(reranker: str, tmp_path: Path) -> None:
    """A network's stages are not beside the best fusion then."""
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "
        "runpy.run_module('pipeline.search', run_name='__main__')"
    )
    options = ("--topics", "sample", "--reranker", reranker, "--output", tmp_path / "run")
    done = run_python("-c", code, *options, TWEETRERANK_HOME=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "mp_hcnn" not in done.stdout
    assert len(read_run(tmp_path / "run")) == 20
