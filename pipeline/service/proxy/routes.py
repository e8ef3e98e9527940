"""The searches of an engine, with their hits reranked, and the calls that clients make around."""

import asyncio
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from typing import Any, ClassVar
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
from tweetrerank.pipeline.service.log import Ranked, SearchLog
from tweetrerank.pipeline.service.proxy import allowed
from tweetrerank.pipeline.service.proxy.allowed import (
    EngineRequest,
    Json,
    dumped,
    strict,
)
from tweetrerank.pipeline.service.proxy.page_search import (
    MARK,
    ResponseError,
    Row,
    Search,
    SearchDefaults,
    SearchResponse,
    Window,
    encoded,
    members_of,
    read_responses,
    read_search,
)
from tweetrerank.pipeline.service.proxy.upstream import Upstream
from tweetrerank.pipeline.service.rerank_service import Service
from tweetrerank.pipeline.service.scorer import ServedModel
from tweetrerank.pipeline.service.service_errors import ErrorFormat, RequestError

SEARCHES = 500  # In one request
OWN_SEARCH_FAILED = (200, 400, 500)
"""Responses without hits to a window's search that the caller's own search may not get."""
_MOST_PLACES = (
    1000  # Whose hits are known to lack fields: the names in them are the callers'
)
_PASSED = ("read", "options", "known", "mget")  # Kinds of calls around searches
_KINDS = {403: "security_exception", 429: "es_rejected_execution_exception"}


class EngineErrors(ErrorFormat):
    """Errors in the engines' shape."""

    statuses: ClassVar = {"value": 400, "model": 400}

    def explain(self, error: RequestError, request_id: str) -> Any:
        """A type and the reason."""
        status = self.status(error)
        kind = "illegal_argument_exception" if status < 500 else "proxy_exception"
        problem = {"type": _KINDS.get(status, kind), "reason": error.message}
        return {"error": {"root_cause": [problem], **problem}, "status": status}


class _Root(Route):
    """The engine's root; browsers get the service's own page in its place."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        is_page = any(
            n == b"accept" and b"text/html" in v for n, v in scope.get("headers", ())
        )
        match, child = super().matches(scope)
        return (
            (match, child) if match == Match.FULL and not is_page else (Match.NONE, {})
        )


@dataclass
class Proxy:
    """Answers searches in front of an engine."""

    service: Service
    upstream: Upstream
    defaults: SearchDefaults
    log: SearchLog | None = None

    def __post_init__(self) -> None:
        self.grammar = allowed.Grammar(self.defaults.indexes)
        self._lacking: LRUCache[int, bool] = LRUCache(_MOST_PLACES)
        self.root = _Root("/", self.endpoint, methods=["GET", "HEAD"])

    async def endpoint(self, request: Request) -> Response:
        """The response to a call on a path that is not the service's own."""
        request.state.format = EngineErrors()
        call = allowed.read_call(request, self.defaults.indexes)
        async with self.service.bodies.read(request) as body:
            call = allowed.with_body(call, body)
            work = self._pass if call.kind in _PASSED else self._search
            try:
                return _written(await unless_gone(work(call), request), call)
            except RequestError as error:
                if error.kind in ("away", "deadline", "overload"):
                    self.service.metrics.search(call.record, "away")
                raise
            finally:
                self.upstream.held -= call.record.held

    async def _pass(self, request: EngineRequest) -> Response:
        """A call around searches: its body is checked, and so are the ids in it."""
        content: Json = {}
        if request.body.strip() and request.kind != "read":
            content = strict(request.body)
            self.grammar.check(content, request.kind)
        if request.kind == "known":
            names = [content.get(name) for name in ("id", "pit_id", "scroll_id")]
            self.grammar.check_ids(
                *names, request.name, request.parameters.get("scroll_id")
            )
        body = dumped(content) if content else b""
        response = await self.upstream.send(replace(request, body=body))
        if request.kind != "read":
            with suppress(*ResponseError):
                self.grammar.remember(members_of(bytes(response.body)))
        return response

    async def _search(self, request: EngineRequest) -> Response:
        """One search or several, each with its hits reranked if it has a window."""
        searches = await self._read(request)
        if not (sent := [search for search in searches if isinstance(search, Search)]):
            errors = [search for search in searches if isinstance(search, RequestError)]
            messages = dict.fromkeys(error.message for error in errors)
            raise RequestError(errors[0].kind, "; ".join(messages))
        response, parts = await self._ask(request, sent)
        content, reason = bytes(response.body), sent[0].reason
        if not parts:  # An error, or not to be read.
            is_well = response.status_code == 200
            self.service.metrics.search(
                request.record, sent[0].outcome if is_well else "refused"
            )
            if (
                is_well
                and sent[0].outcome == "failed"
                and content.lstrip().startswith(b"{")
            ):
                content = content.replace(b"{", b'{"_reranked":false,', 1)
            return _answer(response, content, reason) if is_well else response
        work = (self._page(*pair, request) for pair in zip(parts, sent, strict=True))
        pages = await asyncio.gather(*work)
        problem = request.record.error or "found no hits with scores"
        if not request.is_several:
            [(page, ranked)] = pages
            answer = _answer(response, page, "" if ranked else reason or problem)
            if ranked and ranked.search_id:
                answer.headers["x-search-id"] = quote(ranked.search_id)
            return answer
        if searches == sent and not any(
            s.window or s.outcome == "failed" for s in sent
        ):
            return _answer(response, content, reason)
        left, explain = (page for page, _ in pages), EngineErrors().explain
        pairs = zip(sent, pages, strict=True)
        items = [
            next(left) if isinstance(s, Search) else encoded(explain(s, ""))
            for s in searches
        ]
        reasons = [
            search.reason or problem for search, (_, ranked) in pairs if not ranked
        ]
        problem = (
            f"{len(reasons)} of {len(sent)} searches: {reasons[0]}" if reasons else ""
        )
        whole = encoded(members_of(content) | {"responses": encoded(items)})
        return _answer(response, whole, problem)

    async def _read(self, request: EngineRequest) -> list[Search | RequestError]:
        """The searches of a request; raises RequestError for a body that has none."""
        bodies, headers = [request.body], [b"{}"]
        if request.is_several:
            lines = request.body.split(b"\n")
            headers, bodies = lines[:-1:2], lines[1:-1:2]
            if len(lines) % 2 == 0 or lines[-1].strip() or not bodies:
                raise RequestError(
                    "json", "found no lines of header and search, each with its end"
                )
            if len(bodies) > SEARCHES:
                problem = f"found {len(bodies):,} searches, expected at most {SEARCHES}"
                raise RequestError("many", problem)
        if request.kind.startswith("template"):
            rendered = await asyncio.gather(
                *(self._rendered(request, body) for body in bodies)
            )
            pairs = zip(headers, rendered, strict=True)
        else:
            pairs = zip(headers, bodies, strict=True)
        return await apart(
            len(request.body), lambda: [self._one(*p, request) for p in pairs]
        )

    def _one(
        self, line: bytes, body: bytes | RequestError, call: EngineRequest
    ) -> Search | RequestError:
        """A search as the engine is to see it, with its header; or the reason why it may not."""
        if isinstance(body, RequestError):
            return body
        try:
            content, header = (
                strict(body or b"{}"),
                strict(line if line.strip() else b"{}"),
            )
            self.grammar.check(content)
            given = [
                v
                for key in ("index", "indices")
                if (v := header.pop(key, None)) is not None
            ]
            self.grammar.check(header, "header")
            # A point in time has its own; not among several searches, where it may be overlooked.
            pit, indexes = content.get("pit"), call.indexes
            has_own = isinstance(pit, dict) and pit.get("id") and not call.is_several
            if given or not (indexes or has_own):
                names = [
                    str(n) for v in given for n in (v if isinstance(v, list) else [v])
                ]
                indexes = allowed.readable(
                    ",".join(names).split(","), self.defaults.indexes
                )
            defaults = replace(self.defaults, numbers=self.service.models.numbers)
            search = read_search(
                content, {**call.parameters, **header}, defaults, indexes
            )
            if search.window:
                self._model(search.window)
            return search._replace(header=dumped(header | {"index": indexes}))
        except RequestError as error:
            return error

    async def _rendered(
        self, request: EngineRequest, body: bytes
    ) -> bytes | RequestError:
        """The search of a template, or the reason why there is none."""
        headers = [(n, v.replace("x-ndjson", "json")) for n, v in request.headers]
        changes: Json = {
            "headers": headers,
            "parameters": {},
            "path": "/_render/template",
        }
        try:
            content = strict(body)
            self.grammar.check(content, "template")
            told = {
                name: content.pop(name)
                for name in ("explain", "profile")
                if name in content
            }
            call = replace(request, method="POST", body=dumped(content), **changes)
            response = await self.upstream.send(call)
            rendered = bytes(response.body)
            with suppress(*ResponseError):
                search = members_of(rendered).get("template_output", Raw(b""))
                if response.status_code == 200:
                    return dumped(strict(bytes(search)) | told)
        except RequestError as error:
            return error
        problem = rendered[:300].decode("utf-8", "replace")
        return RequestError(
            "value", f"the engine does not render the template: {problem}"
        )

    async def _ask(
        self, request: EngineRequest, searches: list[Search]
    ) -> tuple[Response, Sequence[SearchResponse]]:
        """The engine's response to searches and their windows; no parts if it cannot be read. The
        caller's own searches take the place of those that fail, for the engine's own words on them.
        Texts are read from the hits' sources, which come anyway; where these lack a field, it is
        asked for, from then on at once, unless shards without sources then fail."""
        windows = [search.window for search in searches]
        pairs = zip(windows, searches, strict=True)
        bodies = [
            w.bodies[w.place in self._lacking] if w else search.body
            for w, search in pairs
        ]
        changed = ("from", "size") if any(windows) else ()
        parameters = {
            name: v for name, v in request.parameters.items() if name not in changed
        }
        body = bodies[0]
        if request.is_several:
            lines = zip((search.header for search in searches), bodies, strict=True)
            body = b"".join(line + b"\n" for pair in lines for line in pair)
        try:
            response = await self.upstream.send(
                replace(request, body=body, parameters=parameters)
            )
        except RequestError as error:
            if error.kind != "large" or not changed:
                raise
            response = Response()
        parts, content = list[SearchResponse](), bytes(response.body)
        if response.status_code == 200:
            with suppress(*ResponseError):
                read = partial(read_responses, content, request.is_several, windows)
                parts = await apart(len(content), read)
        is_again, may_own = False, response.status_code in OWN_SEARCH_FAILED
        for row, window in enumerate(windows):
            if window is None:
                continue
            part, plain = parts[row] if parts else None, window.bodies[False]
            has_asked = bool(window.added) and bodies[row] is window.bodies[True]
            if (
                part
                and part.hits is not None
                and not (has_asked and part.has_failed_shards)
            ):
                if not part.are_whole and bodies[row] is not window.bodies[True]:
                    self._lacking[window.place] = is_again = True
            elif may_own and has_asked and bodies[row] is not plain:
                unasked = replace(window, bodies=(plain, plain), added=())
                searches[row], is_again = searches[row]._replace(window=unasked), True
            elif may_own:
                own = searches[row]._replace(
                    window=None, outcome="failed", reason="it failed"
                )
                searches[row], is_again = own, True
        return await self._ask(request, searches) if is_again else (response, parts)

    async def _page(
        self, part: SearchResponse, search: Search, request: EngineRequest
    ) -> tuple[bytes | Raw, Ranked | None]:
        """The page of a response, and its ranking if it has one."""
        window, record, outcome, ranked = (
            part.window,
            request.record,
            search.outcome,
            None,
        )
        members, hits = part.members, part.hits or ()
        if window is None:
            self.grammar.remember(members)
            outcome = "refused" if "error" in members else outcome
            self.service.metrics.search(record, outcome)
            return encoded(
                MARK | members
            ) if outcome == "failed" else part.content, None
        rows: list[Row] = [(row, None) for row in range(len(hits))]
        if hits and all(hit.score is not None for hit in hits[: window.depth]):
            try:
                ranked = await self._order(part, request)
                rows[: window.depth] = ranked.rows
                outcome = "reranked"
            except RequestError as error:
                outcome = "late" if error.kind in ("deadline", "overload") else "failed"
                record.kind, record.error = error.kind, error.message
            except Exception as error:
                LOG.exception("request %s: not reranked", record.request_id)
                outcome, record.kind, record.error = (
                    "failed",
                    "internal",
                    type(error).__name__,
                )
        self.service.metrics.search(record, outcome)
        shown = rows[window.start : window.start + window.size]
        if outcome in ("late", "failed"):
            members = MARK | members
        if ranked and ranked.ext:
            ext = members_of(members.get("ext", b"{}"))
            members = members | {"ext": encoded({**ext, **ranked.ext})}
        best = ranked.rows[0][1] if ranked else None
        return part.page(shown, members, best), ranked

    async def _order(self, part: SearchResponse, request: EngineRequest) -> Ranked:
        """The hits, best first; raises RequestError, at once if the queue is too long."""
        window, wanted, record, service = (
            part.window,
            part.wanted,
            request.record,
            self.service,
        )
        assert window and wanted and part.hits
        if not any(wanted.texts):
            listed = ", ".join(
                dict.fromkeys(n for f in window.fields.values() for n in f.texts)
            )
            problem = f"found no text in the hits' fields {listed}; name others by --text-field"
            raise RequestError("empty", problem)
        model = self._model(window, part.hits[0].index_name)
        if wanted.weight is not None and not model.reads_lists:
            wanted.options.mix = "neural"
        deadline = min(
            time.perf_counter() + self.defaults.seconds, request.deadline or inf
        )
        score = partial(service.score, wanted, deadline=deadline)
        record.format = "search"
        if self.log is None:
            return Ranked([*(await score(model, record)).best()])
        return await self.log.rank(
            service.models, score, model, record, window, part.hits
        )

    def _model(self, window: Window, index: str = "") -> ServedModel:
        """The model of a search of an index; raises RequestError if there is none of its name."""
        models, own = self.service.models, window.fields.get(index, window.fields[""])
        name = window.model or own.model
        return models.default if name is None else models.choose(name, False)


def _answer(
    response: Response, content: bytes | Raw, reason: str | None = None
) -> Response:
    """A response to a search with another body; it tells why it is not reranked, "" if it is."""
    response.body = bytes(content)
    response.headers["content-length"] = str(len(response.body))
    if reason is not None:
        response.headers["x-reranked"] = str(not reason).lower()
    if reason:
        response.headers["x-not-reranked"] = re.sub("[^ -~]", "?", reason)[:200]
    return response


def _written(response: Response, call: EngineRequest) -> Response:
    """A response as it is asked for: pretty, or YAML, which JSON in many lines is, too."""
    is_ours = response.headers.get("x-reranked") == "true"
    if call.is_yaml or (is_ours and call.parameters.get("pretty", "false") != "false"):
        with suppress(*ResponseError):
            text = msgspec.json.format(bytes(response.body), indent=2)
            _answer(response, b"---\n" + text + b"\n" if call.is_yaml else text)
    if call.is_yaml:
        response.headers["content-type"] = "application/yaml"
    return response
