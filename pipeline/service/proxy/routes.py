"""The proxy, which answers searches of an engine and reranks the hits.

Other calls that clients need around their searches pass unchanged. A search takes
these steps:

1. :func:`~tweetrerank.pipeline.service.proxy.call.read_call` reads path and parameters,
   :func:`~tweetrerank.pipeline.service.proxy.ask.read_search` the body.
2. :meth:`Proxy._ask` sends it to the engine, and once more if fields are missing.
3. :meth:`Proxy._rerank` scores the candidates of the response.
4. :meth:`Proxy._page` builds the page that the caller gets.

In the answer, the header ``X-Reranked`` says whether the page is reranked. If it is
not, ``X-Not-Reranked`` has the reason.
"""

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote

import msgspec
from cachetools import LRUCache
from msgspec import Raw
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from tweetrerank.pipeline.service.json_log import LOG
from tweetrerank.pipeline.service.limits import apart, unless_gone
from tweetrerank.pipeline.service.log import SearchLog
from tweetrerank.pipeline.service.proxy.allowed import (
    Grammar,
    dumped,
    readable,
    strict,
)
from tweetrerank.pipeline.service.proxy.answer import (
    MARK,
    Members,
    ResponseError,
    Row,
    SearchResponse,
    encoded,
    members_of,
    read_responses,
)
from tweetrerank.pipeline.service.proxy.ask import (
    Candidates,
    Search,
    SearchDefaults,
    read_search,
    text_fields,
)
from tweetrerank.pipeline.service.proxy.call import (
    EngineRequest,
    read_call,
    with_body,
)
from tweetrerank.pipeline.service.proxy.interleaving import LoggedSearch, Ranked
from tweetrerank.pipeline.service.proxy.json_path import Json, as_list
from tweetrerank.pipeline.service.proxy.upstream import Upstream
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError

SEARCHES = 500  # Most searches in one request

REPEATED_STATUSES = (200, 400, 500)
"""After a response with one of these statuses, the caller's own search is sent."""

_MOST_PLACES = 1000
"""Most places for which is remembered that hits lack fields.

The number is limited because callers can make new places.
"""

_PASSED = ("read", "options", "known", "mget")  # Kinds of calls that are not searches
_KINDS = {403: "security_exception", 429: "es_rejected_execution_exception"}

NO_SCORES = "found no hits with scores"


class EngineErrors(ErrorFormat):
    """Error responses in the shape that the engines use."""

    statuses: ClassVar = {"value": 400, "model": 400}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """Return the error with a type and a reason, as the engines describe one."""
        status = self.status(error)
        kind = "proxy_exception"
        if status < 500:
            kind = "illegal_argument_exception"
        problem = {"type": _KINDS.get(status, kind), "reason": error.message}
        return {"error": {"root_cause": [problem], **problem}, "status": status}


class _Root(Route):
    """The root path of the engine. Browsers get the service's page there instead."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        match, child = super().matches(scope)
        if match == Match.FULL and not _is_browser(scope):
            return match, child
        return Match.NONE, {}


def _is_browser(scope: Scope) -> bool:
    """Whether the caller accepts HTML."""
    return any(
        name == b"accept" and b"text/html" in value
        for name, value in scope.get("headers", ())
    )


class Exchange(NamedTuple):
    """The searches that were sent to the engine in one request, and its response."""

    searches: Sequence[Search]
    response: Response
    items: Sequence[SearchResponse]
    """The response to each search; empty if the engine's response cannot be read."""


class Page(NamedTuple):
    """The page that answers one search."""

    content: bytes | Raw
    ranked: Ranked | None  # None if the page is not reranked


@dataclass
class Proxy:
    """Answers searches in place of an engine."""

    service: Service
    upstream: Upstream
    defaults: SearchDefaults
    log: SearchLog | None = None

    def __post_init__(self) -> None:
        self.grammar = Grammar(self.defaults.indexes)
        self._lacking: LRUCache[int, bool] = LRUCache(_MOST_PLACES)
        self.root = _Root("/", self.endpoint, methods=["GET", "HEAD"])

    async def endpoint(self, request: Request) -> Response:
        """Answer a call to a path that is not one of the service's own.

        Raises RequestError if the call may not pass, or if the engine does not answer.
        """
        request.state.format = EngineErrors()
        call = read_call(request, self.defaults.indexes)
        async with self.service.bodies.read(request) as body:
            call = with_body(call, body)
            work = self._search
            if call.kind in _PASSED:
                work = self._pass
            try:
                response = await unless_gone(work(call), request)
                return _written(response, call)
            except RequestError as error:
                if error.kind in ("away", "deadline", "overload"):
                    self.service.metrics.search(call.record, "away")
                raise
            finally:
                self.upstream.held -= call.record.held

    async def _pass(self, call: EngineRequest) -> Response:
        """Check the body and the ids of a call that is not a search, and pass it on."""
        content: Json = {}
        if call.body.strip() and call.kind != "read":
            content = strict(call.body)
            self.grammar.check(content, call.kind)
        if call.kind == "known":
            self.grammar.check_ids(
                content.get("id"),
                content.get("pit_id"),
                content.get("scroll_id"),
                call.name,
                call.parameters.get("scroll_id"),
            )
        body = b""
        if content:
            body = dumped(content)
        response = await self.upstream.send(replace(call, body=body))
        if call.kind != "read":
            self._remember_ids(response)
        return response

    def _remember_ids(self, response: Response) -> None:
        """Allow the ids in a response. A response that cannot be read has none."""
        try:
            members = members_of(bytes(response.body))
            self.grammar.remember(members)
        except ResponseError:
            return

    async def _search(self, call: EngineRequest) -> Response:
        """Answer one search or several, and rerank those that have candidates.

        Raises RequestError if all of them are refused.
        """
        searches = await self._read(call)
        allowed = [search for search in searches if isinstance(search, Search)]
        if not allowed:
            raise _joined_error(searches)
        exchange = await self._ask(call, allowed)
        if not exchange.items:
            return self._unread_answer(call, exchange)
        pages = await asyncio.gather(
            *(
                self._page(item, search, call)
                for item, search in zip(exchange.items, exchange.searches, strict=True)
            )
        )
        # The error may be that of any search in the request
        problem = call.record.error or NO_SCORES
        if not call.is_several:
            return _single_answer(exchange, pages[0], problem)
        if len(allowed) == len(searches) and not any(map(_is_changed, allowed)):
            content = bytes(exchange.response.body)
            return _answer(exchange.response, content, allowed[0].reason)
        return _joined_answer(exchange, searches, pages, problem)

    def _unread_answer(self, call: EngineRequest, exchange: Exchange) -> Response:
        """Return the answer if the engine's response is an error or cannot be read."""
        response = exchange.response
        search = exchange.searches[0]
        if response.status_code != 200:
            self.service.metrics.search(call.record, "refused")
            return response
        self.service.metrics.search(call.record, search.outcome)
        content = bytes(response.body)
        if search.outcome == "failed" and content.lstrip().startswith(b"{"):
            content = content.replace(b"{", b'{"_reranked":false,', 1)
        return _answer(response, content, search.reason)

    # Reading the searches of a request

    async def _read(self, call: EngineRequest) -> list[Search | RequestError]:
        """Read the searches of a request; each may be an error that refuses it.

        Raises RequestError if the body has no searches or too many.
        """
        headers = [b"{}"]
        bodies: list[bytes | RequestError] = [call.body]
        if call.is_several:
            headers, lines = _header_and_search_lines(call.body)
            bodies = list(lines)
        if call.kind.startswith("template"):
            rendering = [self._rendered(call, body) for body in bodies]
            bodies = await asyncio.gather(*rendering)

        def read_all() -> list[Search | RequestError]:
            return [
                self._read_one(header, body, call)
                for header, body in zip(headers, bodies, strict=True)
            ]

        return await apart(len(call.body), read_all)

    def _read_one(
        self,
        header_line: bytes,
        body: bytes | RequestError,
        call: EngineRequest,
    ) -> Search | RequestError:
        """Read a search in the form that the engine gets, or the error refusing it."""
        if isinstance(body, RequestError):
            return body
        if not header_line.strip():
            header_line = b"{}"
        try:
            content = strict(body or b"{}")
            header = strict(header_line)
            self.grammar.check(content)
            names = _take_index_names(header)
            self.grammar.check(header, "header")
            indexes = self._indexes(names, content, call)
            search = read_search(
                content,
                dict(call.parameters) | header,
                replace(self.defaults, numbers=self.service.models.numbers),
                indexes,
            )
            if search.candidates:
                self._model(search.candidates)
            return search._replace(header=dumped(header | {"index": indexes}))
        except RequestError as error:
            return error

    def _indexes(
        self,
        names: Sequence[Any] | None,
        content: Json,
        call: EngineRequest,
    ) -> Sequence[str]:
        """Return the indexes of a search: ``names`` in its header, or the path's.

        Raises RequestError if they may not be searched, or if none are named.
        """
        # A point in time implies its indexes, but the engine may overlook it in one of
        # several searches.
        pit = content.get("pit")
        has_indexes = isinstance(pit, dict) and pit.get("id") and not call.is_several
        if names is None:
            if call.indexes or has_indexes:
                return call.indexes
            names = []
        joined = ",".join(str(name) for name in names)
        return readable(joined.split(","), self.defaults.indexes)

    async def _rendered(
        self,
        call: EngineRequest,
        body: bytes | RequestError,
    ) -> bytes | RequestError:
        """Return the search that a template makes, or the error that refuses it."""
        assert isinstance(body, bytes)
        try:
            template = strict(body)
            self.grammar.check(template, "template")
            options: Json = {}
            for name in ("explain", "profile"):
                if name in template:
                    options[name] = template.pop(name)
            response = await self.upstream.send(_render_call(call, template))
            return _template_output(response, options)
        except RequestError as error:
            return error

    # Asking the engine

    async def _ask(
        self,
        call: EngineRequest,
        searches: list[Search],
    ) -> Exchange:
        """Send the searches to the engine until their candidates can be read.

        Texts are read from the sources of hits, which usually come anyway. If the
        sources lack a field, the searches are sent again and ask for this field. Later
        searches of the same indexes ask for it at once. Shards without sources may fail
        when they are asked for fields, and then a search is sent without them. If a
        search still fails, the caller's own search is sent in its place, so that the
        caller gets the engine's answer. Replaces items of ``searches``.
        """
        while True:
            bodies = [self._body(search) for search in searches]
            exchange = await self._send(call, searches, bodies)
            is_repeated = False
            status = exchange.response.status_code
            for row, body in enumerate(bodies):
                item: SearchResponse | None = None
                if exchange.items:
                    item = exchange.items[row]
                search = self._repeated(searches[row], body, item, status)
                if search is not None:
                    searches[row] = search
                    is_repeated = True
            if not is_repeated:
                return exchange

    def _body(self, search: Search) -> bytes:
        """Return the body for the engine, with the added fields if hits lack them."""
        candidates = search.candidates
        if candidates is None:
            return search.body
        plain, with_fields = candidates.bodies
        if candidates.place in self._lacking:
            return with_fields
        return plain

    async def _send(
        self,
        call: EngineRequest,
        searches: list[Search],
        bodies: list[bytes],
    ) -> Exchange:
        """Send searches to the engine in one request, and read its response.

        Raises RequestError if the engine does not answer.
        """
        candidates = [search.candidates for search in searches]
        parameters = dict(call.parameters)
        has_candidates = any(candidates)
        if has_candidates:
            # The body has them.
            parameters.pop("from", None)
            parameters.pop("size", None)
        body = bodies[0]
        if call.is_several:
            body = b"".join(_lines(searches, bodies))
        try:
            request = replace(call, body=body, parameters=parameters)
            response = await self.upstream.send(request)
        except RequestError as error:
            if error.kind != "large" or not has_candidates:
                raise
            response = Response()
        items: list[SearchResponse] = []
        if response.status_code == 200:
            content = bytes(response.body)
            reading = partial(read_responses, content, call.is_several, candidates)
            with suppress(*ResponseError):
                items = await apart(len(content), reading)
        return Exchange(searches, response, items)

    def _repeated(
        self,
        search: Search,
        body: bytes,
        item: SearchResponse | None,
        status: int,
    ) -> Search | None:
        """Return the search to send after this response, or None if none is needed."""
        candidates = search.candidates
        if candidates is None:
            return None
        plain, with_fields = candidates.bodies
        asks_for_fields = bool(candidates.added) and body is with_fields
        if _is_readable(item, asks_for_fields):
            assert item and item.reading
            if item.reading.has_all_fields or body is with_fields:
                return None
            self._lacking[candidates.place] = True
            return search
        if status not in REPEATED_STATUSES:
            return None
        if asks_for_fields and body is not plain:
            without = replace(candidates, bodies=(plain, plain), added=())
            return search._replace(candidates=without)
        return search._replace(candidates=None, outcome="failed", reason="it failed")

    # Reranking a response

    async def _page(
        self,
        item: SearchResponse,
        search: Search,
        call: EngineRequest,
    ) -> Page:
        """Return the page of a response, reranked if its candidates have scores."""
        candidates = item.candidates
        if candidates is None:
            return self._unchanged_page(item, search, call)
        hits = item.hits or ()
        rows: list[Row] = [(row, None) for row in range(len(hits))]
        outcome = search.outcome
        ranked: Ranked | None = None
        scores = [hit.score for hit in hits[: candidates.depth]]
        if scores and None not in scores:
            outcome, ranked = await self._rerank(item, call)
        self.service.metrics.search(call.record, outcome)
        best: str | None = None
        members = item.members
        if outcome in ("late", "failed"):
            members = MARK | members
        if ranked:
            rows[: candidates.depth] = ranked.rows
            best = rows[0][1]
            members = _with_ext(members, ranked)
        page = rows[candidates.start : candidates.start + candidates.size]
        return Page(item.page(page, members, best), ranked)

    def _unchanged_page(
        self,
        item: SearchResponse,
        search: Search,
        call: EngineRequest,
    ) -> Page:
        """Return the page for a search without candidates: the engine's response."""
        self.grammar.remember(item.members)
        outcome = search.outcome
        if "error" in item.members:
            outcome = "refused"
        self.service.metrics.search(call.record, outcome)
        if outcome == "failed":
            return Page(encoded(MARK | item.members), None)
        return Page(item.content, None)

    async def _rerank(
        self,
        item: SearchResponse,
        call: EngineRequest,
    ) -> tuple[str, Ranked | None]:
        """Return (outcome of the reranking, the ranking or None if it fails).

        The reason for a failure is noted in the record of the request.
        """
        record = call.record
        try:
            return "reranked", await self._order(item, call)
        except RequestError as error:
            record.kind = error.kind
            record.error = error.message
            if error.kind in ("deadline", "overload"):
                return "late", None
        except Exception as error:
            LOG.exception("request %s: not reranked", record.request_id)
            record.kind = "internal"
            record.error = type(error).__name__
        return "failed", None

    async def _order(
        self,
        item: SearchResponse,
        call: EngineRequest,
    ) -> Ranked:
        """Score the hits, and return them with the best first.

        Raises RequestError if there is no text, or if the scores cannot be there in
        time. If the queue is too long, it is raised at once.
        """
        candidates = item.candidates
        assert candidates and item.reading and item.hits
        request = item.reading.request
        if not any(request.texts):
            listed = ", ".join(dict.fromkeys(text_fields(candidates.fields)))
            raise RequestError(
                "empty",
                f"found no text in the hits' fields {listed}; name others by "
                "--text-field",
            )
        model = self._model(candidates, item.hits[0].index_name)
        if request.weight is not None and not model.reads_lists:
            request.options.mix = "neural"
        deadline = time.perf_counter() + self.defaults.seconds
        deadline = min(deadline, call.deadline or inf)
        score = partial(self.service.score, request, deadline=deadline)
        call.record.format = "search"
        if self.log is None:
            scored = await score(model, call.record)
            return Ranked(list(scored.best()))
        logged = LoggedSearch(self.log, self.service.models, model, candidates)
        return await logged.rank(score, call.record, item.hits)

    def _model(
        self,
        candidates: Candidates,
        index: str = "",
    ) -> ServedModel:
        """Return the model for a search in an index.

        Raises RequestError if the search names an unknown model.
        """
        fields = candidates.fields.get(index, candidates.fields[""])
        name = candidates.model or fields.model
        if name is None:
            return self.service.models.default
        return self.service.models.choose(name, False)


# Requests to the engine


def _header_and_search_lines(body: bytes) -> tuple[list[bytes], list[bytes]]:
    """Split the body of several searches into (header lines, search lines).

    Raises RequestError if lines are missing, or if there are too many searches.
    """
    lines = body.split(b"\n")
    headers = lines[:-1:2]
    searches = lines[1:-1:2]
    if len(lines) % 2 == 0 or lines[-1].strip() or not searches:
        raise RequestError(
            "json", "found no lines of header and search, each with its end"
        )
    if len(searches) > SEARCHES:
        problem = f"found {len(searches):,} searches, expected at most {SEARCHES}"
        raise RequestError("many", problem)
    return headers, searches


def _take_index_names(header: Json) -> list[Any] | None:
    """Remove the names of indexes from a header, and return them.

    Returns None if the header names no indexes.
    """
    names: list[Any] | None = None
    for key in ("index", "indices"):
        value = header.pop(key, None)
        if value is not None:
            names = (names or []) + as_list(value)
    return names


def _render_call(
    call: EngineRequest,
    template: Json,
) -> EngineRequest:
    """Return the call that asks the engine to render a template."""
    headers = [
        (name, value.replace("x-ndjson", "json")) for name, value in call.headers
    ]
    return replace(
        call,
        method="POST",
        body=dumped(template),
        headers=headers,
        parameters={},
        path="/_render/template",
    )


def _template_output(response: Response, options: Json) -> bytes:
    """Return the search that the engine has made from a template.

    ``options`` of the template are added to the search. Raises RequestError if the
    engine did not render the template.
    """
    rendered = bytes(response.body)
    if response.status_code == 200:
        with suppress(*ResponseError):
            search = members_of(rendered).get("template_output", Raw(b""))
            return dumped(strict(bytes(search)) | options)
    problem = rendered[:300].decode("utf-8", "replace")
    message = f"the engine does not render the template: {problem}"
    raise RequestError("value", message)


def _lines(
    searches: Sequence[Search],
    bodies: Sequence[bytes],
) -> Iterator[bytes]:
    """Yield the header line and the search line of each search in one request."""
    for search, body in zip(searches, bodies, strict=True):
        yield search.header + b"\n"
        yield body + b"\n"


def _is_readable(
    item: SearchResponse | None,
    asks_for_fields: bool,
) -> bool:
    """Whether the hits of a response can be read.

    If the search asked for fields, no shard may have failed, because shards without
    sources fail in that case.
    """
    if item is None or item.hits is None:
        return False
    return not (asks_for_fields and item.has_failed_shards)


# Answers to the caller


def _joined_error(searches: Sequence[Search | RequestError]) -> RequestError:
    """Return one error for several searches that are all refused."""
    errors = [error for error in searches if isinstance(error, RequestError)]
    messages = dict.fromkeys(error.message for error in errors)
    return RequestError(errors[0].kind, "; ".join(messages))


def _is_changed(search: Search) -> bool:
    """Whether the page for a search may differ from the engine's response."""
    return search.candidates is not None or search.outcome == "failed"


def _with_ext(members: Members, ranked: Ranked) -> Members:
    """Return the members of a response, with the ranking's members added to ``ext``."""
    if not ranked.ext:
        return members
    ext: dict[str, Any] = dict(members_of(members.get("ext", b"{}")))
    ext.update(ranked.ext)
    return members | {"ext": encoded(ext)}


def _single_answer(
    exchange: Exchange,
    page: Page,
    problem: str,
) -> Response:
    """Return the answer to a request with one search."""
    ranked = page.ranked
    reason = ""
    if not ranked:
        reason = exchange.searches[0].reason or problem
    answer = _answer(exchange.response, page.content, reason)
    if ranked and ranked.search_id:
        answer.headers["x-search-id"] = quote(ranked.search_id)
    return answer


def _joined_answer(
    exchange: Exchange,
    searches: Sequence[Search | RequestError],
    pages: Sequence[Page],
    problem: str,
) -> Response:
    """Return the answer to several searches, with an error for each refused one."""
    remaining = iter(pages)
    responses: list[bytes | Raw] = []
    for search in searches:
        if isinstance(search, Search):
            responses.append(next(remaining).content)
        else:
            problem_of_search = EngineErrors().explain(search, "")
            responses.append(encoded(problem_of_search))
    reasons = [
        search.reason or problem
        for search, page in zip(exchange.searches, pages, strict=True)
        if not page.ranked
    ]
    summary = ""
    if reasons:
        total = len(exchange.searches)
        summary = f"{len(reasons)} of {total} searches: {reasons[0]}"
    members = members_of(bytes(exchange.response.body))
    content = encoded(members | {"responses": encoded(responses)})
    return _answer(exchange.response, content, summary)


def _answer(
    response: Response,
    content: bytes | Raw,
    reason: str | None = None,
) -> Response:
    """Replace the body of a response, and return the response.

    ``reason`` says why it is not reranked. With "" it is reranked, and with None the
    headers do not say.
    """
    response.body = bytes(content)
    response.headers["content-length"] = str(len(response.body))
    if reason is not None:
        response.headers["x-reranked"] = str(not reason).lower()
    if reason:
        response.headers["x-not-reranked"] = re.sub("[^ -~]", "?", reason)[:200]
    return response


def _written(
    response: Response,
    call: EngineRequest,
) -> Response:
    """Return the response in the form that the caller wants, pretty or YAML.

    Indented JSON is also valid YAML.
    """
    is_reranked = response.headers.get("x-reranked") == "true"
    is_pretty = is_reranked and call.parameters.get("pretty", "false") != "false"
    if call.is_yaml or is_pretty:
        with suppress(*ResponseError):
            text = msgspec.json.format(bytes(response.body), indent=2)
            if call.is_yaml:
                text = b"---\n" + text + b"\n"
            _answer(response, text)
    if call.is_yaml:
        response.headers["content-type"] = "application/yaml"
    return response
