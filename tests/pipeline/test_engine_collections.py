"""Collections whose index is in a search engine: their files, and the commands that use them."""

import json
import re
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from conftest import Capture, Command
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


def test_a_file_names_an_index(tmp_path: Path) -> None:
    path = tmp_path / "shop.toml"
    (tmp_path / "query.json").write_text('{"match": {"body": "{{query}}"}}')
    path.write_text(
        f'{TOPICS}engine = "http://a:9200,http://b:9200"\nengine_index = "shop"\n'
        'engine_auth = "user.toml"\ntext_field = "body"\nid_field = "sku"\nquery = "query.json"\n'
    )
    collection = find(str(path))
    assert (engine := collection.engine)
    assert engine.urls == ["http://a:9200", "http://b:9200"]
    assert (engine.auth, engine.query) == (
        tmp_path / "user.toml",
        tmp_path / "query.json",
    )
    assert (engine.text_field, engine.id_field) == ("body", "sku")
    assert collection.methods == ()
    path.write_text(
        f'posts = "{SAMPLE / "posts.jsonl"}"\n{TOPICS}engine = "http://a:9200"\n'
    )
    collection = find(str(path))
    assert collection.engine and collection.engine.index.startswith(
        "tweetrerank-own-shop-"
    )
    assert collection.methods == ("ql", "bm25")
    assert default_reranker(collection) == DEFAULT_WINDOW
    # What is given on the command line comes first.
    other = open_collection(str(path), engine={"url": "http://c:9200"})
    assert str(other.engine) == f"http://c:9200/{collection.engine.index}"
    assert other.index_directory != collection.index_directory


def test_commands_rank_as_locally(
    server: Server, tmp_path: Path, command: Command
) -> None:
    index = server.address().index
    engine = ["--engine", server.url, "--engine-index", index]
    early = command("search", "--topics", "sample", *engine, code=1)
    assert f"{index}: there is no such index" in early.err
    built = command("index", "--collection", "sample", *engine)
    assert built.out.startswith("874 posts (0 empty), 874 of them sent in ")
    assert built.out.endswith(f"index: {server.url}/{index}\n")
    for ranker in (
        "none",
        "none --method bm25",
        "mp_hcnn --hits 20",
        "fusion --hits 20",
    ):
        options = ["--reranker", *ranker.split()]
        for place, name in ((engine, "engine"), ([], "local")):
            run = ["--output", tmp_path / name, "--show", "none"]
            done = command(
                "search", "--topics", "sample", *options, *place, *run, code=0
            )
            is_less = "fusion" in options and place == engine
            assert ("sample has no rm3, axiom; the" in done.err) == is_less
        runs = [
            (tmp_path / name).read_text().splitlines() for name in ("engine", "local")
        ]
        found, expected = ([line.split() for line in lines] for lines in runs)
        if "fusion" in options:
            assert len(found) > 300  # Without rm3 and axiom, so of other posts.
            continue
        assert [row[:4] for row in found] == [row[:4] for row in expected]
        scores = [[float(row[4]) for row in rows] for rows in (found, expected)]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    page = tmp_path / "page.html"
    explain = ["--topics", "sample", "--query-id", "1", *engine, "--output", page]
    command("explain", *explain, "--reranker", "mp_hcnn", code=0)
    assert "Harlow" in page.read_text()
    given = [
        "--topics",
        "sample",
        tmp_path / "local",
        *engine,
        "--output",
        tmp_path / "again",
    ]
    command("rerank", *given, "--reranker", "mp_hcnn", code=0)
    topics = tmp_path / "mine.tsv"
    topics.write_text("7\tharbour storm\n")
    mine = [
        "--topics",
        topics,
        *engine,
        "--reranker",
        "none",
        "--output",
        tmp_path / "mine",
    ]
    command("search", *mine, code=0)
    # Other posts do not get into this index.
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "1", "text": "storm"}\n')
    refused = command("index", "--posts", other, *engine, code=1)
    assert (
        "there is an index with posts of posts.jsonl, expected other.jsonl"
        in refused.err
    )


@pytest.mark.slow
def test_an_index_as_it_is_is_judged_tuned_and_trained_on(
    server: Server, tmp_path: Path, command: Command, capsys: Capture
) -> None:
    address = server.address(text_field="body")
    engine = Engine(address)
    lines = b""
    for post in read_posts(SAMPLE / "posts.jsonl"):
        content = {"body": post.text, "link": post.url, "number": int(post.doc_id)}
        lines += (
            encoded({"index": {"_id": post.doc_id}}) + b"\n" + encoded(content) + b"\n"
        )
    properties = {
        "body": {"type": "text"},
        "link": {"type": "keyword"},
        "number": {"type": "long"},
    }
    engine.request("PUT", f"/{address.index}", {"mappings": {"properties": properties}})
    engine.request("POST", f"/{address.index}/_bulk", lines, {"refresh": True})
    toml = tmp_path / "mine.toml"
    (tmp_path / "query.json").write_text(
        json.dumps({"match": {"body": {"query": "{{query}}"}}})
    )
    toml.write_text(
        f'{TOPICS}engine = "{server.url}"\nengine_index = "{address.index}"\n'
        'text_field = "body"\nurl_field = "link"\ntime_field = "number"\nquery = "query.json"\n'
    )
    run = ["--output", tmp_path / "run.txt"]
    found = command("search", "--collection", toml, *run, code=0)
    assert "the engine's own query" in found.out and "window" in found.out
    assert float(found.out.split("own query ")[1].split()[0]) > 0.3
    command("evaluate", toml, tmp_path / "run.txt", code=0)
    mp_hcnn = [run[1], "--output", tmp_path / "again", "--reranker", "mp_hcnn"]
    command("rerank", "--collection", toml, *mp_hcnn, code=0)
    tune.main(tune.Options(collection=str(toml)))
    (tmp_path / "vectors.txt").write_text("rain 1.0 0.5\nstorm 0.9 0.6\nbus -1.0 0.2\n")
    quick = [
        "--set",
        "training.epochs=2",
        "--vectors",
        tmp_path / "vectors.txt",
        "--threads",
        1,
    ]
    trained = command("train", "knrm", "--collection", toml, *quick, code=0)
    assert "20 held-out topics:" in trained.out
    windows = ("window", "--collection", toml, "--folds", 2, "--threads", 1)
    window = command("train", *windows, code=0)
    assert "20 held-out topics:" in window.out and "shipped window" in window.out
    write_folder(tmp_path / "tiny")
    quick = ["--teacher", tmp_path / "tiny", "--device", "cpu", "--threads", 1]
    command("adapt", "--collection", toml, *quick, code=0)
    # What others write is read anew.
    gone = post.doc_id
    engine.request("DELETE", f"/{address.index}/_doc/{gone}", None, {"refresh": True})
    added = {"body": "zzyzx storm", "link": "", "number": 99999}
    engine.request("PUT", f"/{address.index}/_doc/99999", added, {"refresh": True})
    for text in ("are read anew", "are brought up to date"):
        with closing(find(str(toml)).open_index()) as index:
            posts = {post.doc_id: post.text for post in index.posts}
        assert (gone in posts, posts["99999"]) == (False, added["body"])
        assert text in capsys.readouterr().err
        added["body"] = "zzyzx gale"
        engine.request("PUT", f"/{address.index}/_doc/99999", added, {"refresh": True})
    command("train", *windows, code=0)
    fusion = command(
        "search", "--collection", toml, "--reranker", "fusion", *run, code=1
    )
    assert "found no run of" in fusion.err
    _assert_served(server, engine, toml, address.index)


def _assert_served(server: Server, engine: Engine, toml: Path, name: str) -> None:
    """The collection's model ranks searches of its index, and of an alias of it."""
    alias = f"{name}-alias"
    engine.request("PUT", f"/{name}/_alias/{alias}")
    body = {"query": {"match": {"body": "harbour storm"}}, "size": 5}
    given = server.credentials
    user, password = (
        given.get(f"TWEETRERANK_ENGINE_{key}", "") for key in ("USER", "PASSWORD")
    )
    for named in (name, alias):
        toml.write_text(
            re.sub("engine_index = .*", f'engine_index = "{named}"', toml.read_text())
        )
        with serving("--collection", toml, "--threads", 1) as service:
            answer = service.post(
                body, f"/{named}/_search", (user, password) if user else None
            )
            assert answer.headers["x-reranked"] == "true", answer.text
            hits = answer.json()["hits"]["hits"]
            models = httpx.get(f"{service.address}/v1/models").json()["data"]
            assert [model["id"] for model in models] == ["mine"]
            assert json.loads(service.wait_for('"format":"search"'))["model"] == "mine"
        scores = [hit["_score"] for hit in hits]
        assert scores == sorted(scores, reverse=True) and 0 < scores[0] < 1
        assert all(hit["_index"] == name for hit in hits)
