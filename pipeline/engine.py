"""Switch reranking on inside OpenSearch or Elasticsearch, look after it, or switch it off.

python -m pipeline.engine install --engine http://localhost:9200 --service http://localhost:8080
python -m pipeline.engine status --engine http://localhost:9200
python -m pipeline.engine remove --engine http://localhost:9200

The service is that of pipeline.serve. In OpenSearch (2.13 or newer), install makes a search
pipeline with the processor rerank; in Elasticsearch (8.19, or 9.1 and newer) an inference endpoint,
and it prints a search that uses it. Run again, it puts new parts in place of the old ones.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tweetrerank.indexes.data_error import DataError
from tweetrerank.indexes.engines.address import EngineAddress
from tweetrerank.indexes.engines.client import Engine
from tweetrerank.indexes.engines.engine_error import EngineError
from tweetrerank.pipeline.command.main import run
from tweetrerank.pipeline.command.options import existing_file, option
from tweetrerank.pipeline.runtime import read_keys
from tweetrerank.pipeline.usage_error import UsageError

MARK = "Made by tweetrerank engine install"  # In each part
ML = "/_plugins/_ml"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
DEFAULT = "index.search.default_pipeline"


@dataclass(frozen=True)
class Options:
    """Action, engine and service."""

    action: str = option(
        "step", choices=("install", "status", "remove"), names=None, required=True
    )
    engine: str = option("address of the search engine", required=True, metavar="URL")
    service: str | None = option(
        "address where the engine reaches the service", metavar="URL"
    )
    pipeline: str = option("name of search pipeline or endpoint", default="tweetrerank")
    model: str | None = option(
        "model of the service (default: its first)", metavar="NAME"
    )
    text_field: str = option("field of the texts", default="contents", metavar="FIELD")
    url_field: str = option(
        "field of their links (OpenSearch)", default="url", metavar="FIELD"
    )
    default_for: str | None = option(
        "index to rerank by default (OpenSearch)", metavar="INDEX"
    )
    api_key_file: Path | None = option(
        "file of the service's keys", parse=existing_file
    )
    engine_auth: Path | None = option(
        "file of user, password, api_key, ca (default: $TWEETRERANK_ENGINE_…)",
        parse=existing_file,
    )


def main(options: Options) -> None:
    """Install, print the state, or remove."""
    key = read_keys(options.api_key_file)[0] if options.api_key_file else "none"
    if options.action == "install" and not options.service:
        raise UsageError(
            "--service is missing: the address where the engine reaches the service"
        )
    if not options.pipeline.replace("-", "_").isidentifier():
        raise UsageError("--pipeline: expected letters, digits, - and _")
    engine = Engine(EngineAddress(options.engine, "_all", options.engine_auth))
    kind = OpenSearch if engine.kind == "opensearch" else Elasticsearch
    print(f"engine: {kind.__name__} {'.'.join(map(str, engine.version))}")
    parts = kind(engine, options, key)
    try:
        if options.action == "install":
            parts.install(served_model(parts.service, options.model, key))
        if options.action == "remove":
            parts.remove()
        else:
            parts.status()
    except EngineError as error:
        problem = (
            "the engine has no key, or a wrong one"
            if error.status == 401
            else str(error)
        )
        raise DataError(f"{problem}; {parts.remedy(str(error))}") from None


def served_model(url: str, name: str | None, key: str) -> str:
    """The model of a service that reads the order of hits (default: its first); else DataError."""
    import requests

    models: list[str] = []
    try:
        headers = {"authorization": f"Bearer {key}"}
        answer = requests.get(f"{url}/v1/models", headers=headers, timeout=10)
        models += [
            str(one["id"]) for one in answer.json()["data"] if one["reads_order"]
        ]
        return models[models.index(name) if name else 0]
    except (requests.RequestException, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{url}: found {', '.join(models) or 'no models'} reading the order of hits, expected "
            f"{name or 'one'} ({type(error).__name__}); run `tweetrerank serve --checkpoint "
            f"{name or 'window'}`, and give its address to --service, its keys to --api-key-file"
        ) from None


class Parts:
    """The parts of one name in an engine; their contents are in JSON files beside this module."""

    def __init__(self, engine: Engine, options: Options, key: str) -> None:
        self.kind, self.ask, self.options, self.key = (
            engine.kind,
            engine.request,
            options,
            key,
        )
        self.service = (options.service or "").rstrip("/")
        self.name, self.endpoint = (
            options.pipeline,
            f"/_inference/rerank/{options.pipeline}",
        )
        self.paths = {
            n: f"/_search/pipeline/{n}" for n in (self.name, f"{self.name}-default")
        }

    def template(self, part: str, **values: Any) -> Any:
        """A part's content with values in place of ``<name>``; "<name>" alone takes any value."""
        path = Path(__file__).parent / "installation" / f"{self.kind}.json"
        text = json.dumps(json.loads(path.read_text(encoding="utf-8"))[part])
        common = {"mark": MARK, "service": self.service, "key": self.key}
        for name, value in {**vars(self.options), **common, **values}.items():
            text = text.replace(f'"<{name}>"', json.dumps(value, default=str))
            text = text.replace(f"<{name}>", json.dumps(str(value))[1:-1])
        return json.loads(text)

    def remedy(self, error: str) -> str:
        """The remedy for an error."""
        return str(self.template("remedy"))

    def ours(self, path: str, is_needed: bool = False) -> Any:
        """The part at a path, or None; raises DataError if this command has not made it."""
        try:
            found = self.ask("GET", path)
        except EngineError as error:
            if error.status != 404:
                raise
            found = None
        if MARK not in json.dumps(found) and (found or is_needed):
            raise DataError(
                f"{path}: found {'another' if found else 'nothing'}, expected what "
                "engine install makes; run it, or choose another name by --pipeline"
            )
        return found

    def delete(self, *paths: str) -> None:
        """Delete parts, and say which are left."""
        for path in paths:
            try:
                if "/models/" in path:
                    self.ask("POST", f"{path}/_undeploy")
                self.ask("DELETE", path)
                print(f"removed: {path}")
            except EngineError as error:
                print(f"left: {path}: {error}")


class OpenSearch(Parts):
    """A connector, a model, and search pipelines, the second for the default of an index."""

    def install(self, model: str) -> None:
        """Make new parts, then remove the old ones."""
        index, old = self.options.default_for, self._own("models", "connectors")
        for path in self.paths.values():
            self.ours(path)
        if index and (
            others := {*self._defaults(index).values()} - {None, "_none", *self.paths}
        ):
            raise DataError(
                f"{index}: found the default pipeline {others.pop()}, expected none; "
                f"add the processor of {self.name} to it"
            )
        body = self.template("connector", model=model)
        connector = self.ask("POST", f"{ML}/connectors/_create", body)["connector_id"]
        body = self.template("model", connector=connector)
        made = self.ask("POST", f"{ML}/models/_register?deploy=true", body)["model_id"]
        self.ask(
            "POST", f"{ML}/_predict/text_similarity/{made}", self.template("predict")
        )
        for name, path in self.paths.items():
            body = self.template("pipeline", model=made, is_lenient=name != self.name)
            self.ask("PUT", path, body)
        self.delete(*old)
        if index:
            self.ask("PUT", f"/{index}/_settings", {DEFAULT: f"{self.name}-default"})

    def status(self) -> None:
        """Print the parts, and try a search."""
        pipeline = self.ours(self.paths[self.name], is_needed=True)[self.name]
        rerank = pipeline["response_processors"][0]["rerank"]
        model, fields = (
            rerank["ml_opensearch"]["model_id"],
            rerank["context"]["document_fields"],
        )
        print(
            f"pipeline: {self.name} reranks by {', '.join(fields[1:])}, model {model}"
        )
        connector = self.ask("GET", f"{ML}/models/{model}")["connector_id"]
        content = self.ask("GET", f"{ML}/connectors/{connector}")
        name, seconds = (
            content["parameters"]["model"],
            content["client_config"]["read_timeout"],
        )
        self.service = content["actions"][0]["url"].removesuffix("/v2/rerank")
        print(f"connector: {connector} to {self.service}, timeout {seconds} s")
        indexes = [
            index for index, name in self._defaults().items() if name in self.paths
        ]
        print(f"default of: {', '.join(indexes) or 'no index'}")
        print(f"service: serves {served_model(self.service, name, self.key)}")
        self.ask(
            "POST", f"{ML}/_predict/text_similarity/{model}", self.template("predict")
        )
        path = f"/{','.join(indexes) or '_all'}/_search"
        body = self.template("search", text_field=fields[1])
        found = self.ask("POST", path, body, {"search_pipeline": self.name})
        print(f"trial: a search reranks {len(found['hits']['hits'])} posts")

    def remove(self) -> None:
        """Remove our parts, and nothing else."""
        for index, default in self._defaults().items():
            if default in self.paths:
                self.ask("PUT", f"/{index}/_settings", {DEFAULT: None})
        self.delete(*filter(self.ours, self.paths.values()))
        self.delete(*self._own("models", "connectors", "model_groups"))

    def remedy(self, error: str) -> str:
        """The remedy for an error."""
        if "trusted" not in error and "private ip" not in error:
            return super().remedy(error)
        found = self.ask(
            "GET", "/_cluster/settings?flat_settings=true&include_defaults=true"
        )
        known = (found["defaults"] | found["persistent"] | found["transient"])[TRUSTED]
        pattern = f"^{self.service.replace('.', '[.]')}/.*$"
        trusted = sorted(
            {pattern, *(known.split(",") if isinstance(known, str) else known)}
        )
        body = self.template("settings", trusted=trusted)
        return str(self.template("remedy of settings", body=json.dumps(body)))

    def _own(self, *kinds: str) -> list[str]:
        """Paths of our models, connectors or model groups."""
        own, found = self.template("own"), list[str]()
        for path in (f"{ML}/{kind}" for kind in kinds):
            hits = self.ask("POST", f"{path}/_search", own)["hits"]["hits"]
            found += [f"{path}/{hit['_id']}" for hit in hits]
        return found

    def _defaults(self, index: str = "_all") -> dict[str, str | None]:
        """Index -> its default pipeline."""
        found = self.ask("GET", f"/{index}/_settings", params={"flat_settings": True})
        return {
            name: content["settings"].get(DEFAULT) for name, content in found.items()
        }


class Elasticsearch(Parts):
    """An inference endpoint."""

    def install(self, model: str) -> None:
        """Make the endpoint anew, and print a search."""
        if self.options.default_for:
            raise DataError(
                "--default-for is for OpenSearch; here a search names the endpoint"
            )
        self.remove()
        queries = (
            "${query}",
            '"${query}"',
        )  # Older versions do not put it between quotes.
        plain, quoted = (
            self.template("endpoint", model=model, query=query) for query in queries
        )
        try:
            self.ask("PUT", self.endpoint, plain)
        except EngineError:
            self.ask("PUT", self.endpoint, quoted)
        print(json.dumps(self.template("search"), indent=2))

    def status(self) -> None:
        """Print the endpoint, and try it."""
        settings = self.ours(self.endpoint, is_needed=True)["endpoints"][0][
            "service_settings"
        ]
        url, name = (
            settings["url"].removesuffix("/v2/rerank"),
            settings["headers"]["X-Model"],
        )
        print(f"endpoint: {self.name} to {url}")
        print(f"service: serves {served_model(url, name, self.key)}")
        ranks = self.ask("POST", self.endpoint, self.template("predict"))["rerank"]
        print(f"trial: two texts are ranked: {ranks}")

    def remove(self) -> None:
        """Remove the endpoint."""
        if self.ours(self.endpoint):
            self.delete(f"{self.endpoint}?force=true")


if __name__ == "__main__":
    run("engine")
