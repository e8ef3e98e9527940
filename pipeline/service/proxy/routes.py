"""The searches of an engine, with their hits reranked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from string import punctuation
from typing import Any, ClassVar, TypeVar
from urllib.parse import quote, unquote

from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from indexes.engines.searching import single_precision
from pipeline.service.app import Service
from pipeline.service.errors import ErrorFormat, RequestError
from pipeline.service.formats import ScoreRequest
from pipeline.service.log import Loop, Ranked
from pipeline.service.models import ServedModel
from pipeline.service.proxy.indexes import readable, served_by
from pipeline.service.proxy.search import (
    MARK,
    Search,
    SearchDefaults,
    SearchResponse,
    Window,
    read_response,
    read_responses,
    read_search,
    strict,
)
from pipeline.service.proxy.upstream import EngineRequest, EngineResponse, Upstream
from pipeline.service.record import LOG
from pipeline.service.requests import deadline_of, unless_gone

PASSED = {
    "/": ("GET", "HEAD"),
    "/_search/scroll": ("GET", "POST", "DELETE"),
    "/_pit": ("DELETE",),
    "/{index:path}/_pit": ("POST",),
    "/_search/point_in_time": ("DELETE",),
    "/{index:path}/_search/point_in_time": ("POST",),
}
"""Calls that pass unchanged: clients ask who the engine is, and read on in long results."""

SEARCHES = ("_search", "_msearch")

_OWN_SEARCH_FAILED = (400, 500)
"""Responses to a window's search that the caller's own search may not get."""

_THREAD = 1_000_000  # Bytes of a response that is read in a thread of its own

_PAGE = ("from", "size")

_VISIBLE = punctuation.replace("#", "")  # Of a path and its parameters, beside letters and digits

_MOST_PLACES = 1000
"""Bound of the paths known to lack fields: the names in them are the callers'."""

Value = TypeVar("Value")


class EngineErrors(ErrorFormat):
    """Errors in the engines' shape."""

    statuses: ClassVar = {"value": 400, "model": 400}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A type and the reason."""
        status = self.status(error)
        kinds = {
            403: "security_exception",
            404: "resource_not_found_exception",
            429: "es_rejected_execution_exception",
        }
        kind = "illegal_argument_exception" if status < 500 else "proxy_exception"
        problem = {"type": kinds.get(status, kind), "reason": error.message}
        return {"error": {"root_cause": [problem], **problem}, "status": status}


ENGINE_ERRORS = EngineErrors()


class Proxy:
    """Answers searches in front of an engine."""

    def __init__(
        self,
        service: Service,
        upstream: Upstream,
        defaults: SearchDefaults,
        loop: Loop | None = None,
    ) -> None:
        self.service, self.upstream, self.defaults = service, upstream, defaults
        self.loop = loop or Loop(service)
        self._lacking: LRUCache[tuple[str, ...], bool] = LRUCache(_MOST_PLACES)

    def routes(self) -> Sequence[Route]:
        """The engine's paths; that of the root is not for browsers."""
        both = ["GET", "POST"]
        return [
            *(_Route(path, self._endpoint(self._pass), methods=m) for path, m in PASSED.items()),
            *(
                _Route(f"{index}/{name}", self._endpoint(work), methods=both)
                for name, work in zip(SEARCHES, (self._search, self._searches), strict=True)
                for index in ("", "/{index:path}")
            ),
        ]

    async def not_found(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse a call that does not pass."""
        scope["state"]["format"] = ENGINE_ERRORS
        raise _not_found(scope)

    def _endpoint(
        self, work: Callable[[EngineRequest], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            request.state.format, record = ENGINE_ERRORS, request.state.record
            scope, (target, indexes) = request.scope, self._target(request)
            headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
            deadline = None
            with suppress(RequestError):  # The header may be meant for the engine.
                deadline = deadline_of(request)
            async with self.service.bodies.read(request) as body:
                query = quote(scope["query_string"], _VISIBLE)
                sent = target, indexes, query, headers, body, record, deadline
                try:
                    return await unless_gone(work(EngineRequest(scope["method"], *sent)), request)
                finally:
                    self.upstream.release(record)

        return endpoint

    def _target(self, request: Request) -> tuple[str, Sequence[str]]:
        """The path for the engine, and its indexes; raises RequestError for other paths."""
        raw = request.scope.get("raw_path") or request.scope["path"].encode()
        first, *others = raw.decode("latin-1").strip("/").split("/")
        if not others or unquote(first) == "_search":
            return quote(raw, _VISIBLE), ()
        if others[0] not in (*SEARCHES, "_pit"):
            raise _not_found(request.scope)
        names = unquote(first).split(",")
        added = readable(names, self.defaults.indexes)[len(names) :]
        request.state.record.index = served_by(names[0], self.defaults.indexes)
        path = "/".join([",".join([first, *added]), *others])
        return f"/{quote(path, _VISIBLE, 'latin-1')}", names

    async def _send(self, request: EngineRequest, path: str, body: bytes) -> EngineResponse:
        """The engine's response; raises RequestError."""
        started = time.perf_counter()
        try:
            return await self.upstream.send(request, path, body)
        except RequestError as error:
            if error.kind != "large":
                self.service.metrics.search(request.record, "away")
            raise
        finally:
            request.record.engine += time.perf_counter() - started

    async def _pass(self, request: EngineRequest) -> Response:
        return _response(await self._send(request, request.path(), request.body))

    # --- Searches ---------------------------------------------------------------------------------

    async def _search(self, request: EngineRequest) -> Response:
        """A search: that of its window, reranked, if there is one."""
        search = self._read(request.body, request.parameters, request.indexes)
        if search.window is None:
            return await self._unchanged(request, search.body)
        try:
            response, window = await self._of_window(request, search.window)
        except RequestError as error:
            if error.kind != "large":
                raise
            return await self._unchanged(request, search.body, has_failed=True)
        if window and window.hits is not None:
            text, ranked = await self._reranked(window, search.window, request)
            content = text.encode("utf-8", "surrogatepass")
            answer = _response(response, content, ranked is not None)
            if ranked and ranked.search_id:
                answer.headers["x-search-id"] = quote(ranked.search_id)
            return answer
        if response.status not in (200, *_OWN_SEARCH_FAILED):
            self.service.metrics.search(request.record, "refused")
            return _response(response)
        return await self._unchanged(request, search.body, has_failed=True)

    def _read(
        self, body: bytes, parameters: Sequence[tuple[str, str]], indexes: Sequence[str]
    ) -> Search:
        search = read_search(body, parameters, self.defaults, indexes)
        if search.window:
            self._model(search.window)
        return search

    def _model(self, window: Window, index: str = "") -> ServedModel:
        """The model of a search of an index; raises RequestError if there is none of its name."""
        models, served = self.service.models, self.defaults.served.get(index)
        name = window.model or (served and served.model)
        return models.default if name is None else models.choose(name, False)

    async def _unchanged(
        self, request: EngineRequest, body: bytes, has_failed: bool = False
    ) -> Response:
        """The engine's response to the caller's own search, which could not be reranked."""
        response = await self._send(request, request.path(), body)
        if response.status != 200:
            self.service.metrics.search(request.record, "refused")
            return _response(response)
        self.service.metrics.search(request.record, "failed" if has_failed else "unchanged")
        content = response.content
        if has_failed and content.lstrip().startswith(b"{"):
            content = content.replace(b"{", b"{" + MARK.encode(), 1)
        return _response(response, content, False)

    async def _of_window(
        self, request: EngineRequest, window: Window
    ) -> tuple[EngineResponse, SearchResponse | None]:
        """The engine's response to the search of a window; None for one that cannot be read.

        Texts are read from the hits' sources, which come anyway. Where these lack a field, as some
        hits or mappings do, it is asked for, from then on at once.
        """
        place, parsed = (request.target, *window.added), None
        is_short = window.short is not None and place not in self._lacking
        for body in (window.short, window.body) if is_short else (window.body,):
            assert body is not None
            response = await self._send(request, request.path(_PAGE), body)
            with suppress(ValueError):
                parsed = await _read(read_response, response) if response.status == 200 else None
            if parsed is None or all(map(window.is_shown, parsed.hits or ())):
                break
            self._lacking[place] = True
        return response, parsed

    async def _searches(self, request: EngineRequest) -> Response:
        """Several searches: the windows of those that have one, each reranked by itself."""
        lines = request.body.split(b"\n")
        pairs = list(zip(lines[:-1:2], lines[1:-1:2], strict=False))
        if len(lines) % 2 == 0 or lines[-1].strip() or not pairs:
            raise RequestError("json", "found no lines of header and search, each with its end")
        searches = [self._line(*pair, request) for pair in pairs]
        own = _joined([(header, search.body) for header, search in searches])
        if not any(search.window for _, search in searches):
            return await self._unchanged(request, own)
        sent = _joined([(header, (search.window or search).body) for header, search in searches])
        try:
            response = await self._send(request, request.path(), sent)
            responses, first, last = await _read(read_responses, response)
            if response.status != 200 or len(responses) != len(searches):
                raise ValueError("found no response to each search")
        except (ValueError, RequestError) as error:
            if isinstance(error, RequestError) and error.kind != "large":
                raise
            # The same search without windows gets the engine's own words.
            return await self._unchanged(request, own, has_failed=True)
        whole = responses[0].text
        texts = await self._texts(responses, searches, request)
        content = f"{whole[:first]}[{','.join(texts)}]{whole[last:]}"
        return _response(response, content.encode("utf-8", "surrogatepass"))

    def _line(self, line: bytes, body: bytes, request: EngineRequest) -> tuple[bytes, Search]:
        """One of several searches, with its header; raises RequestError."""
        header = strict(line if line.strip() else b"{}")
        given = [name for key in ("index", "indices") if (name := header.pop(key, None))]
        listed = [name for v in given for name in (v if isinstance(v, list) else [v])]
        names = [part for name in listed for part in str(name).split(",")]
        if names and (read := readable(names, self.defaults.indexes))[len(names) :]:
            line = json.dumps({**header, "index": read}).encode()
        pipeline = [("search_pipeline", "named")] if "search_pipeline" in header else []
        parameters = [*pipeline, *request.parameters]
        return line, self._read(body, parameters, names or request.indexes)

    async def _texts(
        self,
        responses: list[SearchResponse],
        searches: Sequence[tuple[bytes, Search]],
        request: EngineRequest,
    ) -> Sequence[str]:
        """The responses to searches; those without hits are sent once more, as they came."""
        windows = [search.window for _, search in searches]
        failed = [row for row, each in enumerate(windows) if each and responses[row].hits is None]
        if failed:
            body = _joined([(searches[row][0], searches[row][1].body) for row in failed])
            second = await self._send(request, request.path(), body)
            with suppress(ValueError):
                again = zip(failed, (await _read(read_responses, second))[0], strict=True)
                for row, response in list(again):
                    responses[row] = response

        async def text_of(row: int) -> str:
            response, window = responses[row], windows[row]
            if window and row not in failed:
                return (await self._reranked(response, window, request))[0]
            outcome = "failed" if window else "unchanged"
            outcome = "refused" if response.hits is None else outcome
            self.service.metrics.search(request.record, outcome)
            mark = MARK if outcome == "failed" else ""
            return f"{{{mark}{response.text[response.start + 1 : response.stop]}"

        return await asyncio.gather(*map(text_of, range(len(searches))))

    async def _reranked(
        self, response: SearchResponse, window: Window, request: EngineRequest
    ) -> tuple[str, Ranked | None]:
        """The page of a response with hits, and their ranking; None, and as it was, without one."""
        assert response.hits is not None
        rows: Sequence[tuple[int, str | None]] = [(row, None) for row in range(len(response.hits))]
        outcome, record, ranked = "unchanged", request.record, None
        if rows and all(hit.score is not None for hit in response.hits):
            try:
                ranked = await self._order(response, window, request)
                rows, outcome = ranked.rows, "reranked"
            except RequestError as error:
                outcome, record.kind, record.error = "failed", error.kind, error.message
            except Exception as error:
                LOG.exception("request %s: not reranked", record.request_id)
                outcome, record.kind, record.error = "failed", "internal", type(error).__name__
        shown = rows[window.start : window.start + window.size]
        self.service.metrics.search(request.record, outcome)
        ext = ranked.ext if ranked else ""
        return response.page(shown, window.added, outcome == "failed", ext), ranked

    async def _order(
        self, response: SearchResponse, window: Window, request: EngineRequest
    ) -> Ranked:
        """The hits, best first; raises RequestError."""
        hits, record = response.hits or (), request.record
        fields = [(hit, window.fields_of(hit)) for hit in hits]
        texts = [hit.text(own.texts) for hit, own in fields]
        if not any(texts):
            listed = ", ".join(dict.fromkeys(name for _, own in fields for name in own.texts))
            problem = f"found no text in the hits' fields {listed}; name others by --text-field"
            raise RequestError("empty", problem)
        urls = [hit.text(own.names[len(own.texts) :]) for hit, own in fields]
        first = single_precision(hit.score or 0.0 for hit in hits)
        wanted = ScoreRequest(window.query, texts, urls, first, window.model)
        model = self._model(window, hits[0].index_name)
        record.format = "search"
        deadline = time.perf_counter() + self.defaults.seconds
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        score = partial(self.service.score, wanted, deadline=deadline)
        return await self.loop.rank(score, model, record, window, hits)


class _Route(Route):
    """A path of the engine; browsers get the service's own page in its place."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this path."""
        headers = scope.get("headers", ())
        if self.path == "/" and any(n == b"accept" and b"text/html" in v for n, v in headers):
            return Match.NONE, {}
        match, child = super().matches(scope)
        return (match, child) if match == Match.FULL else (Match.NONE, {})


def _not_found(scope: Scope) -> RequestError:
    problem = f"found {scope['method']} {scope['path'][:100]}, which does not pass here"
    return RequestError("path", f"{problem}, expected a search; ask the engine")


def _joined(pairs: Sequence[tuple[bytes, bytes]]) -> bytes:
    return b"".join(line + b"\n" for pair in pairs for line in pair)


async def _read(read: Callable[[str], Value], response: EngineResponse) -> Value:
    """The content of a response; raises ValueError."""
    if len(response.content) < _THREAD:
        return read(response.content.decode())
    return await asyncio.to_thread(lambda: read(response.content.decode()))


def _response(
    response: EngineResponse, content: bytes | None = None, is_reranked: bool | None = None
) -> Response:
    passed = Response(response.content if content is None else content, response.status)
    passed.raw_headers += [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in response.headers
    ]
    if is_reranked is not None:
        passed.headers["x-reranked"] = str(is_reranked).lower()
    return passed
