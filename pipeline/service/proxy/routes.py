"""The searches of an engine, with their hits reranked."""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TypeVar
from urllib.parse import parse_qsl, unquote, unquote_plus

import orjson
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Scope

from indexes.engines.searching import single_precision
from pipeline.service.formats.base import Ask
from pipeline.service.http.errors import STATUS, Fault
from pipeline.service.http.models import ServedModel
from pipeline.service.http.record import LOG, Record
from pipeline.service.http.service import Service, deadline_of, job_of, unless_gone
from pipeline.service.proxy import answers, plan
from pipeline.service.proxy.answers import Answer
from pipeline.service.proxy.plan import Plan, Search, Settings
from pipeline.service.proxy.upstream import AwayError, Headers, Reply, Upstream

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
"""Answers to a window's search that the caller's own search may not get."""

_STATUS = {"value": 400, "model": 400}
"""Kind of a fault -> the engines' status for it, where it is not that of all formats."""

_THREAD = 1_000_000
"""Bytes of an answer that is read in a thread of its own."""

_PAGE = ("from", "size")

_MOST_LACKING = 1000
"""Paths whose hits' sources lack a field, at most: what callers may name is not counted."""

Found = TypeVar("Found")

_Row = tuple[int, str | None]
"""A hit's place in the engine's ranking, and its new score."""


@dataclass(frozen=True)
class Call:
    """A request for searches.

    Attributes:
        target: path of the engine, in visible ASCII.
        query: parameters of the path, as they came.
        deadline: on the clock of ``time.perf_counter``; None is never.
    """

    method: str
    target: str
    query: str
    headers: Headers
    body: bytes
    record: Record
    deadline: float | None

    def path(self, without: Sequence[str] = ()) -> str:
        """Path and parameters, without some of them."""
        parts = [
            part
            for part in self.query.split("&")
            if unquote_plus(part.partition("=")[0]) not in without
        ]
        query = "&".join(parts)
        return f"{self.target}?{query}" if query else self.target


_Work = Callable[[Call], Awaitable[Response]]


class Proxy:
    """Answers searches in front of an engine.

    Args:
        service: scores the hits.
        upstream: the engine.
        settings: of searches.
    """

    def __init__(self, service: Service, upstream: Upstream, settings: Settings) -> None:
        self.service, self.upstream, self.settings = service, upstream, settings
        self._lacking: set[tuple[str, ...]] = set()

    def routes(self) -> Sequence[Route]:
        """The engine's paths; that of the root is not for browsers."""
        searches: dict[str, _Work] = {
            "_search": self._search,
            "_msearch": self._many,
        }
        return [
            *(
                _Route(path, partial(self._answer, self._pass), methods=[*methods])
                for path, methods in PASSED.items()
            ),
            *(
                _Route(path, partial(self._answer, answer), methods=["GET", "POST"])
                for name, answer in searches.items()
                for path in (f"/{name}", f"/{{index:path}}/{name}")
            ),
        ]

    async def _answer(
        self, work: Callable[[Call], Awaitable[Response]], request: Request
    ) -> Response:
        """The answer to a call, or its fault as an engine's error."""
        record: Record = request.scope["state"]["record"]
        try:
            async with self.service.body_of(request) as body:
                call = self._call(request, body, record)
                return await unless_gone(work(call), request)
        except Fault as fault:
            record.kind, record.error = fault.kind, fault.message
            status = _STATUS.get(fault.kind, STATUS[fault.kind])
            return refusal(status, fault.message, fault.retry)
        except ClientDisconnect:
            record.kind = "gone"
            return refusal(STATUS["gone"], "the client has gone")
        except AwayError as error:
            self.service.metrics.search("away")
            record.error = str(error)
            return refusal(error.status, str(error))
        except Exception:
            LOG.exception("request %s failed", record.request_id)
            record.kind = "internal"
            return refusal(500, f"an internal error; see the log for {record.request_id}")

    def _call(self, request: Request, body: bytes, record: Record) -> Call:
        """A request as it goes on to the engine; raises Fault if it is none of these."""
        scope = request.scope
        raw: bytes = scope.get("raw_path") or scope["path"].encode()
        if not _is_of_engine(raw):
            raise _unknown(request)
        headers = [(n.decode("latin-1"), v.decode("latin-1")) for n, v in scope["headers"]]
        if request.headers.get("content-encoding", "").strip().lower() == "gzip":
            body = _unpacked(body, self.service.limits.body)
        try:
            deadline = deadline_of(request, record.started)
        except Fault:
            deadline = None  # The header may be meant for the engine.
        method, target, query = scope["method"], _visible(raw), _visible(scope["query_string"])
        return Call(method, target, query, headers, body, record, deadline)

    async def _send(self, call: Call, path: str, body: bytes) -> Reply:
        """The engine's answer; raises AwayError."""
        seconds = None
        if call.deadline is not None:
            seconds = call.deadline - time.perf_counter()
            if seconds <= 0:
                raise AwayError(504, "the deadline of the request is past")
        started = time.perf_counter()
        try:
            return await self.upstream.send(call.method, path, call.headers, body, seconds)
        finally:
            call.record.engine += time.perf_counter() - started

    async def _pass(self, call: Call) -> Response:
        return _response(await self._send(call, call.path(), call.body))

    async def _search(self, call: Call) -> Response:
        """A search: that of its window, reranked, if there is one."""
        parameters = parse_qsl(call.query, keep_blank_values=True)
        search = self._read(call.body, parameters)
        wanted = search.plan
        if wanted is None:
            return self._own(await self._send(call, call.path(), search.body), False)
        reply, answer = await self._window(call, wanted)
        if answer and answer.hits is not None:
            text, is_reranked = await self._reranked(answer, wanted, call)
            return _response(reply, text.encode("utf-8", "surrogatepass"), is_reranked)
        if reply.status not in (200, *_OWN_SEARCH_FAILED):
            return self._own(reply, False)
        return self._own(await self._send(call, call.path(), search.body), True)

    async def _window(self, call: Call, wanted: Plan) -> tuple[Reply, Answer | None]:
        """The engine's answer to the search of a window; None for one that cannot be read.

        Texts are read from the hits' sources, which come anyway. Where these lack a field, as some
        hits or mappings do, it is asked for, from then on at once.
        """
        place = (call.target, *wanted.added)
        is_short = wanted.short is not None and place not in self._lacking
        answer = None
        for body in (wanted.short, wanted.body) if is_short else (wanted.body,):
            assert body is not None
            reply = await self._send(call, call.path(_PAGE), body)
            with suppress(ValueError):
                answer = await _read(answers.read, reply) if reply.status == 200 else None
            if answer is None or all(hit.has(wanted.added) for hit in answer.hits or ()):
                break
            if len(self._lacking) >= _MOST_LACKING:
                self._lacking.clear()
            self._lacking.add(place)
        return reply, answer

    def _read(self, body: bytes, parameters: Sequence[tuple[str, str]]) -> Search:
        """What a search asks for; raises Fault if its ``ext.rerank`` is wrong."""
        search = plan.read(body, parameters, self.settings)
        if search.plan:
            self._model(search.plan)
        return search

    def _model(self, wanted: Plan) -> ServedModel:
        """The model of a search; raises Fault if there is none of its name."""
        models = self.service.models
        return models.default if wanted.model is None else models.choose(wanted.model, False)

    def _own(self, reply: Reply, should_be_reranked: bool) -> Response:
        """The engine's answer to the caller's own search."""
        if reply.status != 200:
            self.service.metrics.search("refused")
            return _response(reply)
        self.service.metrics.search("failed" if should_be_reranked else "unchanged")
        content = reply.content
        if should_be_reranked and content.lstrip().startswith(b"{"):
            content = content.replace(b"{", b"{" + answers.MARK.encode(), 1)
        return _response(reply, content, False)

    async def _many(self, call: Call) -> Response:
        """Several searches: the windows of those that have one, each reranked by itself."""
        parameters = parse_qsl(call.query, keep_blank_values=True)
        lines = call.body.split(b"\n")
        pairs = list(zip(lines[:-1:2], lines[1:-1:2], strict=False))
        if len(lines) % 2 == 0 or lines[-1].strip() or not pairs:
            return self._own(await self._send(call, call.path(), call.body), False)
        searches = [self._read(body, [*parameters, *_parameters(header)]) for header, body in pairs]
        headers = [header for header, _ in pairs]
        own = _joined(headers, [one.body for one in searches])
        if not any(one.plan for one in searches):
            return self._own(await self._send(call, call.path(), own), False)
        bodies = [one.plan.body if one.plan else one.body for one in searches]
        reply = await self._send(call, call.path(), _joined(headers, bodies))
        try:
            found, first, last = await _read(answers.read_many, reply)
            if reply.status != 200 or len(found) != len(searches):
                raise ValueError("found no answer to each search")
        except ValueError:
            # The same search without windows gets what the engine says to it.
            return self._own(await self._send(call, call.path(), own), True)
        texts = await self._texts(found, searches, headers, call)
        before = found[0].text
        content = f"{before[:first]}[{','.join(texts)}]{before[last:]}"
        return _response(reply, content.encode("utf-8", "surrogatepass"))

    async def _texts(
        self,
        found: Sequence[Answer],
        searches: Sequence[Search],
        headers: Sequence[bytes],
        call: Call,
    ) -> Sequence[str]:
        """The answers to searches; those without hits are asked for once more, as they came."""
        failed = [row for row, one in enumerate(searches) if one.plan and found[row].hits is None]
        again: dict[int, Answer] = {}
        if failed:
            body = _joined([headers[row] for row in failed], [searches[row].body for row in failed])
            reply = await self._send(call, call.path(), body)
            try:
                again = dict(zip(failed, (await _read(answers.read_many, reply))[0], strict=True))
            except ValueError:
                again = {}

        async def text_of(row: int) -> str:
            answer, wanted = found[row], searches[row].plan
            if wanted and row not in again and answer.hits is not None:
                return (await self._reranked(answer, wanted, call))[0]
            answer = again.get(row, answer)
            is_failure = answer.hits is not None and wanted is not None
            outcome = "failed" if is_failure else "refused" if answer.hits is None else "unchanged"
            self.service.metrics.search(outcome)
            mark = answers.MARK if is_failure else ""
            return f"{{{mark}{answer.text[answer.start + 1 : answer.stop]}"

        return await asyncio.gather(*map(text_of, range(len(searches))))

    async def _reranked(self, answer: Answer, wanted: Plan, call: Call) -> tuple[str, bool]:
        """The page of an answer with hits, and whether it is reranked: as it was if not."""
        assert answer.hits is not None
        rows: Sequence[_Row] = [(row, None) for row in range(len(answer.hits))]
        outcome = "unchanged"
        if rows and all(hit.score is not None for hit in answer.hits):
            try:
                rows = await self._order(answer, wanted, call)
                outcome = "reranked"
            except Fault as fault:
                call.record.kind, call.record.error = fault.kind, fault.message
                outcome = "failed"
            except Exception as error:
                LOG.exception("request %s: not reranked", call.record.request_id)
                call.record.kind, call.record.error = "internal", type(error).__name__
                outcome = "failed"
        self.service.metrics.search(outcome)
        shown = rows[wanted.start : wanted.start + wanted.size]
        return answer.page(shown, wanted.added, outcome == "failed"), outcome == "reranked"

    async def _order(self, answer: Answer, wanted: Plan, call: Call) -> Sequence[_Row]:
        """The hits, best first; raises Fault."""
        hits, record, service = answer.hits or (), call.record, self.service
        texts = [hit.text(wanted.text_fields) for hit in hits]
        if not any(texts):
            names = ", ".join(wanted.text_fields)
            problem = f"found no text in the hits' fields {names}; name others by --text-field"
            raise Fault("empty", problem)
        urls = [hit.text([wanted.url_field]) if wanted.url_field else "" for hit in hits]
        first = single_precision(hit.score or 0.0 for hit in hits)
        ask = Ask([wanted.query], texts, urls, first, wanted.model)
        model = self._model(wanted)
        record.format, record.model = "search", model.name
        record.documents += len(texts)
        record.characters += sum(map(len, texts)) + len(wanted.query)
        if service.log_texts:
            record.texts = [*record.texts, wanted.query, *texts]
        job, pairs = job_of(ask, model)
        job.deadline = time.perf_counter() + self.settings.seconds
        if call.deadline is not None:
            job.deadline = min(job.deadline, call.deadline)
        before = model.scorer.hits
        logits = await service.scheduler.score(job)
        record.queue = max(record.queue, (job.started or job.queued) - job.queued)
        record.inference += job.inference
        record.cache_hits += min(model.scorer.hits - before, len(job.texts))
        finished = model.finish(ask, logits[pairs], False)
        return [(row, orjson.dumps(finished.scores[row]).decode()) for row in finished.order]


class _Route(Route):
    """A path of the engine; browsers get the service's own page in its place."""

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Whether a request is for this path."""
        if self.path == "/" and any(
            name == b"accept" and b"text/html" in value for name, value in scope.get("headers", ())
        ):
            return Match.NONE, {}
        return super().matches(scope)


def refusal(status: int, reason: str, retry: int | None = None) -> Response:
    """An error in the engines' shape."""
    kinds = {404: "resource_not_found_exception", 429: "es_rejected_execution_exception"}
    kind = "illegal_argument_exception" if status < 500 else "proxy_exception"
    error = {"type": kinds.get(status, kind), "reason": reason}
    content = {"error": {"root_cause": [error], **error}, "status": status}
    response = Response(orjson.dumps(content), status, media_type="application/json")
    if retry is not None:
        response.headers["retry-after"] = str(retry)
    if status in (STATUS["body"], STATUS["slow_body"]):
        # The rest of the body is not read.
        response.headers["connection"] = "close"
    return response


def unknown(request: Request) -> Response:
    """The answer to a call that does not pass."""
    fault = _unknown(request)
    record: Record = request.scope["state"]["record"]
    record.kind, record.error = fault.kind, fault.message
    return refusal(STATUS[fault.kind], fault.message)


def _unknown(request: Request) -> Fault:
    found = f"found {request.method} {request.url.path[:100]}"
    return Fault("path", f"{found}, which does not pass here, expected a search; ask the engine")


def _is_of_engine(raw: bytes) -> bool:
    """Whether the part of a path before its call is one that can name indexes."""
    first, *others = raw.decode("latin-1").strip("/").split("/")
    name = unquote(first)
    if not others or name == "_search":
        return True
    if others[0] not in (*SEARCHES, "_pit") or name in ("", ".", ".."):
        return False
    return name == "_all" or not name.startswith("_")


def _visible(raw: bytes) -> str:
    """Bytes of a path or of its parameters as visible ASCII."""
    return "".join(
        chr(byte) if 0x20 < byte < 0x7F and byte != 0x23 else f"%{byte:02X}" for byte in raw
    )


def _unpacked(body: bytes, most: int) -> bytes:
    """A gzip body; one that is not gzip is the engine's to refuse."""
    reader = zlib.decompressobj(31)
    try:
        found = reader.decompress(body, most)
    except zlib.error as error:
        raise Fault("json", f"found a body that is no gzip: {error}") from None
    if reader.unconsumed_tail:
        raise Fault("body", f"found more than {most} bytes in the body, expected at most that")
    return found


def _parameters(header: bytes) -> Sequence[tuple[str, str]]:
    """What the header of a search says as parameters; anything else is the engine's to refuse."""
    try:
        content = orjson.loads(header) if header.strip() else {}
    except orjson.JSONDecodeError:
        return [("source", "unknown")]
    if not isinstance(content, dict):
        return [("source", "unknown")]
    return [("search_pipeline", "named")] if "search_pipeline" in content else []


def _joined(headers: Sequence[bytes], bodies: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for pair in zip(headers, bodies, strict=True) for line in pair)


async def _read(read: Callable[[str], Found], reply: Reply) -> Found:
    """What an answer has; raises ValueError."""
    if len(reply.content) < _THREAD:
        return read(reply.text)
    return await asyncio.to_thread(lambda: read(reply.text))


def _response(
    reply: Reply, content: bytes | None = None, is_reranked: bool | None = None
) -> Response:
    """The engine's answer, with other content perhaps."""
    response = Response(reply.content if content is None else content, reply.status)
    response.raw_headers += [
        (name.lower().encode("latin-1"), value.encode("latin-1", "replace"))
        for name, value in reply.headers
    ]
    if is_reranked is not None:
        response.headers["x-reranked"] = str(is_reranked).lower()
    return response
