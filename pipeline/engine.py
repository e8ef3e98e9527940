"""Switch reranking on inside OpenSearch or Elasticsearch, check it, or switch it off.

python -m pipeline.engine install --engine http://localhost:9200 --service URL
python -m pipeline.engine status --engine http://localhost:9200
python -m pipeline.engine remove --engine http://localhost:9200

URL is the address at which the engine reaches pipeline.serve. In OpenSearch 2.13 or
newer, install makes a search pipeline with a rerank processor. In Elasticsearch (8.19,
or 9.1 and newer) it makes an inference endpoint, and prints a search that uses the
endpoint. A second install replaces what the first one made.
"""

import json
from collections.abc import Iterable
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

# Text by which this command recognises the parts that it made in an engine
MARK = "Made by tweetrerank engine install"
ML = "/_plugins/_ml"
PREDICT = f"{ML}/_predict/text_similarity"
TRUSTED = "plugins.ml_commons.trusted_connector_endpoints_regex"
# Setting of an index that names its default search pipeline
DEFAULT = "index.search.default_pipeline"


@dataclass(frozen=True)
class Options:
    """The action, the engine and the service."""

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
    """Install the parts, print their state, or remove them.

    An install also prints the state. Raises DataError with a remedy if the engine
    refuses a request.
    """
    _check(options)
    key = read_keys(options.api_key_file)[0] if options.api_key_file else "none"
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
        problem = str(error)
        if error.status == 401:
            problem = "the engine has no key, or a wrong one"
        raise DataError(f"{problem}; {parts.remedy(str(error))}") from None


def _check(options: Options) -> None:
    """Raise UsageError listing every problem found in the options."""
    problems = []
    if options.action == "install" and not options.service:
        problems.append(
            "--service is missing: the address where the engine reaches the service"
        )
    if not options.pipeline.replace("-", "_").isidentifier():
        problems.append("--pipeline: expected letters, digits, - and _")
    if problems:
        raise UsageError(problems)


def served_model(url: str, name: str | None, key: str) -> str:
    """Return the name of a served model that reads the order of the hits.

    It is the model ``name``, or the first such model without a name. Raises DataError
    if the service does not answer or has no such model.
    """
    import requests

    models = []
    try:
        response = requests.get(
            f"{url}/v1/models", headers={"authorization": f"Bearer {key}"}, timeout=10
        )
        for model in response.json()["data"]:
            if model["reads_order"]:
                models.append(str(model["id"]))
        return models[models.index(name) if name else 0]
    except (requests.RequestException, LookupError, TypeError, ValueError) as error:
        raise DataError(
            f"{url}: found {', '.join(models) or 'no models'} reading the order of "
            f"hits, expected {name or 'one'} ({type(error).__name__}); run "
            f"`tweetrerank serve --checkpoint {name or 'window'}`, and give its "
            "address to --service, its keys to --api-key-file"
        ) from None


class Parts:
    """The parts that an install makes in an engine under one name.

    Their contents are templates in the JSON files of the folder ``installation``.
    """

    def __init__(self, engine: Engine, options: Options, key: str) -> None:
        name = options.pipeline
        self.kind = engine.kind
        self.request = engine.request
        self.options = options
        self.key = key
        self.service = (options.service or "").rstrip("/")
        self.name = name
        self.default_name = f"{name}-default"
        self.endpoint = f"/_inference/rerank/{name}"
        self.paths = {
            name: f"/_search/pipeline/{name}",
            self.default_name: f"/_search/pipeline/{self.default_name}",
        }

    def template(self, part: str, **values: Any) -> Any:
        """Return the content of a part, with values in place of each ``<name>``.

        If a JSON string is just ``"<name>"``, any JSON value takes its place. Inside a
        longer string, the value is inserted as text.
        """
        path = Path(__file__).parent / "installation" / f"{self.kind}.json"
        text = json.dumps(json.loads(path.read_text(encoding="utf-8"))[part])
        common = {"mark": MARK, "service": self.service, "key": self.key}
        replacements = vars(self.options) | common | values
        for name, value in replacements.items():
            text = text.replace(f'"<{name}>"', json.dumps(value, default=str))
            text = text.replace(f"<{name}>", json.dumps(str(value))[1:-1])
        return json.loads(text)

    def remedy(self, error: str) -> str:
        """Return the remedy for an error."""
        return str(self.template("remedy"))

    def ours(self, path: str, is_needed: bool = False) -> Any:
        """Return the part at a path, or None if there is none.

        Raises DataError if something else made the part, or if there is none and
        ``is_needed``.
        """
        try:
            part = self.request("GET", path)
        except EngineError as error:
            if error.status != 404:
                raise
            part = None
        if MARK not in json.dumps(part) and (part or is_needed):
            raise DataError(
                f"{path}: found {'another' if part else 'nothing'}, expected what "
                "engine install makes; run it, or choose another name by --pipeline"
            )
        return part

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the parts, and print a line for each that is removed or left."""
        for path in paths:
            try:
                if "/models/" in path:
                    self.request("POST", f"{path}/_undeploy")
                self.request("DELETE", path)
                print(f"removed: {path}")
            except EngineError as error:
                print(f"left: {path}: {error}")


class OpenSearch(Parts):
    """The parts in OpenSearch: a connector, a model and two search pipelines.

    The second pipeline is for an index that reranks by default.
    """

    def install(self, model: str) -> None:
        """Make the new parts, then remove the old ones. Searches work meanwhile.

        Raises DataError if a pipeline or an index's default pipeline is not ours.
        """
        index = self.options.default_for
        old_parts = self._marked("models", "connectors")
        for path in self.paths.values():
            self.ours(path)
        if index:
            self._check_default(index)
        connector = self.request(
            "POST", f"{ML}/connectors/_create", self.template("connector", model=model)
        )
        registered = self.request(
            "POST",
            f"{ML}/models/_register?deploy=true",
            self.template("model", connector=connector["connector_id"]),
        )
        model_id = registered["model_id"]
        self._predict(model_id)
        for name, path in self.paths.items():
            is_lenient = name == self.default_name
            body = self.template("pipeline", model=model_id, is_lenient=is_lenient)
            self.request("PUT", path, body)
        self.delete(old_parts)
        if index:
            self._set_default(index, self.default_name)

    def status(self) -> None:
        """Print the parts, and try a search with them."""
        pipeline = self.ours(self.paths[self.name], is_needed=True)[self.name]
        rerank = pipeline["response_processors"][0]["rerank"]
        model_id = rerank["ml_opensearch"]["model_id"]
        fields = rerank["context"]["document_fields"]
        names = ", ".join(fields[1:])
        print(f"pipeline: {self.name} reranks by {names}, model {model_id}")
        model = self._print_connector(model_id)
        indexes = [
            index
            for index, pipeline in self._defaults().items()
            if pipeline in self.paths
        ]
        print(f"default of: {', '.join(indexes) or 'no index'}")
        print(f"service: serves {served_model(self.service, model, self.key)}")
        self._predict(model_id)
        response = self.request(
            "POST",
            f"/{','.join(indexes) or '_all'}/_search",
            self.template("search", text_field=fields[1]),
            {"search_pipeline": self.name},
        )
        print(f"trial: a search reranks {len(response['hits']['hits'])} posts")

    def _print_connector(self, model_id: str) -> str:
        """Print a model's connector, and return the name of the model in the service.

        Sets ``self.service`` to the address that the connector uses.
        """
        connector = self.request("GET", f"{ML}/models/{model_id}")["connector_id"]
        content = self.request("GET", f"{ML}/connectors/{connector}")
        self.service = content["actions"][0]["url"].removesuffix("/v2/rerank")
        seconds = content["client_config"]["read_timeout"]
        print(f"connector: {connector} to {self.service}, timeout {seconds} s")
        return content["parameters"]["model"]

    def _predict(self, model_id: str) -> None:
        """Score a sample. Raises EngineError if the engine cannot reach the service."""
        self.request("POST", f"{PREDICT}/{model_id}", self.template("predict"))

    def remove(self) -> None:
        """Remove the parts that this command made, and nothing else."""
        for index, pipeline in self._defaults().items():
            if pipeline in self.paths:
                self._set_default(index, None)
        self.delete(filter(self.ours, self.paths.values()))
        self.delete(self._marked("models", "connectors", "model_groups"))

    def remedy(self, error: str) -> str:
        """Return the remedy for an error."""
        if "trusted" not in error and "private ip" not in error:
            return super().remedy(error)
        settings = self.request(
            "GET", "/_cluster/settings?flat_settings=true&include_defaults=true"
        )
        patterns = (
            settings["defaults"] | settings["persistent"] | settings["transient"]
        )[TRUSTED]
        if isinstance(patterns, str):
            patterns = patterns.split(",")
        pattern = f"^{self.service.replace('.', '[.]')}/.*$"
        trusted = sorted({pattern, *patterns})
        body = json.dumps(self.template("settings", trusted=trusted))
        return str(self.template("remedy of settings", body=body))

    def _marked(self, *kinds: str) -> list[str]:
        """Return the paths of the parts of these kinds that this command made."""
        paths = []
        for kind in kinds:
            folder = f"{ML}/{kind}"
            response = self.request("POST", f"{folder}/_search", self.template("own"))
            for hit in response["hits"]["hits"]:
                paths.append(f"{folder}/{hit['_id']}")
        return paths

    def _defaults(self, index: str = "_all") -> dict[str, str | None]:
        """Return the default pipeline of each index, None if it has none."""
        path = f"/{index}/_settings"
        response = self.request("GET", path, params={"flat_settings": True})
        return {
            name: content["settings"].get(DEFAULT) for name, content in response.items()
        }

    def _check_default(self, index: str) -> None:
        """Raise DataError if an index has a default pipeline that is not ours."""
        pipelines = set(self._defaults(index).values())
        foreign = pipelines - {None, "_none"} - self.paths.keys()
        if foreign:
            raise DataError(
                f"{index}: found the default pipeline {foreign.pop()}, expected none; "
                f"add the processor of {self.name} to it"
            )

    def _set_default(self, index: str, pipeline: str | None) -> None:
        self.request("PUT", f"/{index}/_settings", {DEFAULT: pipeline})


class Elasticsearch(Parts):
    """The part in Elasticsearch: an inference endpoint."""

    def install(self, model: str) -> None:
        """Replace the endpoint, and print a search that uses it.

        Raises DataError if --default-for is given.
        """
        if self.options.default_for:
            raise DataError(
                "--default-for is for OpenSearch; here a search names the endpoint"
            )
        self.remove()
        plain = self.template("endpoint", model=model, query="${query}")
        # Older versions of Elasticsearch do not put the query into quotes themselves.
        quoted = self.template("endpoint", model=model, query='"${query}"')
        try:
            self.request("PUT", self.endpoint, plain)
        except EngineError:
            self.request("PUT", self.endpoint, quoted)
        print(json.dumps(self.template("search"), indent=2))

    def status(self) -> None:
        """Print the endpoint, and let it rank two texts."""
        endpoint = self.ours(self.endpoint, is_needed=True)["endpoints"][0]
        settings = endpoint["service_settings"]
        url = settings["url"].removesuffix("/v2/rerank")
        model = settings["headers"]["X-Model"]
        print(f"endpoint: {self.name} to {url}")
        print(f"service: serves {served_model(url, model, self.key)}")
        response = self.request("POST", self.endpoint, self.template("predict"))
        print(f"trial: two texts are ranked: {response['rerank']}")

    def remove(self) -> None:
        """Remove the endpoint if there is one."""
        if self.ours(self.endpoint):
            self.delete([f"{self.endpoint}?force=true"])


if __name__ == "__main__":
    run("engine")
