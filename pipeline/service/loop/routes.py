"""Events of users, in the form of OpenSearch's User Behavior Insights, and the page of the loop."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import orjson
from pydantic import BaseModel, Field, StrictInt, StrictStr, TypeAdapter, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from pipeline.loop.comparison import clicked_of
from pipeline.service.errors import RequestError
from pipeline.service.http.requests import validation_error
from pipeline.service.loop.searches import Loop
from pipeline.service.page.routes import ERRORS, HEADERS, file_route

LEVEL = 0.95  # Of the interval on the page


_Text = Annotated[StrictStr, Field(max_length=512)]


class _Object(BaseModel):
    object_id: _Text | StrictInt | None = None


class _Position(BaseModel):
    ordinal: Annotated[StrictInt, Field(ge=0, lt=2**31)] | None = None


class _Attributes(BaseModel):
    object: _Object = _Object()
    position: _Position = _Position()


class _Event(BaseModel):
    """An event of UBI; its other fields are not kept."""

    action_name: _Text
    query_id: _Text
    client_id: _Text | None = None
    event_attributes: _Attributes = _Attributes()

    def record(self) -> dict[str, Any]:
        """As in the log."""
        object_id = self.event_attributes.object.object_id
        return {
            "search_id": self.query_id,
            "time": time.time(),
            "action": self.action_name,
            "object_id": None if object_id is None else str(object_id),
            "position": self.event_attributes.position.ordinal,
            "client_id": self.client_id,
        }


_EVENTS: TypeAdapter[list[_Event]] = TypeAdapter(list[_Event])


def routes(loop: Loop) -> list[Route]:
    """``/events``, the page and its JSON; none where nothing is logged."""
    if loop.log is None:
        return []

    async def events(request: Request) -> JSONResponse:
        request.state.format = ERRORS
        async with loop.service.bodies.read(request) as body:
            try:
                content = orjson.loads(body)
                found = _EVENTS.validate_python(content if isinstance(content, list) else [content])
            except orjson.JSONDecodeError as error:
                raise RequestError("json", f"found no JSON in the body: {error}") from None
            except ValidationError as error:
                raise validation_error(error) from None
        for event in found:
            loop.event(event.record())
        return JSONResponse({"accepted": len(found)})

    async def state(request: Request) -> JSONResponse:
        request.state.format = ERRORS
        return JSONResponse(describe(loop), headers=HEADERS)

    folder = Path(__file__).parent
    return [
        Route("/events", events, methods=["POST"]),
        Route("/api/loop", state),
        file_route("/loop", folder / "loop.html", "text/html"),
        file_route("/loop.js", folder / "loop.js", "text/javascript"),
    ]


def describe(loop: Loop) -> dict[str, Any]:
    """The last searches with their clicks, and the state of the comparison."""
    assert loop.log is not None
    state, challenger = loop.comparison, loop.challenger
    compared = None
    if challenger and challenger.model:
        compared = {
            "champion": f"{loop.service.models.default.name} {state.champion[:12]}",
            "challenger": f"{challenger.folder.name} {state.challenger[:12]}",
            "share": challenger.share,
            **{name: getattr(state, name) for name in ("searches", "wins", "losses", "ties")},
            "evidence": state.evidence,
            "interval": state.interval(LEVEL),
            "needed": state.needed(LEVEL),
        }
    searches = [
        {
            "time": search["time"],
            "query": search["query"],
            "model": search["model"],
            "interleaved": bool(search["teams"]),
            "shown": len(search["shown"]),
            "clicked": [search["start"] + p for p, i in enumerate(search["shown"], 1) if i in ids],
        }
        for search, objects in reversed(loop.recent)
        for ids in [clicked_of(search, objects)]
    ]
    return {"comparison": compared, "searches": searches if loop.log.is_plain else None}
