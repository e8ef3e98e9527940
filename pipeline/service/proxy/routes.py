"""The searches of an engine, with their hits reranked."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar
from urllib.parse import parse_qsl, quote, unquote, unquote_plus

import orjson
from cachetools import LRUCache
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from indexes.engines.searching import single_precision
from pipeline.service.errors import ErrorFormat, RequestError
from pipeline.service.formats.base import ScoreRequest
from pipeline.service.http.models import ServedModel
from pipeline.service.http.requests import deadline_of, unless_gone
from pipeline.service.http.service import Service
from pipeline.service.log import Loop, Ranked
from pipeline.service.proxy.feedback import HITS, feedback
from pipeline.service.proxy.indexes import readable, served_by
from pipeline.service.proxy.search import (
    MARK,
    Key,
    Search,
    SearchDefaults,
    SearchResponse,
    Window,
    read_response,
    read_responses,
    read_search,
    search_of_sources,
    strict,
)
from pipeline.service.proxy.upstream import EngineResponse, Headers, Upstream
from pipeline.service.record import LOG, Record

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

_WORTH = 2_000_000
"""Bytes of sources beside those of the page; with more, these come faster by another search."""

_MOST_PLACES = 1000
"""Paths of which something is known, at most: the names in them are the callers'."""

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


@dataclass(frozen=True)
class EngineRequest:
    """A request as it goes on to the engine.

    Attributes:
        target: path of the engine, in visible ASCII.
        indexes: names and patterns in the path.
        query: parameters of the path, as they came.
        deadline: on the clock of ``time.perf_counter``; None is never.
    """

    method: str
    target: str
    indexes: Sequence[str]
    query: str
    headers: Headers
    body: bytes
    record: Record
    deadline: float | None

    @property
    def parameters(self) -> Sequence[tuple[str, str]]:
        """Names and values of the path's parameters."""
        # The engines separate them by semicolons too.
        return parse_qsl(self.query.replace(";", "&"), keep_blank_values=True)

    def path(self, without: Sequence[str] = ()) -> str:
        """Path and parameters, without some of them."""
        parts = [
            part
            for part in self.query.split("&")
            if unquote_plus(part.partition("=")[0]) not in without
        ]
        query = "&".join(parts)
        return f"{self.target}?{query}" if query else self.target


@dataclass
class _Place:
    """What is known of the hits at a path: their mean bytes, and what their sources lack."""

    is_lacking: bool = False
    size: float = 0.0
    is_joined: bool = False


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
        self._places: LRUCache[tuple[str, ...], _Place] = LRUCache(_MOST_PLACES)

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
            request.state.format = ENGINE_ERRORS
            target, indexes = self._target(request)
            async with self.service.bodies.read(request) as body:
                sent = self._request(request, target, indexes, body)
                try:
                    return await unless_gone(work(sent), request)
                finally:
                    self.upstream.release(sent.record)

        return endpoint

    def _target(self, request: Request) -> tuple[str, Sequence[str]]:
        """The path for the engine, and its indexes; raises RequestError for other paths."""
        raw = _raw_path(request)
        first, *others = raw.decode("latin-1").strip("/").split("/")
        if not others or unquote(first) == "_search":
            return _visible(raw), ()
        if others[0] not in (*SEARCHES, "_pit"):
            raise _not_found(request.scope)
        names = unquote(first).split(",")
        added = readable(names, self.defaults.indexes)[len(names) :]
        request.state.record.index = served_by(names[0], self.defaults.indexes)
        path = "/".join([",".join([first, *added]), *others])
        return f"/{_visible(path.encode('latin-1'))}", names

    def _request(
        self, request: Request, target: str, indexes: Sequence[str], body: bytes
    ) -> EngineRequest:
        scope = request.scope
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        try:
            deadline = deadline_of(request)
        except RequestError:
            deadline = None  # The header may be meant for the engine.
        query, record = _visible(scope["query_string"]), request.state.record
        return EngineRequest(
            *(scope["method"], target, indexes, query, headers, body, record, deadline)
        )

    async def _send(
        self, request: EngineRequest, path: str, body: bytes, is_needed: bool = True
    ) -> EngineResponse:
        """The engine's response; raises RequestError.

        A search that is not ``is_needed`` does not count as one.
        """
        started, seconds = time.perf_counter(), None
        try:
            if request.deadline is not None:
                seconds = request.deadline - started
                if seconds <= 0:
                    raise RequestError("deadline", "the deadline of the request is past")
            return await self.upstream.send(
                request.method, path, request.headers, body, seconds, request.record
            )
        except RequestError as error:
            if error.kind != "large" and is_needed:
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
            try:
                text, ranked = await self._reranked(window, search.window, request)
            except ValueError:  # A post is gone by now: its source comes with the others.
                whole = replace(search.window, needed=None)
                response, window = await self._of_window(request, whole)
                if not window or window.hits is None:
                    return await self._unchanged(request, search.body, has_failed=True)
                text, ranked = await self._reranked(window, whole, request)
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
        self, request: EngineRequest, window: Window, is_needed: bool = True
    ) -> tuple[EngineResponse, SearchResponse | None]:
        """The engine's response to the search of a window; None for one that cannot be read.

        Texts are read from the hits' sources, which come anyway. Where these lack a field, as some
        hits or mappings do, it is asked for, from then on at once. Of large sources only the needed
        part comes.
        """
        place = self._places.setdefault((request.target, *window.added), _Place())
        is_short, parsed = window.short is not None and not place.is_lacking, None
        can_split = window.needed is not None and not place.is_joined
        is_split = can_split and place.size * (window.hits - window.size) > _WORTH
        for body in (window.short, window.body) if is_short else (window.body,):
            assert body is not None
            sent = window.without_sources(body) if is_split else body
            response = await self._send(request, request.path(_PAGE), sent, is_needed)
            with suppress(ValueError):
                parsed = await _read(read_response, response) if response.status == 200 else None
            if is_split and not (parsed and parsed.is_whole and parsed.hits is not None):
                place.is_joined = True
                return await self._of_window(request, window, is_needed)
            if parsed is None or all(map(window.is_shown, parsed.hits or ())):
                break
            place.is_lacking = True
        if parsed and parsed.hits and not is_split:
            place.size = (parsed.last - parsed.first) / len(parsed.hits)
        return response, parsed and replace(parsed, is_split=is_split)

    async def _sources(
        self, response: SearchResponse, request: EngineRequest, rows: Sequence[int]
    ) -> Mapping[Key, str]:
        """The whole sources of some hits, by another search; raises ValueError if some are gone."""
        assert response.hits is not None
        hits = [response.hits[row] for row in rows]
        if not response.is_split or not hits:
            return {}
        path = request.path((*_PAGE, "track_total_hits"))
        found = await self._send(request, path, search_of_sources(hits))
        sources = (await _read(read_response, found)).sources() if found.status == 200 else {}
        if any(hit.key not in sources for hit in hits):
            raise ValueError("found no source of some hits")
        return sources

    async def _searches(self, request: EngineRequest) -> Response:
        """Several searches: the windows of those that have one, each reranked by itself."""
        lines = request.body.split(b"\n")
        pairs = list(zip(lines[:-1:2], lines[1:-1:2], strict=False))
        if len(lines) % 2 == 0 or lines[-1].strip() or not pairs:
            raise RequestError("json", "found no lines of header and search, each with its end")
        headers, searches = [], []
        for line, body in pairs:
            header, indexes, parameters = _header(line, self.defaults.indexes)
            headers.append(header)
            parameters += request.parameters
            searches.append(self._read(body, parameters, indexes or request.indexes))
        own = _joined(headers, [search.body for search in searches])
        if not any(search.window for search in searches):
            return await self._unchanged(request, own)
        bodies = [search.window.body if search.window else search.body for search in searches]
        try:
            response = await self._send(request, request.path(), _joined(headers, bodies))
            responses, first, last = await _read(read_responses, response)
            if response.status != 200 or len(responses) != len(searches):
                raise ValueError("found no response to each search")
        except (ValueError, RequestError) as error:
            if isinstance(error, RequestError) and error.kind != "large":
                raise
            # The same search without windows gets the engine's own words.
            return await self._unchanged(request, own, has_failed=True)
        texts = await self._texts(responses, searches, headers, request)
        whole = responses[0].text
        content = f"{whole[:first]}[{','.join(texts)}]{whole[last:]}"
        return _response(response, content.encode("utf-8", "surrogatepass"))

    async def _texts(
        self,
        responses: Sequence[SearchResponse],
        searches: Sequence[Search],
        headers: Sequence[bytes],
        request: EngineRequest,
    ) -> Sequence[str]:
        """The responses to searches; those without hits are sent once more, as they came."""
        rows = [row for row, search in enumerate(searches) if search.window]
        failed = [row for row in rows if responses[row].hits is None]
        again: dict[int, SearchResponse] = {}
        if failed:
            body = _joined([headers[row] for row in failed], [searches[row].body for row in failed])
            second = await self._send(request, request.path(), body)
            with suppress(ValueError):
                again = dict(zip(failed, (await _read(read_responses, second))[0], strict=True))

        async def text_of(row: int) -> str:
            response, window = responses[row], searches[row].window
            if window and row not in again and response.hits is not None:
                return (await self._reranked(response, window, request, headers[row]))[0]
            response = again.get(row, response)
            has_failed = response.hits is not None and window is not None
            outcome = (
                "failed" if has_failed else "refused" if response.hits is None else "unchanged"
            )
            self.service.metrics.search(request.record, outcome)
            mark = MARK if has_failed else ""
            return f"{{{mark}{response.text[response.start + 1 : response.stop]}"

        return await asyncio.gather(*map(text_of, range(len(searches))))

    async def _reranked(
        self,
        response: SearchResponse,
        window: Window,
        request: EngineRequest,
        header: bytes | None = None,
    ) -> tuple[str, Ranked | None]:
        """The page of a response with hits, and their ranking; None, and as it was, without one.

        ``header``: of a search of several.
        """
        response = await self._widened(response, window, request, header)
        assert response.hits is not None
        rows: Sequence[tuple[int, str | None]] = [(row, None) for row in range(len(response.hits))]
        outcome, record, ranked = "unchanged", request.record, None
        if rows and all(hit.score is not None for hit in response.hits):
            try:
                ranked = await self._order(response, window, request)
                rows, outcome = ranked.rows, "reranked"
            except RequestError as error:
                record.kind, record.error = error.kind, error.message
                outcome = "failed"
            except Exception as error:
                LOG.exception("request %s: not reranked", record.request_id)
                record.kind, record.error = "internal", type(error).__name__
                outcome = "failed"
        shown = rows[window.start : window.start + window.size]
        sources = await self._sources(response, request, [row for row, _ in shown])
        self.service.metrics.search(request.record, outcome)
        ext = ranked.ext if ranked else ""
        return response.page(shown, window.added, outcome == "failed", sources, ext), ranked

    async def _widened(
        self, response: SearchResponse, window: Window, request: EngineRequest, header: bytes | None
    ) -> SearchResponse:
        """A response with further hits of its search, found by words of the best ones.

        It is as it was where there are none, or where that fails.
        """
        hits, record, outcome = response.hits or (), request.record, "failed"
        is_full = len(hits) >= window.hits and all(hit.score is not None for hit in hits)
        if not (self.defaults.widens and window.can_widen and is_full and response.is_whole):
            return response
        end = time.perf_counter() + self.defaults.seconds / 2
        request = replace(request, deadline=min(end, request.deadline or end))
        try:
            wanted, model = self._wanted(response, window)
            scored = await self.service.score(wanted, model, record, request.deadline)
            best = [row for row, _ in scored.best()][:HITS]
            words = feedback(
                window.query,
                [wanted.texts[row] for row in best],
                [float(orjson.dumps(scored.scores[row])) for row in best],
                model.checkpoint.encoder.idf,
            )
            if words:
                found = await self._further(request, window.widened(words), header)
                response = response.with_hits_of(found)
            outcome = "widened"
            return response
        except (RequestError, ValueError) as error:
            LOG.warning("request %s: not widened: %s", record.request_id, error)
            return response
        finally:
            self.service.metrics.widening(record, outcome)

    async def _further(
        self, request: EngineRequest, window: Window, header: bytes | None
    ) -> SearchResponse:
        """The response to the second search of a window; raises RequestError and ValueError."""
        if header is None:
            response, found = await self._of_window(request, window, is_needed=False)
        else:
            body = _joined([header], [window.body])
            response = await self._send(request, request.path(), body, is_needed=False)
            found = (await _read(read_responses, response))[0][0]
        if found is None or found.hits is None or any(hit.score is None for hit in found.hits):
            raise ValueError(f"found the status {response.status} and no hits")
        return found

    def _wanted(self, response: SearchResponse, window: Window) -> tuple[ScoreRequest, ServedModel]:
        """The request for the scores of the hits, and the model; raises RequestError."""
        hits = response.hits or ()
        fields = [window.fields_of(hit) for hit in hits]
        texts = [hit.text(own.texts) for hit, own in zip(hits, fields, strict=True)]
        if not any(texts):
            listed = ", ".join(dict.fromkeys(name for own in fields for name in own.texts))
            problem = f"found no text in the hits' fields {listed}; name others by --text-field"
            raise RequestError("empty", problem)
        urls = [
            hit.text(own.names[len(own.texts) :]) for hit, own in zip(hits, fields, strict=True)
        ]
        first = single_precision(hit.score or 0.0 for hit in hits)
        wanted = ScoreRequest([window.query], texts, urls, first, window.model)
        return wanted, self._model(window, hits[0].index_name)

    async def _order(
        self, response: SearchResponse, window: Window, request: EngineRequest
    ) -> Ranked:
        """The hits, best first; raises RequestError."""
        (wanted, model), record = self._wanted(response, window), request.record
        record.format = "search"
        deadline = time.perf_counter() + self.defaults.seconds
        if request.deadline is not None:
            deadline = min(deadline, request.deadline)
        return await self.loop.rank(wanted, model, record, deadline, window, response.hits or ())


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


def _raw_path(request: Request) -> bytes:
    return request.scope.get("raw_path") or request.scope["path"].encode()


def _visible(raw: bytes) -> str:
    """Bytes of a path or of its parameters as visible ASCII."""
    return "".join(
        chr(byte) if 0x20 < byte < 0x7F and byte != 0x23 else f"%{byte:02X}" for byte in raw
    )


def _header(
    line: bytes, served: Sequence[str]
) -> tuple[bytes, Sequence[str], list[tuple[str, str]]]:
    """The header of a search of several, its indexes and parameters; raises RequestError."""
    header = strict(line if line.strip() else b"{}")
    given = [name for key in ("index", "indices") if (name := header.pop(key, None))]
    listed = [name for value in given for name in (value if isinstance(value, list) else [value])]
    names = [part for name in listed for part in str(name).split(",")]
    if names and (read := readable(names, served))[len(names) :]:
        line = json.dumps({**header, "index": read}).encode()
    pipeline = [("search_pipeline", "named")] if "search_pipeline" in header else []
    return line, names, pipeline


def _joined(headers: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for pair in zip(headers, bodies, strict=True) for line in pair)


async def _read(read: Callable[[str], Value], response: EngineResponse) -> Value:
    """The content of a response; raises ValueError."""
    if len(response.content) < _THREAD:
        return read(response.text)
    return await asyncio.to_thread(lambda: read(response.text))


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
