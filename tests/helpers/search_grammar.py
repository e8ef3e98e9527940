"""Random searches by the engines' grammar, many of which try to read another index."""

import base64
import json
from random import Random
from typing import Any, NamedTuple

from helpers.search_symbols import GRAMMAR

QUERY = "$query"

DEPTH = 14
"""Greatest depth of symbols inside symbols. Deeper queries contain no other queries."""

_READS = ("_doc/1", "_source/1", "_mapping", "")
"""The paths, after the index, of calls that have no body."""


class Call(NamedTuple):
    """A request to an engine."""

    method: str
    path: str  # With its parameters
    body: str


class Searches:
    """Makes random searches of an index. Some of their parts name a secret index."""

    def __init__(self, seed: int, index: str, secret: str) -> None:
        self.random = Random(seed)
        self.index = index
        self.secret = secret

    def call(self) -> Call:
        """Return a search, or another call with a query or an index."""
        name = str(self.expand("$in path"))
        for character in " <>":
            name = name.replace(character, f"%{ord(character):02X}")
        further = ""
        if self.random.random() < 0.06:
            further = f"&index={self.secret}"
        lines = ""
        for symbol in ("$header", "$search", "$header", "$search"):
            lines += self.json(symbol) + "\n"
        body = self.json("$search")
        query = self.json({"query": QUERY})
        index = self.random.choice(["", f"/{name}"])
        source = f"source_content_type=application/json&source={body}"
        template = self.json("$template")
        documents = self.json({"docs": ["$document", "$document"]})
        word = self.expand("$word")
        calls = [Call("POST", f"/{name}/_search?pretty{further}", body)] * 10
        calls += [Call("POST", f"{index}/_msearch?pretty{further}", lines)] * 4
        calls += [
            Call("POST", f"/{name}/_search/template", template),
            Call("POST", f"/{name}/_count", query),
            Call("GET", f"/{name}/_validate/query?explain=true&rewrite=true", query),
            Call("POST", f"{index}/_mget", documents),
            Call("GET", f"/{name}/_search?{source}", ""),
            Call("GET", f"/{name}/_search?q={word}{further}", ""),
            Call("POST", f"/{name}/_async_search", body),
        ]
        calls += [Call("GET", f"/{name}/{path}", "") for path in _READS]
        return self.random.choice(calls)

    def json(self, symbol: Any) -> str:
        """Return, as JSON, a random value that a symbol can stand for."""
        return json.dumps(self.expand(symbol))

    def expand(self, symbol: Any, depth: int = 0) -> Any:
        """Replace each symbol in a value by something that it can stand for."""
        if isinstance(symbol, list):
            return [self.expand(item, depth) for item in symbol]
        if isinstance(symbol, dict):
            return self._expand_object(symbol, depth)
        if not isinstance(symbol, str) or "$" not in symbol:
            return symbol
        name = symbol.removeprefix("$")
        if name.startswith(("json ", "base64 ")):
            return self._packed(name, depth)
        if name not in GRAMMAR:
            return self._text(symbol)
        choice = self.random.choice(self._choices(name, depth))
        return self.expand(choice, depth + 3)

    def _choices(self, name: str, depth: int) -> list[Any]:
        choices = GRAMMAR[name]
        if name == "query" and depth < DEPTH and self.random.random() < 0.5:
            choices = GRAMMAR["nesting"]
        if depth > DEPTH + 4:
            return choices[:3]
        return choices

    def _expand_object(self, symbols: dict[str, Any], depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        for name, value in symbols.items():
            key, _, percent = name.partition("?")
            if self.random.random() * 100 >= float(percent or 100):
                continue
            expanded_key = self.expand(key, depth)
            members[expanded_key] = self.expand(value, depth)
        return members

    def _packed(self, name: str, depth: int) -> str:
        """Return the JSON of a value as a text, plain or in Base64."""
        kind, _, symbol = name.partition(" ")
        text = json.dumps(self.expand(f"${symbol}", depth + 3))
        if kind == "json":
            return text
        return base64.b64encode(text.encode()).decode()

    def _text(self, pattern: str) -> str:
        """Return a text in which names of indexes are filled in."""
        text = pattern.replace("$index", self.index)
        text = text.replace("$secret", self.secret)
        text = text.replace("$secre*", f"{self.secret[:-1]}*")
        if "$other" in text:
            text = text.replace("$other", str(self.expand("$other")))
        return text
