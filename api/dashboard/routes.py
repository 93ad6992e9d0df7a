"""Serves / and /dashboard, the page and its files, to everybody; /v1/overview, its data, to operators.

The page's buttons call the routes that any operator's program calls.
"""

from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import FileResponse, RedirectResponse

from api.dashboard.schemas import Overview
from api.dashboard.service import read_overview
from api.dependencies import DEPLOYMENT, DeploymentDependency
from api.errors import documented

router = APIRouter(tags=["metrics"])

STATIC = Path(__file__).parent / "static"
# The page may run only its own script and call only its own server.
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@router.get("/", include_in_schema=False)
def front_door() -> RedirectResponse:
    """Redirect a browser that was given only the address to the dashboard."""
    return RedirectResponse("/dashboard")


@router.get("/dashboard", include_in_schema=False)
def page() -> FileResponse:
    """Return the dashboard. It holds no data: the browser fetches the data with its user's API key."""
    return FileResponse(STATIC / "dashboard.html", headers=HEADERS)


@router.get("/dashboard/{name}", include_in_schema=False)
def page_file(name: Literal["dashboard.js", "dashboard.css"]) -> FileResponse:
    """Return the page's script or style sheet."""
    return FileResponse(STATIC / name, headers=HEADERS)


@router.get(
    "/v1/overview",
    responses=documented(401, 403, 429, 503),
    summary="What goes on in the deployment",
    dependencies=[DEPLOYMENT],
)
def get_overview(deployment: DeploymentDependency) -> Overview:
    """Return live batches, the last failures, live workers and failing receivers, of all tenants."""
    return read_overview(deployment)
