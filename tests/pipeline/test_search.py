"""The commands ``search`` and ``index``, on the sample and on files of posts."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

import pytest
from conftest import Command, Patch, Result
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
    """Runs ``search --topics`` on the CPU in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(line: str, code: int = 0) -> Result:
        return command(f"search --device cpu --topics {line}", code=code)

    return call


class Row(NamedTuple):
    """Row of the table that a search prints."""

    ap: float
    precision: float  # P@30
    file: str  # Run file; empty if it is not written


def table_of(output: str) -> dict[str, Row]:
    """The rows of a table, by the name of the stage."""
    pattern = r"^(.+?)  +(\d\.\d+) +(\d\.\d+) +\S+(?: +-> (.*))?$"
    table = {}
    for name, ap, precision, file in re.findall(pattern, output, re.M):
        table[name] = Row(float(ap), float(precision), file)
    return table


# Topics


@pytest.fixture
def result(search: Command) -> Result:
    return search("sample --hits 50 --runtag mine")


MIXTURE = "mp_hcnn + ql (λ = 0.35)"


def test_the_whole_pipeline_is_shown(result: Result) -> None:
    """The neural model alone and mixed, the rankers, and the fusion."""
    assert "fusion reads no score of mp_hcnn" in result.err
    assert "λ = " in result.err
    assert "before:" in result.out
    assert "after:" in result.out
    assert result.out.splitlines()[0].split()[-3:] == ["AP", "P@30", "ms/topic"]
    table = table_of(result.out)
    average = "mean of min-max scores"
    rankers = ["bm25", "rm3", "axiom"]
    stages = ["ql", "mp_hcnn", MIXTURE, *rankers, average, "fusion"]
    assert list(table) == stages
    for name, row in table.items():
        assert 0 < row.ap <= 1, name
        assert 0 < row.precision <= 1, name
    assert table["ql"] < table[MIXTURE]
    assert table["ql"] < table["fusion"]


@pytest.mark.parametrize(
    ("stage", "model"), [(MIXTURE, "mp_hcnn"), ("fusion", "fusion")]
)
def test_both_results_are_written(result: Result, stage: str, model: str) -> None:
    file = table_of(result.out)[stage].file
    assert file == f"runs/sample.{model}.txt"
    assert Path(file).read_text().splitlines()[0].endswith(" mine")
    ceilings = {
        topic.query_id: int(topic.max_doc_id or 0)
        for topic in named.find("sample").topics
    }
    for query_id, scores in read_run(file).items():
        assert 1 <= len(scores) <= 50
        assert max(map(int, scores)) <= ceilings[query_id]


@pytest.mark.slow
def test_the_papers_protocol(data_dir: Path, search: Command) -> None:
    protocol = f"--candidates ql --reranker mp_hcnn --data {data_dir}"
    table = table_of(search(f"mb2012 {protocol} --output run").out)
    assert (table["ql"].ap, table["ql"].precision) == (0.2091, 0.3311)
    # The paper's neural row has .2313 and .3757.
    assert table["mp_hcnn"].ap > 0.2313
    mixture = next(row for name, row in table.items() if "λ" in name)
    assert mixture.ap > 0.2482


@pytest.mark.slow
def test_a_search_without_pytorch_has_no_stages_of_a_network(tmp_path: Path) -> None:
    code = "import runpy, sys; sys.modules['torch'] = None; "
    code += "runpy.run_module('pipeline.search', run_name='__main__')"
    line = f"--topics sample --hits 50 --output {tmp_path / 'run'}"
    process = run_python("-c", code, *line.split(), code=0)
    assert "mp_hcnn" not in process.stdout
    assert len(read_run(tmp_path / "run")) == 20


# Posts from files

POSTS = [
    {"id": "a", "text": "Gale force winds expected on the coast tonite #storm"},
    {"id": "b", "text": "", "url": "http://news.example.com/storm-warning"},
    {"id": "c", "text": "!!! ??? …"},
    {"id": "d", "text": "storm " * 2000},
    {"id": "e", "text": "تحذير من عاصفة على الساحل storm 🌪️🌪️"},
    {"id": "f", "text": "nul \u0000 byte storm"},
]


def test_ones_own_posts_with_strange_texts(search: Command, command: Command) -> None:
    write_lines(Path("posts.jsonl"), POSTS)
    topics = "1\tstorm warning coast\n2\t!!!\n3\t\n4\tnothingmatchesthis\n"
    Path("topics.tsv").write_text(topics)
    assert "pipeline.index --posts" in search("topics.tsv", code=2).err
    command("index --posts posts.jsonl --index index", code=0)
    result = search("topics.tsv --index index --output run")
    posts = {query_id: set(scores) for query_id, scores in read_run("run").items()}
    assert posts == {"1": {"a", "d", "e", "f"}}
    assert "no judgments" in result.out
    assert "\x00" not in result.out


def test_own_posts(command: Command, tmp_path: Path) -> None:
    monday = [{"id": 1, "text": "alpha"}, {"id": 2, "text": ""}]
    tuesday = [{"id_str": "30", "full_text": "alpha bravo"}]
    files = [
        write_lines(tmp_path / "monday.jsonl", monday),
        write_lines(tmp_path / "tues day.jsonl.gz", tuesday),
    ]
    place = tmp_path / "my new" / "index"
    options = ["--posts", files[0], "--posts", files[1], "--index", place]
    result = command("index", *options, code=0)
    first, second = result.out.splitlines()
    assert first.startswith("3 posts (1 empty) in ")
    assert first.endswith(" posts/s")
    assert second == f"index: {place}"
    assert result.err == ""  # no progress bar, no words of Java's
    with LuceneIndex.open(place, files) as index:
        assert index.posts.get_many(["30"]) == {"30": Post("30", "alpha bravo")}
        rebuild = shlex.split(index.manifest.rebuild)
    command_line = ["python", "-m", "pipeline.index"]
    assert rebuild == command_line + list(map(str, options))


@pytest.mark.parametrize("option", ["--collection", "--topics"])
def test_a_named_collection(command: Command, tmp_path: Path, option: str) -> None:
    collection = named.find("mb2012", write_microblog(tmp_path))
    place = collection.index_directory
    result = command(f"index {option} mb2012 --data {tmp_path}", code=0)
    assert result.out.splitlines()[-1] == f"index: {place}"
    with LuceneIndex.open(place, collection.post_files()) as index:
        assert set(index.posts) == set(collection.posts())
        rebuild = index.manifest.rebuild
    options = f"--collection mb2012 --data {tmp_path} --index {place}"
    assert rebuild == f"python -m pipeline.index {options}"
