"""Serves /docs without the internet: Swagger UI from the wheel of fastapi-offline, under our own page."""

from importlib.resources import files
from pathlib import Path
from typing import Literal

from fastapi import APIRouter
from fastapi.responses import FileResponse

router = APIRouter(include_in_schema=False)

STATIC = Path(__file__).parent / "static"
SWAGGER_UI = Path(str(files("fastapi_offline"))) / "static"
# The page may run only the scripts of this server, and call only this server. Swagger UI draws its icons as
# data, and styles some elements on the page itself.
HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline';"
    " img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
}


@router.get("/docs")
def page() -> FileResponse:
    """Return the page. The browser fetches the OpenAPI document, which anybody may read."""
    return FileResponse(STATIC / "docs.html", headers=HEADERS)


@router.get("/docs/{name}")
def page_file(name: Literal["docs.js", "swagger-ui-bundle.js", "swagger-ui.css"]) -> FileResponse:
    """Return a script or the style sheet of the page."""
    return FileResponse((STATIC if name == "docs.js" else SWAGGER_UI) / name, headers=HEADERS)
