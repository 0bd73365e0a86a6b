"""Bodies of requests, looked at before they are taken apart: are they JSON, and not too much of it?

To say what is wrong with a value takes far longer than to send it, and a small body may hold a million wrong ones.
"""

from collections.abc import Callable, Coroutine
from json import JSONDecodeError
from typing import Any

from fastapi.routing import APIRoute
from starlette.requests import Request
from starlette.responses import Response

from recollect.serving.problems import Problem, invalid, pointer, too_many_at_once

MOST_NAMES = 32
"""Of an object beside a row: more than any request has."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


def route_class(batch: int) -> type[APIRoute]:
    """Routes whose bodies are refused before they are taken apart if a list is longer than `batch`."""

    class Route(APIRoute):
        def get_route_handler(self) -> Handler:
            handle = super().get_route_handler()
            return handle if self.body_field is None else _with_checked_body(handle, batch)

    return Route


def _with_checked_body(handle: Handler, batch: int) -> Handler:
    async def checked(request: Request) -> Response:
        if await request.body():
            check_amount(await _read(request), batch)
        return await handle(request)

    return checked


async def _read(request: Request) -> Any:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        detail = "the body is not declared as JSON: send the header Content-Type: application/json"
        raise Problem(415, "unsupported-media-type", detail)
    try:
        return await request.json()  # which the request remembers
    except JSONDecodeError as error:
        raise _not_json(error.msg) from error
    except (ValueError, RecursionError) as error:
        raise _not_json("it can't be read") from error


def _not_json(reason: str) -> Problem:
    return Problem(400, "not-json", f"the body is not JSON ({reason}): send a JSON object")


def check_amount(body: Any, batch: int) -> None:
    """Refuses lists of more than `batch`, and objects with more names than any request has."""
    if not isinstance(body, dict):
        return
    _check_names(body)
    for name, value in body.items():
        if not isinstance(value, list):
            continue
        if len(value) > batch:
            raise too_many_at_once(len(value), batch)
        for index, each in enumerate(value):
            if isinstance(each, dict):
                _check_names(each, name, index)


def _check_names(found: dict[str, Any], *place: str | int) -> None:
    if len(found) > MOST_NAMES:
        detail = f"has {len(found)} names, more than there are: see /openapi.json"
        raise invalid([{"pointer": pointer(*place), "detail": detail}])
