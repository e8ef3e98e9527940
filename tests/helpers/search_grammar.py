"""Searches made by chance of the engines' own grammar, many of which reach for another index."""

import base64
import json
from pathlib import Path
from random import Random
from typing import Any

Q = "$query"


def _repeated(listed: list[Any]) -> list[Any]:
    """Choices, with those of ``{"times": n, "of": choices}`` repeated."""
    choices = list[Any]()
    for part in listed:
        is_several = isinstance(part, dict) and "times" in part
        choices += part["of"] * part["times"] if is_several else [part]
    return choices


_TEXT = (Path(__file__).parent / "grammar.json").read_text("utf-8")
GRAMMAR = {symbol: _repeated(listed) for symbol, listed in json.loads(_TEXT).items()}
"""Symbol -> what may stand for it; ``key?6`` is there in six of a hundred.

Queries in which others are nested come last: they are left out in the depth.
"""

DEPTH = 14  # Of symbols within each other; below, queries have no others in them


class Searches:
    """Makes searches of an index, some of whose parts name a secret one."""

    def __init__(self, seed: int, index: str, secret: str) -> None:
        self.random, self.index, self.secret = Random(seed), index, secret

    def call(self) -> tuple[str, str, str]:
        """A search, or another call with a query or an index: method, path and parameters, body."""
        name = (
            self.made("$in path")
            .replace(" ", "%20")
            .replace("<", "%3C")
            .replace(">", "%3E")
        )
        more = f"&index={self.secret}" if self.random.random() < 0.06 else ""
        lines = "".join(
            self.json(f"${part}") + "\n" for part in ("header", "search") * 2
        )
        body, query = self.json("$search"), self.json({"query": Q})
        anywhere, post, get = self.random.choice(["", f"/{name}"]), "POST", "GET"
        source = f"source_content_type=application/json&source={body}"
        return self.random.choice(
            [
                *[(post, f"/{name}/_search?pretty{more}", body)] * 10,
                *[(post, f"{anywhere}/_msearch?pretty{more}", lines)] * 4,
                (post, f"/{name}/_search/template", self.json("$template")),
                (post, f"/{name}/_count", query),
                (get, f"/{name}/_validate/query?explain=true&rewrite=true", query),
                (post, f"{anywhere}/_mget", self.json({"docs": ["$document"] * 2})),
                (get, f"/{name}/_search?{source}", ""),
                (get, f"/{name}/_search?q={self.made('$word')}{more}", ""),
                (post, f"/{name}/_async_search", body),
                *(
                    (get, f"/{name}/{of}", "")
                    for of in ("_doc/1", "_source/1", "_mapping", "")
                ),
            ]
        )

    def json(self, symbol: Any) -> str:
        """JSON of something that stands for a symbol."""
        return json.dumps(self.made(symbol))

    def made(self, symbol: Any, depth: int = 0) -> Any:
        """Something that stands for a symbol, or for each of those within a value."""
        if isinstance(symbol, list):
            return [self.made(item, depth) for item in symbol]
        if isinstance(symbol, dict):
            pairs = ((*key.partition("?")[::2], value) for key, value in symbol.items())
            return {
                self.made(key, depth): self.made(value, depth)
                for key, chance, value in pairs
                if self.random.random() * 100 < float(chance or 100)
            }
        if not isinstance(symbol, str) or "$" not in symbol:
            return symbol
        kind, _, name = symbol.removeprefix("$").partition(" ")
        if kind in ("json", "base64"):
            text = json.dumps(self.made(f"${name}", depth + 3))
            return text if kind == "json" else base64.b64encode(text.encode()).decode()
        if (choices := GRAMMAR.get(symbol[1:])) is None:  # A part of a text.
            text = symbol.replace("$index", self.index).replace("$secret", self.secret)
            text = text.replace("$secre*", f"{self.secret[:-1]}*")
            return (
                text.replace("$other", str(self.made("$other")))
                if "$other" in text
                else text
            )
        if symbol == Q and depth < DEPTH and self.random.random() < 0.5:
            choices = GRAMMAR["nesting"]
        if depth > DEPTH + 4:
            choices = choices[:3]
        return self.made(self.random.choice(choices), depth + 3)
