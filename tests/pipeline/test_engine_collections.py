"""Collections with an index in a search engine: their files and their commands."""

import json
import re
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import pytest
from conftest import Capture, Command, Result
from helpers.engine_servers import Server
from helpers.service_samples import running as serving
from helpers.teacher_samples import write_folder

from tweetrerank.indexes.engines.client import Engine, encoded
from tweetrerank.indexes.posts import read_posts
from tweetrerank.pipeline import tune
from tweetrerank.pipeline.collections.named import SAMPLE, find, open_collection
from tweetrerank.pipeline.defaults import DEFAULT_WINDOW
from tweetrerank.pipeline.ranking.build import default_reranker

TOPICS = f'topics = "{SAMPLE / "topics.txt"}"\nqrels = "{SAMPLE / "qrels.txt"}"\n'


def test_a_file_names_an_existing_index(tmp_path: Path) -> None:
    query = tmp_path / "query.json"
    query.write_text('{"match": {"body": "{{query}}"}}')
    toml = tmp_path / "shop.toml"
    toml.write_text(
        f'{TOPICS}engine = "http://a:9200,http://b:9200"\nengine_index = "shop"\n'
        'engine_auth = "user.toml"\ntext_field = "body"\nid_field = "sku"\n'
        'query = "query.json"\n'
    )
    collection = find(str(toml))
    engine = collection.engine
    assert engine
    assert engine.urls == ["http://a:9200", "http://b:9200"]
    assert engine.auth == tmp_path / "user.toml"
    assert engine.query == query
    assert (engine.text_field, engine.id_field) == ("body", "sku")
    assert collection.methods == ()


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A file of posts to index in an engine."""
    toml = tmp_path / "shop.toml"
    toml.write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\n{TOPICS}engine = "http://a:9200"\n'
    )
    return toml


def test_a_file_names_posts_for_an_engine(shop: Path) -> None:
    collection = find(str(shop))
    assert collection.engine
    assert collection.engine.index.startswith("tweetrerank-own-shop-")
    assert collection.methods == ("ql", "bm25")
    assert default_reranker(collection) == DEFAULT_WINDOW


def test_an_engine_on_the_command_line_comes_first(shop: Path) -> None:
    collection = find(str(shop))
    other = open_collection(str(shop), engine={"url": "http://c:9200"})
    assert collection.engine
    assert str(other.engine) == f"http://c:9200/{collection.engine.index}"
    assert other.index_directory != collection.index_directory


@pytest.fixture
def in_engine(server: Server, command: Command) -> Command:
    """Run a command with an index of the sample in the engine."""
    options = ("--engine", server.url, "--engine-index", server.address().index)
    command("index", "--collection", "sample", *options, code=0)

    def call(name: str, *arguments: object, code: int = 0) -> Result:
        return command(name, *arguments, *options, code=code)

    return call


def test_an_absent_index_is_built(server: Server, command: Command) -> None:
    index = server.address().index
    options = ("--engine", server.url, "--engine-index", index)
    early = command("search", "--topics", "sample", *options, code=1)
    assert f"{index}: there is no such index" in early.err
    built = command("index", "--collection", "sample", *options)
    assert built.out.startswith("874 posts (0 empty), 874 of them sent in ")
    assert built.out.endswith(f"index: {server.url}/{index}\n")


def rows_of(run: Path) -> list[list[str]]:
    return [line.split() for line in run.read_text().splitlines()]


def search(command: Command, run: Path, ranker: str) -> Result:
    """Search the sample by a command here or in the engine."""
    arguments = f"--topics sample --show none --reranker {ranker} --output {run}"
    return command("search", *arguments.split(), code=0)


@pytest.mark.parametrize("ranker", ["none", "none --method bm25", "mp_hcnn --hits 20"])
def test_searches_rank_as_locally(
    in_engine: Command, command: Command, tmp_path: Path, ranker: str
) -> None:
    by_engine = search(in_engine, tmp_path / "engine", ranker)
    locally = search(command, tmp_path / "local", ranker)
    for result in (by_engine, locally):
        assert "sample has no rm3, axiom; the" not in result.err
    rows = rows_of(tmp_path / "engine")
    expected = rows_of(tmp_path / "local")
    assert [row[:4] for row in rows] == [row[:4] for row in expected]
    scores = [float(row[4]) for row in rows]
    expected_scores = [float(row[4]) for row in expected]
    assert scores == pytest.approx(expected_scores, abs=1e-4)


def test_a_fusion_without_the_engine_s_missing_methods(
    in_engine: Command, command: Command, tmp_path: Path
) -> None:
    """It ranks other posts than locally."""
    fusion = "fusion --hits 20"
    by_engine = search(in_engine, tmp_path / "engine", fusion)
    assert "sample has no rm3, axiom; the" in by_engine.err
    assert len(rows_of(tmp_path / "engine")) > 300
    locally = search(command, tmp_path / "local", fusion)
    assert "sample has no rm3, axiom; the" not in locally.err


def test_commands_read_posts_of_an_engine(
    in_engine: Command, command: Command, tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    explain = partial(in_engine, "explain", "--reranker", "mp_hcnn")
    rerank = partial(in_engine, "rerank", "--reranker", "mp_hcnn")
    explain("--topics", "sample", "--query-id", "1", "--output", page)
    assert "Harlow" in page.read_text()
    run = tmp_path / "run"
    search(command, run, "mp_hcnn --hits 20")
    rerank("--output", tmp_path / "again", "--topics", "sample", run)
    topics = tmp_path / "mine.tsv"
    topics.write_text("7\tharbour storm\n")
    search_file = partial(in_engine, "search", "--topics", topics)
    search_file("--reranker", "none", "--output", tmp_path / "mine")


def test_other_posts_are_not_added_to_an_index(
    in_engine: Command, tmp_path: Path
) -> None:
    posts = tmp_path / "other.jsonl"
    posts.write_text('{"id": "1", "text": "storm"}\n')
    refused = in_engine("index", "--posts", posts, code=1)
    problem = "there is an index with posts of posts.jsonl, expected other.jsonl"
    assert problem in refused.err


def write_foreign_index(engine: Engine) -> str:
    """Index the sample in the engine as another program; return the last post's id."""
    index = f"/{engine.address.index}"
    properties = {
        "body": {"type": "text"},
        "link": {"type": "keyword"},
        "number": {"type": "long"},
    }
    engine.request("PUT", index, {"mappings": {"properties": properties}})
    lines = []
    for post in read_posts(SAMPLE / "posts.jsonl"):
        lines.append(encoded({"index": {"_id": post.doc_id}}))
        content = {"body": post.text, "link": post.url, "number": int(post.doc_id)}
        lines.append(encoded(content))
    bulk = b"\n".join(lines) + b"\n"
    engine.request("POST", f"{index}/_bulk", bulk, {"refresh": True})
    return post.doc_id


class ForeignIndex:
    """An index by another program, and the file of its collection."""

    def __init__(self, server: Server, folder: Path) -> None:
        address = server.address(text_field="body")
        self.name = address.index
        self.engine = Engine(address)
        self.last_id = write_foreign_index(self.engine)
        query = {"match": {"body": {"query": "{{query}}"}}}
        (folder / "query.json").write_text(json.dumps(query))
        self.toml = folder / "mine.toml"
        self.toml.write_text(
            f'{TOPICS}engine = "{server.url}"\nengine_index = "{self.name}"\n'
            'text_field = "body"\nurl_field = "link"\ntime_field = "number"\n'
            'query = "query.json"\n'
        )

    def train_window(self, command: Command) -> str:
        train = partial(command, "train", "window", "--collection", self.toml)
        return train("--folds", 2, "--threads", 1, code=0).out

    def put(self, doc_id: str, text: str) -> None:
        content = {"body": text, "link": "", "number": int(doc_id)}
        path = f"/{self.name}/_doc/{doc_id}"
        self.engine.request("PUT", path, content, {"refresh": True})

    def delete(self, doc_id: str) -> None:
        path = f"/{self.name}/_doc/{doc_id}"
        self.engine.request("DELETE", path, None, {"refresh": True})

    def texts(self) -> dict[str, str]:
        """Return doc_id -> text of the posts that the collection reads."""
        with closing(find(str(self.toml)).open_index()) as index:
            return {post.doc_id: post.text for post in index.posts}


@pytest.fixture
def foreign(server: Server, tmp_path: Path) -> ForeignIndex:
    return ForeignIndex(server, tmp_path)


@pytest.mark.slow
def test_an_existing_index_is_searched_and_judged(
    foreign: ForeignIndex, tmp_path: Path, command: Command
) -> None:
    run = tmp_path / "run.txt"
    toml = foreign.toml
    result = command("search", "--collection", toml, "--output", run, code=0)
    assert "the engine's own query" in result.out
    assert "window" in result.out
    figure = result.out.split("own query ")[1].split()[0]
    assert float(figure) > 0.3
    command("evaluate", toml, run, code=0)
    rerank = partial(command, "rerank", "--collection", toml, run, code=0)
    rerank("--output", tmp_path / "again", "--reranker", "mp_hcnn")


@pytest.mark.slow
def test_models_are_trained_on_an_existing_index(
    foreign: ForeignIndex, tmp_path: Path, command: Command
) -> None:
    tune.main(tune.Options(collection=str(foreign.toml)))
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("rain 1.0 0.5\nstorm 0.9 0.6\nbus -1.0 0.2\n")
    train = partial(command, "train", "knrm", "--collection", foreign.toml, code=0)
    knrm = train("--set", "training.epochs=2", "--vectors", vectors, "--threads", 1)
    assert "20 held-out topics:" in knrm.out
    output = foreign.train_window(command)
    assert "20 held-out topics:" in output
    assert "shipped window" in output
    write_folder(tmp_path / "tiny")
    adapt = partial(command, "adapt", "--collection", foreign.toml, code=0)
    adapt("--teacher", tmp_path / "tiny", "--device", "cpu", "--threads", 1)


@pytest.mark.slow
def test_changes_by_other_programs_are_read_again(
    foreign: ForeignIndex, command: Command, capsys: Capture
) -> None:
    foreign.train_window(command)
    foreign.delete(foreign.last_id)
    foreign.put("99999", "zzyzx storm")
    texts = foreign.texts()
    assert foreign.last_id not in texts
    assert texts["99999"] == "zzyzx storm"
    assert "are read anew" in capsys.readouterr().err
    foreign.put("99999", "zzyzx gale")
    assert foreign.texts()["99999"] == "zzyzx gale"
    assert "are brought up to date" in capsys.readouterr().err
    foreign.train_window(command)


@pytest.mark.slow
def test_a_fusion_needs_runs_of_an_existing_index(
    foreign: ForeignIndex, tmp_path: Path, command: Command
) -> None:
    search_index = partial(command, "search", "--collection", foreign.toml)
    run = tmp_path / "run.txt"
    result = search_index("--reranker", "fusion", "--output", run, code=1)
    assert "found no run of" in result.err


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["", "-alias"])
def test_searches_of_an_existing_index_are_served(
    foreign: ForeignIndex, server: Server, command: Command, suffix: str
) -> None:
    """By the collection's model; searches of the index, and of its alias."""
    foreign.train_window(command)
    name = f"{foreign.name}{suffix}"
    if suffix:
        foreign.engine.request("PUT", f"/{foreign.name}/_alias/{name}")
    toml = re.sub(
        "engine_index = .*", f'engine_index = "{name}"', foreign.toml.read_text()
    )
    foreign.toml.write_text(toml)
    body = {"query": {"match": {"body": "harbour storm"}}, "size": 5}
    user = server.credentials.get("TWEETRERANK_ENGINE_USER", "")
    password = server.credentials.get("TWEETRERANK_ENGINE_PASSWORD", "")
    credentials = (user, password) if user else None
    with serving("--collection", foreign.toml, "--threads", 1) as service:
        response = service.post(body, f"/{name}/_search", credentials)
        assert response.headers["x-reranked"] == "true", response.text
        models = httpx.get(f"{service.address}/v1/models").json()["data"]
        assert [model["id"] for model in models] == ["mine"]
        entry = json.loads(service.wait_for('"format":"search"'))
        assert entry["model"] == "mine"
    hits = response.json()["hits"]["hits"]
    scores = [hit["_score"] for hit in hits]
    assert scores == sorted(scores, reverse=True)
    assert 0 < scores[0] < 1
    assert {hit["_index"] for hit in hits} == {foreign.name}
