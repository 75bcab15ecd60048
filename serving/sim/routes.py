"""The routes of a simulated engine that do not generate: vLLM's own, and `/sim/faults`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from serving.core.errors import ConfigurationError
from serving.sim.answers import model_list
from serving.sim.errors import Body, EngineError, check_model, dump, invalid, read_body, shown
from serving.sim.exchange import Exchange
from serving.sim.faults import read_faults
from serving.sim.generate import tokenized
from serving.sim.http_facts import process_lines
from serving.sim.text import text_of
from serving.sim.told import engine_lines, simulation_lines

if TYPE_CHECKING:
    from serving.sim.engine import SimulatedEngine

METRICS = "text/plain; version=1.0.0; charset=utf-8"
FAULTS = "/sim/faults"

_TEXTS = ("prompt", "messages")

Route = Callable[["SimulatedEngine", Exchange], Awaitable[None]]


async def _health(engine: SimulatedEngine, exchange: Exchange) -> None:
    await exchange.whole(503 if engine.is_dead else 200, content_type=None)


async def _version(engine: SimulatedEngine, exchange: Exchange) -> None:
    await exchange.whole(200, dump({"version": engine.plan.version, "simulated": engine.plan.profile}))


async def _load(engine: SimulatedEngine, exchange: Exchange) -> None:
    await exchange.whole(200, dump({"server_load": engine.in_flight if engine.plan.tracks_load else 0}))


async def _models(engine: SimulatedEngine, exchange: Exchange) -> None:
    model = engine.plan.model
    models = [(model, f"/simulated/{model}", None), *((name, f"/simulated/{name}", model) for name in engine.adapters)]
    await exchange.whole(200, model_list(models, int(engine.created_seconds), engine.plan.limits.max_model_len))


async def _metrics(engine: SimulatedEngine, exchange: Exchange) -> None:
    await exchange.whole(200, ("\n".join(metric_lines(engine)) + "\n").encode(), METRICS)


def metric_lines(engine: SimulatedEngine) -> Iterator[str]:
    plan = engine.plan
    yield from process_lines(engine.created_seconds)
    yield from engine_lines(plan, engine.models, every_metric=engine.every_metric, created_seconds=engine.created_seconds)
    yield from engine.http.lines(engine.created_seconds)
    more = {"engine_index": str(engine.index), "speed": f"{engine.clock.speed:g}"}
    yield from simulation_lines(plan, more, engine.lag_seconds)


async def _read(exchange: Exchange) -> Body:
    return read_body(exchange.header("content-type"), await exchange.body())


async def _tokenize(engine: SimulatedEngine, exchange: Exchange) -> None:
    body = await _read(exchange)
    if "prompt" not in body and "messages" not in body:
        lacks = [{"type": "missing", "loc": f"body.{n}", "msg": "Field required", "input": shown(body)} for n in _TEXTS]
        message = "\n".join(["2 validation errors:", *(f"  {problem}" for problem in lacks)])
        raise EngineError(400, message, type_="Bad Request", param="body.prompt")
    if "messages" in body and not isinstance(body["messages"], list):
        raise invalid("list_type", "body.messages", "Input should be a valid list", shown(body["messages"]))
    if "messages" not in body and not isinstance(body["prompt"], str):
        raise invalid("string_type", "body.prompt", "Input should be a valid string", shown(body["prompt"]))
    check_model(body, engine.served)
    await exchange.whole(200, dump(dict(tokenized(body, engine.plan))))


async def _detokenize(engine: SimulatedEngine, exchange: Exchange) -> None:
    body = await _read(exchange)
    if "tokens" not in body:
        raise invalid("missing", "body.tokens", "Field required", shown(body))
    tokens = body["tokens"]
    if not isinstance(tokens, list) or not all(type(token) is int and token >= 0 for token in tokens):
        raise invalid("list_type", "body.tokens", "Input should be a valid list", shown(tokens))
    check_model(body, engine.served)
    await exchange.whole(200, dump({"prompt": text_of(tokens)}))


async def _load_adapter(engine: SimulatedEngine, exchange: Exchange) -> None:
    name = await _adapter_name(engine, exchange)
    if name in engine.adapters:
        raise EngineError(400, f"The lora adapter '{name}' has already been loaded.", type_="InvalidUserInput")
    engine.adapters.append(name)
    await exchange.whole(200, f"Success: LoRA adapter '{name}' added successfully.".encode(), "text/plain; charset=utf-8")


async def _unload_adapter(engine: SimulatedEngine, exchange: Exchange) -> None:
    name = await _adapter_name(engine, exchange)
    if name not in engine.adapters:
        raise EngineError(404, f"The lora adapter '{name}' cannot be found.", type_="NotFoundError")
    engine.adapters.remove(name)
    await exchange.whole(200, f"Success: LoRA adapter '{name}' removed successfully.".encode(), "text/plain; charset=utf-8")


async def _adapter_name(engine: SimulatedEngine, exchange: Exchange) -> str:
    if not engine.plan.adapters_may_change:
        await exchange.body()
        raise NoRoute
    body = await _read(exchange)
    if not isinstance(body.get("lora_name"), str):
        raise invalid("missing", "body.lora_name", "Field required", shown(body))
    return str(body["lora_name"])


class NoRoute(EngineError):
    """A route that an option of this engine would bring."""

    def __init__(self) -> None:
        super().__init__(404, "Not Found")
        self.content = {"detail": "Not Found"}


async def _get_faults(engine: SimulatedEngine, exchange: Exchange) -> None:
    await exchange.whole(200, engine.faults.model_dump_json(exclude_defaults=True).encode())


async def _post_faults(engine: SimulatedEngine, exchange: Exchange) -> None:
    try:
        faults = read_faults(await exchange.body())
    except ConfigurationError as error:
        raise EngineError(400, str(error)) from None
    # The answer first: the fault may be the end of this connection.
    await exchange.whole(200, faults.model_dump_json(exclude_defaults=True).encode())
    await engine.set_faults(faults)


ROUTES: dict[str, dict[str, Route]] = {
    "/health": {"GET": _health},
    "/ping": {"GET": _health, "POST": _health},
    "/version": {"GET": _version},
    "/load": {"GET": _load},
    "/v1/models": {"GET": _models},
    "/metrics": {"GET": _metrics},
    "/tokenize": {"POST": _tokenize},
    "/detokenize": {"POST": _detokenize},
    "/v1/load_lora_adapter": {"POST": _load_adapter},
    "/v1/unload_lora_adapter": {"POST": _unload_adapter},
    FAULTS: {"GET": _get_faults, "POST": _post_faults},
}
