#!/usr/bin/env python3
"""Plan a cluster from measured bytes and microseconds: shards, copies, machines, core-hours.

    python scripts/plan.py
    python scripts/plan.py --posts 3e8 --queries 500 --candidates 200
    python scripts/plan.py --posts 1e9 --cores 32 --memory 128 --price 0.04

The defaults are figures of this project, on one core of an AMD EPYC; give your own where you have
them. A search engine holds the posts in shards, every shard in at least two copies; rerankers get
texts and first-stage scores from it. A query goes to one copy of each shard.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pipeline.command.options import fraction, option, positive_float, positive_int, run_command


class Figure(NamedTuple):
    """A measured number, and where it is from."""

    value: float
    source: str


_GROWTH = "ten million posts of scripts/benchmark.py --parts 11"
_SERVICE = "scripts/benchmark.py --parts 10"
MEASURED = {
    "index_bytes": Figure(75, f"the index of {_GROWTH}, without their texts"),
    "store_bytes": Figure(175, f"posts.sqlite of {_GROWTH}"),
    "encoding_bytes": Figure(45_500, "mp_hcnn's of scripts/benchmark.py --parts 11"),
    "search_ms": Figure(
        18.1, f"query likelihood, 1000 hits, median of mb2012's topics in {_GROWTH}"
    ),
    "search_posts": Figure(1e7, "the same"),
    "search_exponent": Figure(
        0.5, "more than the 0.3 from one million, 9 ms, of which a part is the same for any number"
    ),
    "rerank_us": Figure(138, f"1,000 new posts in 69 ms on two cores, {_SERVICE}"),
    "cross_encoder_us": Figure(5_500, f"363 pairs/s in eight bits on two cores, {_SERVICE}"),
}
"""Name of an option -> its default. The time of a search grows as posts ** search_exponent."""

MOST_SHARD = 30e9
"""Bytes of a shard: the makers of Elasticsearch and OpenSearch advise 10 to 50 GB."""
COPIES = 2
"""Of every shard, so that a machine may fail."""
PAGE_CACHE = 0.5
"""Share of a machine's memory that holds parts of the index; the rest is for the engine."""


def count(text: str) -> float:
    """A number of posts, also as 1e8."""
    value = positive_float(text)
    if not value.is_integer():
        raise ValueError(f"found {text}, expected a whole number such as 1e8")
    return float(value)


def _measured(name: str, help_text: str) -> Any:
    figure = MEASURED[name]
    return option(f"{help_text}; from {figure.source}", default=figure.value, parse=positive_float)


@dataclass(frozen=True)
class Options:
    """What is asked of the cluster, what was measured, and what a machine has."""

    posts: tuple[float, ...] = option(
        "posts; may be given several times (default: 1e7, 1e8 and 1e9)", parse=count, many=True
    )
    queries: float = option("queries per second", default=100.0, parse=positive_float)
    candidates: int = option("posts that a query reranks", default=100, parse=positive_int)
    latency_ms: float = option(
        "goal for the first stage of a query, in its slowest shard",
        default=100.0,
        parse=positive_float,
    )
    cores: int = option("of a machine", default=16, parse=positive_int)
    memory: float = option("of a machine, in GB", default=64.0, parse=positive_float)
    busy: float = option(
        "share of the cores' time that is planned for", default=0.6, parse=fraction
    )
    price: float | None = option("of a core for an hour (default: none)", parse=positive_float)
    index_bytes: float = _measured("index_bytes", "of the index, per post")
    store_bytes: float = _measured("store_bytes", "of the stored texts and links, per post")
    encoding_bytes: float = _measured("encoding_bytes", "of a precomputed post")
    search_ms: float = _measured("search_ms", "of one core for a search of --search-posts posts")
    search_posts: float = _measured("search_posts", "posts that --search-ms was measured on")
    search_exponent: float = _measured(
        "search_exponent", "a search takes this power of the number of posts"
    )
    rerank_us: float = _measured("rerank_us", "microseconds of a core to rerank a post")
    cross_encoder_us: float = _measured(
        "cross_encoder_us", "microseconds of a core for a cross-encoder of MiniLM-L6's size"
    )


@dataclass(frozen=True)
class Plan:
    """A cluster for a number of posts.

    Attributes:
        posts: of the collection.
        shards: parts of the index.
        copies: of every shard.
        search_machines: that hold the shards.
        memory_machines: of them, those that are needed for the memory alone.
        search_cores: that the searches keep busy.
        rerank_cores: that the rerankers keep busy.
        rerank_machines: that hold the rerankers.
        search_ms: of a query in one shard.
        rerank_ms: of a query's posts on one core.
    """

    options: Options
    posts: float
    shards: int
    copies: int
    search_machines: int
    memory_machines: int
    search_cores: float
    rerank_cores: float
    rerank_machines: int
    search_ms: float
    rerank_ms: float

    @property
    def index_gb(self) -> float:
        """Of one copy."""
        return self.posts * (self.options.index_bytes + self.options.store_bytes) / 1e9

    @property
    def encoder_cores(self) -> float:
        """That a cross-encoder in place of the reranker keeps busy."""
        return self.rerank_cores * self.options.cross_encoder_us / self.options.rerank_us

    def hour(self, rerank_cores: float) -> float:
        """Core-hours of an hour, those included that wait."""
        return (self.search_cores + rerank_cores) / self.options.busy

    @property
    def bottleneck(self) -> str:
        """What is full first, at which rate, as queries grow on the smallest cluster.

        That has the machines which the memory needs, and one machine of rerankers.
        """
        options = self.options
        usable = options.busy * options.cores
        rates = {
            "search": self.memory_machines * usable * options.queries / self.search_cores,
            "reranking": usable * options.queries / self.rerank_cores,
        }
        name = min(rates, key=lambda one: rates[one])
        return f"{name}, at {_number(rates[name])} queries/s"


def plan(options: Options, posts: float) -> Plan:
    """The smallest cluster for these posts and queries."""
    size = posts * (options.index_bytes + options.store_bytes)
    largest = options.search_posts * (options.latency_ms / options.search_ms) ** (
        1 / options.search_exponent
    )
    shards = max(1, math.ceil(size / MOST_SHARD), math.ceil(posts / largest))
    search_ms = _search_ms(options, posts / shards)
    search_cores = options.queries * shards * search_ms / 1000
    memory_machines = max(COPIES, math.ceil(COPIES * size / (PAGE_CACHE * options.memory * 1e9)))
    machines = max(memory_machines, math.ceil(search_cores / options.busy / options.cores))
    rerank_ms = options.candidates * options.rerank_us / 1000
    rerank_cores = options.queries * rerank_ms / 1000
    return Plan(
        options,
        posts,
        shards,
        # Every machine has a shard at least.
        max(COPIES, math.ceil(machines / shards)),
        machines,
        memory_machines,
        search_cores,
        rerank_cores,
        math.ceil(rerank_cores / options.busy / options.cores),
        search_ms,
        rerank_ms,
    )


def _search_ms(options: Options, posts: float) -> float:
    """Of one core, in a shard of so many posts."""
    return options.search_ms * (posts / options.search_posts) ** options.search_exponent


def rows_of(plans: Sequence[Plan]) -> list[tuple[str, ...]]:
    """The table: a row for each quantity, a column for each plan."""
    options = plans[0].options
    machine = f"{options.cores} cores, {options.memory:g} GB"
    cells: dict[str, Callable[[Plan], str]] = {
        "index and texts, one copy, GB": lambda one: _number(one.index_gb),
        "shards × copies": lambda one: f"{one.shards} × {one.copies}",
        f"search machines ({machine})": lambda one: str(one.search_machines),
        "– for the memory alone": lambda one: str(one.memory_machines),
        "– cores that are busy": lambda one: _number(one.search_cores),
        "reranking machines": lambda one: str(one.rerank_machines),
        "– their cores that are busy": lambda one: _number(one.rerank_cores),
        "a query: slowest shard + reranking on one core, ms": lambda one: (
            f"{one.search_ms:.0f} + {one.rerank_ms:.0f}"
        ),
        "full first, on the smallest cluster": lambda one: one.bottleneck,
        "encodings, if all posts were precomputed, GB": lambda one: _number(
            one.posts * options.encoding_bytes / 1e9
        ),
        "core-hours of an hour: search + reranking": lambda one: _sum(one, one.rerank_cores),
        "– with a MiniLM cross-encoder as reranker": lambda one: _sum(one, one.encoder_cores),
    }
    if price := options.price:
        cells["price of an hour"] = lambda one: _number(one.hour(one.rerank_cores) * price)
        cells["– with the cross-encoder"] = lambda one: _number(one.hour(one.encoder_cores) * price)
    return [(name, *map(cell, plans)) for name, cell in cells.items()]


def _sum(one: Plan, rerank_cores: float) -> str:
    search = one.hour(0.0)
    return f"{_number(search)} + {_number(one.hour(rerank_cores) - search)}"


def _number(value: float) -> str:
    """Three digits."""
    if value >= 100:
        return f"{float(f'{value:.3g}'):,.0f}"
    return f"{value:.3g}"


def main(options: Options) -> None:
    """Print the assumptions and the table."""
    plans = [plan(options, posts) for posts in options.posts or (1e7, 1e8, 1e9)]
    print(
        f"{options.queries:g} queries/s, {options.candidates} candidates each, cores "
        f"{options.busy:.0%} busy; {plans[0].rerank_ms * 1000 / options.candidates:g} µs of a core "
        f"for a post, {options.cross_encoder_us:g} µs by the cross-encoder; a search of "
        f"{options.search_posts:,.0f} posts takes {options.search_ms:g} ms of a core, which grows "
        f"as posts^{options.search_exponent:g}\n"
    )
    header = ("posts", *(f"{one.posts:.0e}".replace("e+0", "e") for one in plans))
    rows = rows_of(plans)
    print(f"| {' | '.join(header)} |\n|{'---|' * len(header)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    run_command(Options, main, "scripts/plan.py", __doc__, sys.argv[1:])
