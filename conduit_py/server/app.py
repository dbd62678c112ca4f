"""The API as an ASGI application: its routes, what stands before them, and its OpenAPI document."""

from fastapi import FastAPI
from fastapi.routing import APIRoute

from conduit_py import __version__
from conduit_py.server import dead_letters, live, monitoring, pipelines, plugins, positions, taps, web
from conduit_py.server.access import AccessCheck, Policy
from conduit_py.server.errors import UnexpectedErrors, handle_errors
from conduit_py.server.limits import BodyLimit
from conduit_py.server.service import Service


def create_app(service: Service, policy: Policy) -> FastAPI:
    """The whole API. A request meets the access check first, then the body limit, then the border for errors."""
    app = FastAPI(
        title="conduit-py",
        version=__version__,
        description="See and operate the pipelines of a server. Errors have a stable code.",
        openapi_url="/api/v1/openapi.json",
        # The pages that come along load their scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    app.state.live = live.LiveEvents()
    app.state.taps = taps.TapCount()
    modules = (pipelines, positions, dead_letters, plugins, taps, live, monitoring, web)
    routers = [*(module.router for module in modules), pipelines.reload_router]
    for router in routers:
        app.include_router(router)
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    handle_errors(app, service.redaction, routes)
    for layer in (UnexpectedErrors, BodyLimit):
        app.add_middleware(layer)
    app.add_middleware(AccessCheck, policy=policy)
    return app
