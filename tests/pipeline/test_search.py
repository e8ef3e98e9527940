"""The commands ``search`` and ``index``, on the sample and on files of one's own."""

import re
import shlex
from functools import partial
from pathlib import Path

import pytest
from conftest import Command, Patch
from helpers.data_samples import write_microblog
from helpers.index_samples import write_lines
from helpers.processes import run_python

from tweetrerank.indexes.lucene_index import LuceneIndex
from tweetrerank.indexes.posts import Post
from tweetrerank.pipeline.collections import named
from tweetrerank.pipeline.collections.trec import read_run


@pytest.fixture
def search(
    command: Command, pools: None, tmp_path: Path, monkeypatch: Patch
) -> Command:
    """Runs ``pipeline.search --topics`` on the CPU in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return partial(command, "search", "--device", "cpu", "--topics")


def measures(output: str) -> dict[str, tuple[float, float, str]]:
    """Row name -> AP, P@30 and the file, of the table that a search prints."""
    rows = re.findall(
        r"^(.+?)  +(\d\.\d+) +(\d\.\d+) +\S+(?: +-> (.*))?$", output, re.M
    )
    return {
        name: (float(ap), float(precision), file) for name, ap, precision, file in rows
    }


def test_the_whole_pipeline_is_shown(search: Command) -> None:
    """The neural model alone and mixed, the rankers, and the fusion; both results are written."""
    result = search("sample", "--hits", "50", "--runtag", "mine", code=0)
    assert "fusion reads no score of mp_hcnn" in result.err and "λ = " in result.err
    assert "before:" in result.out and "after:" in result.out
    assert result.out.splitlines()[0].split()[-3:] == ["AP", "P@30", "ms/topic"]
    found, mixed = measures(result.out), "mp_hcnn + ql (λ = 0.35)"
    averaged = "mean of min-max scores"
    assert [*found] == [
        "ql",
        "mp_hcnn",
        mixed,
        "bm25",
        "rm3",
        "axiom",
        averaged,
        "fusion",
    ]
    assert all(0 < value <= 1 for row in found.values() for value in row[:2])
    assert found["ql"] < min(found[mixed], found["fusion"])
    ceilings = {t.query_id: int(t.max_doc_id or 0) for t in named.find("sample").topics}
    for name, model in ((mixed, "mp_hcnn"), ("fusion", "fusion")):
        assert found[name][2] == f"runs/sample.{model}.txt"
        assert Path(found[name][2]).read_text().splitlines()[0].endswith(" mine")
        for query_id, scores in read_run(found[name][2]).items():
            assert 1 <= len(scores) <= 50
            assert all(int(doc_id) <= ceilings[query_id] for doc_id in scores)


POSTS = [
    {"id": "a", "text": "Gale force winds expected on the coast tonite #storm"},
    {"id": "b", "text": "", "url": "http://news.example.com/storm-warning"},
    {"id": "c", "text": "!!! ??? …"},
    {"id": "d", "text": "storm " * 2000},
    {"id": "e", "text": "تحذير من عاصفة على الساحل storm 🌪️🌪️"},
    {"id": "f", "text": "nul \u0000 byte storm"},
]


def test_ones_own_posts_with_strange_texts(search: Command, command: Command) -> None:
    posts, topics = write_lines(Path("posts.jsonl"), POSTS), Path("topics.tsv")
    topics.write_text("1\tstorm warning coast\n2\t!!!\n3\t\n4\tnothingmatchesthis\n")
    assert "pipeline.index --posts" in search(topics, code=2).err
    command("index", "--posts", posts, "--index", "index", code=0)
    result = search(topics, "--index", "index", "--output", "run", code=0)
    assert {q: set(s) for q, s in read_run("run").items()} == {
        "1": {"a", "d", "e", "f"}
    }
    assert "no judgments" in result.out and "\x00" not in result.out


@pytest.mark.slow
def test_the_papers_protocol(data_dir: Path, search: Command) -> None:
    protocol = ("--candidates", "ql", "--reranker", "mp_hcnn", "--data", data_dir)
    found = measures(search("mb2012", *protocol, "--output", "run", code=0).out)
    assert found["ql"][:2] == (0.2091, 0.3311)
    # The paper's neural row has .2313 and .3757.
    assert found["mp_hcnn"][0] > 0.2313
    assert next(row for name, row in found.items() if "λ" in name)[0] > 0.2482


@pytest.mark.slow
def test_a_search_without_pytorch_has_no_stages_of_a_network(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; "
    code += "runpy.run_module('pipeline.search', run_name='__main__')"
    few = ("--hits", "50", "--output", tmp_path / "run")
    done = run_python("-c", code, "--topics", "sample", *few, code=0)
    assert "mp_hcnn" not in done.stdout
    assert len(read_run(tmp_path / "run")) == 20


def test_own_posts(command: Command, tmp_path: Path) -> None:
    monday = [{"id": 1, "text": "alpha"}, {"id": 2, "text": ""}]
    tuesday = [{"id_str": "30", "full_text": "alpha bravo"}]
    files = [write_lines(tmp_path / "monday.jsonl", monday)]
    files.append(write_lines(tmp_path / "tues day.jsonl.gz", tuesday))
    given = [word for file in files for word in ("--posts", str(file))]
    place = tmp_path / "my new" / "index"
    done = command("index", *given, "--index", place, code=0)
    first, second = done.out.splitlines()
    assert first.startswith("3 posts (1 empty) in ") and first.endswith(" posts/s")
    assert (second, done.err) == (
        f"index: {place}",
        "",
    )  # no progress bar, no words of Java's
    with LuceneIndex.open(place, files) as opened:
        assert opened.posts.get_many(["30"]) == {"30": Post("30", "alpha bravo")}
        words = ["python", "-m", "pipeline.index", *given, "--index", str(place)]
        assert shlex.split(opened.manifest.rebuild) == words


def test_a_named_collection(command: Command, tmp_path: Path) -> None:
    collection = named.find("mb2012", write_microblog(tmp_path))
    place = collection.index_directory
    for option in ("--collection", "--topics"):
        done = command("index", option, "mb2012", "--data", tmp_path)
        assert done.out.splitlines()[-1] == f"index: {place}", done.err
        with LuceneIndex.open(place, collection.post_files()) as opened:
            assert {*opened.posts} == {*collection.posts()}
            words = f"--collection mb2012 --data {tmp_path} --index {place}"
            assert opened.manifest.rebuild == f"python -m pipeline.index {words}"
