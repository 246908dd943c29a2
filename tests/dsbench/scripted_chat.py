"""A server that plays a model: OpenAI's chat route over real HTTP, its replies a function of the conversation."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Message = dict[str, Any]
Player = Callable[[dict[str, Any]], Message]
"""From a request's body to the assistant's message of its answer."""


@contextlib.contextmanager
def serving(player: Player) -> Iterator[str]:
    """URL of a server that answers with `player`, as long as the context lasts."""

    async def chat(request: Request) -> Response:
        message = player(await request.json())
        reason = "tool_calls" if message.get("tool_calls") else "stop"
        return JSONResponse(
            {
                "choices": [{"index": 0, "message": message, "finish_reason": reason}],
                "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8},
            }
        )

    app = Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_config=None, lifespan="off"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.01)
        (listener,) = server.servers[0].sockets
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
