"""The routes: each reads a request, asks the service, and writes the answer."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from http import HTTPStatus
from importlib.resources import files
from typing import Annotated, Any

from fastapi import Depends, FastAPI, Path, Request, Response, Security
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from recollect import __version__
from recollect.errors import RecollectError
from recollect.serving import schemas
from recollect.serving.bodies import route_class
from recollect.serving.examples import examples, show_examples
from recollect.serving.guard import Guard
from recollect.serving.problems import MEDIA_TYPE, Fault, Problem, invalid, not_ready, on_problem
from recollect.serving.rows import Given
from recollect.serving.service import Service
from recollect.serving.settings import Scope

DESCRIPTION = """Predictions with the precedents they rest on, from a history that grows while it answers.

A label that was acknowledged counts in the next prediction. Errors are problem details (RFC 9457)."""

ALWAYS = (400, 403, 408, 413, 415, 422, 429, 500, 503)
SCOPE = "x-scope"
"""Under which an operation says what scope it needs, with or without tokens."""
PHRASES = {
    400: "Not JSON",
    401: "No token, or a wrong one",
    403: "The token lacks the scope, or the service is read-only",
    404: "There is no such thing",
    408: "The body came too slowly",
    409: "It contradicts what is there",
    413: "Too much at once",
    415: "The body is not declared as JSON",
    422: "Something is wrong with it: errors say what",
    429: "Too many are waiting: come back later",
    500: "Something unforeseen",
    503: "Not now",
    507: "The disk is full; predictions go on",
}

KINDS = {
    400: "not-json",
    401: "no-token",
    403: "no-scope",
    404: "no-such-item",
    408: "too-slow",
    409: "other-label",
    413: "too-many-at-once",
    415: "unsupported-media-type",
    422: "invalid",
    429: "queue-full",
    500: "unforeseen",
    503: "not-ready",
    507: "no-room",
}

ItemId = Annotated[
    str, Path(alias="id", min_length=1, max_length=200, pattern=schemas.NO_CONTROL, examples=[schemas.EXAMPLE_ID])
]


def make_app(service: Service) -> FastAPI:
    """An ASGI application; it starts the service, and closes it."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.close()

    app = FastAPI(
        title="Recollect",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # a redirect would lead to whatever host the request names
    )
    app.router.route_class = route_class(service.settings.limits.batch)
    tokens = bool(service.settings.tokens)
    bearer = HTTPBearer(auto_error=False)

    def needs(scope: Scope) -> dict[str, Any]:
        def check(request: Request) -> None:
            if scope not in request.state.scopes:
                raise Problem(403, "no-scope", f"the token lacks the scope {scope}: use one that has it")

        told_as = [Security(bearer, scopes=[scope])] if tokens else []
        return {"dependencies": [*told_as, Depends(check)], "openapi_extra": {SCOPE: scope}}

    def told(*more: int) -> dict[int | str, dict[str, Any]]:
        codes = sorted({*ALWAYS, *more, *([401] if tokens else [])})
        return {
            code: {
                "description": PHRASES[code],
                "content": {
                    MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}, "example": _wrong(code)}
                },
            }
            for code in codes
        }

    for kind in (Problem, RecollectError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, on_problem)

    @app.post("/predict", **needs("predict"), responses=told(), tags=["predicting"])
    async def predict(asked: schemas.PredictRequest, request: Request) -> schemas.PredictResponse:
        """Answers to one or many inputs, each with the precedents it rests on. The rows of precedents are shown if the
        token has the scope `payloads` as well."""
        _check_ids([each.id for each in asked.inputs])
        given = [Given(each.row.root, each.id) for each in asked.inputs]
        as_of = None if asked.as_of is None else asked.as_of.root
        payloads = "payloads" in request.state.scopes
        answered, ids = await service.predict(given, as_of, most=asked.precedents, payloads=payloads)
        return schemas.PredictResponse.model_construct(
            predictions=[
                schemas.PredictionOut.model_construct(
                    id=id,
                    label=found.label,
                    probabilities=found.probabilities,
                    precedents=[
                        schemas.PrecedentOut.model_construct(**{**vars(each), "id": str(each.id)})
                        for each in found.precedents
                    ],
                )
                for id, found in zip(ids, answered.predictions, strict=True)
            ],
            as_of=schemas.Moment(service.rows.shown(answered.as_of)),
            version=answered.version,
            model=answered.model,
            unscored=answered.unscored,
        )

    @app.post("/items", **needs("write"), responses=told(409, 507), tags=["writing"])
    async def add(asked: schemas.ItemsRequest) -> schemas.WrittenResponse:
        """Labelled items, durable when this answers and visible to the next prediction. Sending one again changes
        nothing; the same id with another label, row or time is refused, and then nothing of the request is written."""
        given = [
            Given(each.row.root, each.id, each.label, _moment(each.time), _moment(each.known_at))
            for each in asked.items
        ]
        return _written(*await service.add(given))

    @app.post("/labels", **needs("write"), responses=told(404, 409, 507), tags=["writing"])
    async def label(asked: schemas.LabelsRequest) -> schemas.WrittenResponse:
        """Labels for inputs that were answered earlier, which become items by that."""
        given = [Given({}, each.id, each.label, None, _moment(each.known_at)) for each in asked.labels]
        return _written(*await service.label(given))

    @app.get("/items/{id:path}", **needs("predict"), responses=told(404), tags=["looking"])
    async def item(id: ItemId, request: Request) -> schemas.ItemOut:
        """One item as it is now. Its row is shown if the token has the scope `payloads` as well."""
        return schemas.ItemOut(**await service.item(id, payloads="payloads" in request.state.scopes))

    @app.patch("/items/{id:path}", **needs("write"), responses=told(404, 409, 507), tags=["writing"])
    async def correct(id: ItemId, asked: schemas.CorrectionRequest) -> schemas.CorrectionResponse:
        """Another label from a moment on; what was visible before that moment stays as it was."""
        written = await service.correct(id, asked.label, _moment(asked.at))
        return schemas.CorrectionResponse(id=id, changed=written.statuses == ["added"], version=written.version)

    @app.delete("/items/{id:path}", **needs("write"), responses=told(404, 507), tags=["writing"])
    async def erase(id: ItemId) -> schemas.ErasureResponse:
        """Take an item out of every view, past ones too, and the input of that id if one is kept."""
        erased, dropped = await service.erase(id)
        return schemas.ErasureResponse(id=id, erased=erased, input_dropped=dropped)

    @app.get("/health", responses=told(), tags=["operating"])
    async def health() -> schemas.HealthOut:
        """The process is alive."""
        return schemas.HealthOut(status="ok")

    @app.get("/ready", responses=told(), tags=["operating"])
    async def ready() -> schemas.ReadyOut:
        """The model has caught up with the history, and answers without delay."""
        if not service.engine.ready.is_set():
            raise not_ready()
        if not service.kept.going:
            raise Problem(503, "inputs-not-kept", "inputs are no longer kept for labels: start the service anew")
        version = service.engine.deployed.snapshot.version
        return schemas.ReadyOut(status="ready", model=service.fingerprint, version=version)

    @app.get("/status", **needs("predict"), responses=told(), tags=["looking"])
    async def status(request: Request) -> schemas.StatusOut:
        """What the page shows: the history, the table's columns, and how answers fared."""
        return schemas.StatusOut(**await service.status(), scopes=sorted(request.state.scopes))

    @app.get(
        "/metrics",
        **needs("predict"),
        responses={**told(), 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}},
        response_class=Response,
        tags=["operating"],
    )
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(service.metrics_text(), media_type=service.metrics.media_type)

    @app.post("/admin/reload", **needs("write"), responses=told(409), tags=["operating"])
    async def reload() -> schemas.ReloadOut:
        """Load the model anew from its directory; no request is dropped."""
        model, before = await service.reload()
        return schemas.ReloadOut(model=model, before=before)

    service.on_reload = lambda: setattr(app, "openapi_schema", None)
    _add_page(app)
    app.add_middleware(
        Guard,
        settings=service.settings,
        observe=lambda route, status, seconds: service.metrics.requests.labels(route, status).observe(seconds),
    )
    app.openapi = lambda: _contract(app, service)  # type: ignore[method-assign]
    return app


def _check_ids(ids: Sequence[str | None]) -> None:
    """A label that comes for an id can only be for one input."""
    seen: set[str] = set()
    faults: list[Fault] = []
    for index, id in enumerate(ids):
        if id in seen:
            detail = f"the id {id} stands in this request twice: give each input an id of its own, or none"
            faults.append({"pointer": f"#/inputs/{index}/id", "detail": detail})
        elif id is not None:
            seen.add(id)
    if faults:
        raise invalid(faults)


def _moment(given: schemas.Moment | None) -> str | float | None:
    return None if given is None else given.root


def _written(written: Any, ids: Sequence[str]) -> schemas.WrittenResponse:
    items = [schemas.WrittenItem(id=id, status=status) for id, status in zip(ids, written.statuses, strict=True)]
    return schemas.WrittenResponse(items=items, version=written.version)


def _add_page(app: FastAPI) -> None:
    folder = files("recollect.serving") / "page"
    kinds = {
        "/": ("page.html", "text/html"),
        "/page.css": ("page.css", "text/css"),
        "/page.js": ("page.js", "text/javascript"),
    }
    for path, (name, kind) in kinds.items():
        content = (folder / name).read_bytes()
        app.add_api_route(path, _constant(content, kind), include_in_schema=False)


def _constant(content: bytes, kind: str) -> Any:
    async def respond() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return respond


def _wrong(code: int) -> dict[str, Any]:
    return {
        "type": f"urn:recollect:{KINDS[code]}",
        "title": HTTPStatus(code).phrase,
        "status": code,
        "detail": PHRASES[code],
    }


def _name_scopes(contract: dict[str, Any]) -> None:
    for path in contract["paths"].values():
        for operation in path.values():
            if scope := operation.get(SCOPE):
                operation["description"] += f"\n\nNeeds the scope `{scope}`."
            else:
                operation["description"] += "\n\nNeeds no token."


def _contract(app: FastAPI, service: Service) -> dict[str, Any]:
    """OpenAPI, with the rows and moments of this very model."""
    if app.openapi_schema is None:
        found = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        components = found["components"]["schemas"]
        schema, limits = service.rows.schema, service.settings.limits
        components["Row"] = schemas.row_schema(schema, limits.text)
        components["Moment"] = schemas.moment_schema(schema)
        components["ProblemOut"] = schemas.ProblemOut.model_json_schema(ref_template="#/components/schemas/{model}")
        components |= components["ProblemOut"].pop("$defs", {})
        for name, field in (("PredictRequest", "inputs"), ("ItemsRequest", "items"), ("LabelsRequest", "labels")):
            components[name]["properties"][field]["maxItems"] = limits.batch
        for unused in ("HTTPValidationError", "ValidationError"):
            components.pop(unused, None)
        classes = list(service.engine.deployed.snapshot.classes)
        for name in ("Item", "LabelIn", "CorrectionRequest"):
            components[name]["properties"]["label"]["examples"] = classes[:1] or ["yes"]
        show_examples(found, examples(schema, classes, schema.roles(), service.fingerprint))
        _name_scopes(found)
        app.openapi_schema = found
    return app.openapi_schema
