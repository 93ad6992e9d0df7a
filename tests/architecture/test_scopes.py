"""Nobody gets in by a route that was forgotten."""

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.routing import iter_route_contexts

from api.dependencies import Requires, services_of_batch, services_of_list
from api.experiments.routes import services_of_experiment
from api.main import create_app
from worker.contract.access import Scope

# Whoever reaches the port may ask these; they show no tenant's work.
PUBLIC = {"/health", "/ready", "/docs", "/docs/{name}", "/openapi.json"}
PUBLIC |= {"/", "/dashboard", "/dashboard/{name}"}


def calls(dependant: Dependant) -> Iterator[Any]:
    yield dependant.call
    for inner in dependant.dependencies:
        yield from calls(inner)


def scopes_by_route(app: FastAPI) -> dict[tuple[str, str], set[Scope]]:
    """Return what each method and path of an application demands."""
    found: dict[tuple[str, str], set[Scope]] = {}
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        path = context.path or getattr(route, "path", None) or repr(route)
        dependant = getattr(context, "dependant", None)
        demanded = (
            {scope for call in calls(dependant) if isinstance(call, Requires) for scope in call.scopes}
            if dependant
            else set()
        )
        for method in context.methods or getattr(route, "methods", None) or {"ANY"}:
            found[method, path] = demanded
    return found


def test_every_route_declares_the_scope_it_needs() -> None:
    """A route without one answers everybody, or every key, whatever it may."""
    found = scopes_by_route(create_app())
    assert ("POST", "/v1/batch/async") in found, "the walk sees no routes"
    assert {key for key, scopes in found.items() if not scopes and key[1] not in PUBLIC} == set()
    assert {path for _, path in found if path in PUBLIC} == PUBLIC, "a public path that is gone"


def test_what_changes_something_is_not_for_readers() -> None:
    """A key that may only look must not cancel."""
    for (method, path), scopes in scopes_by_route(create_app()).items():
        if path not in PUBLIC and method not in {"GET", "HEAD"}:
            assert scopes & {Scope.SUBMIT, Scope.ADMIN, Scope.DEPLOYMENT}, (method, path)
            assert Scope.READ not in scopes, (method, path)


def test_what_shows_all_tenants_is_not_for_one() -> None:
    """A tenant's own administrator must not read what others do; where both may come, the store differs."""
    chooses = {services_of_batch, services_of_experiment, services_of_list}
    for (method, path), scopes in scopes_by_route(create_app()).items():
        if path in {
            "/metrics",
            "/v1/autoscale",
            "/v1/metrics",
            "/v1/overview",
            "/v1/cache/stats",
            "/v1/usage/tenants",
        }:
            assert scopes == {Scope.DEPLOYMENT}, (method, path)
    for context in iter_route_contexts(create_app().routes):
        dependant = getattr(context, "dependant", None)
        called = list(calls(dependant)) if dependant else []
        demanded = {scope for call in called if isinstance(call, Requires) for scope in call.scopes}
        if Scope.DEPLOYMENT in demanded and demanded & {Scope.READ, Scope.SUBMIT}:
            assert chooses & set(called), f"{context.path} shows operators only their own"


def test_a_forgotten_route_is_found() -> None:
    """A walk that sees nothing finds nothing."""
    app = create_app()
    app.get("/v1/forgotten")(lambda: None)
    assert scopes_by_route(app)["GET", "/v1/forgotten"] == set()
