"""A plan as lines for a terminal, each figure with the arithmetic that gives it."""

from __future__ import annotations

from collections.abc import Iterator

from serving.catalog.compare import Versus
from serving.catalog.fit import gigabytes
from serving.catalog.memory import loaded_bytes
from serving.catalog.plan import Plan, Spread
from serving.catalog.roofline import Bound, Decode, Prefill

LABEL_WIDTH = 14


def plan_lines(plan: Plan, comparisons: list[Versus]) -> Iterator[str]:
    """The whole report."""
    yield from _head(plan)
    gate = plan.load.model.licence_gate
    yield f"licence: {plan.load.model.licence}{f'; {gate}' if gate else ''}"
    yield from (f"NOTE  {note}" for note in plan.notes)
    for problem in plan.problems:
        yield f"DOES NOT RUN  {problem}"
    if plan.problems:
        return
    yield from _section("Memory of one accelerator", _memory(plan))
    yield from _section("Roofline: what the hardware allows. Nothing here was measured", _roofline(plan))
    yield from _section("Ways to divide it, by their bound for one accelerator", _ways(plan))
    yield from _section("Cost", _cost(plan))
    for versus in comparisons:
        yield from _section(f"Against {versus.baseline}", _versus(versus))


def limit_of(bound: Bound) -> str:
    """What takes most of the time of an output token at the bound."""
    decode = bound.decode
    tokens = decode.batch * decode.acceptance_tokens
    if decode.compute_seconds > decode.weights_seconds + decode.kv_seconds:
        parts = {"operations of decoding": decode.compute_seconds / tokens}
    else:
        parts = {
            "memory bandwidth, reading weights": decode.weights_seconds / tokens,
            "memory bandwidth, reading the KV cache": decode.kv_seconds / tokens,
        }
    parts["operations of prompts"] = bound.new_tokens_per_output_token * bound.prefill.seconds_per_token
    name, seconds = max(parts.items(), key=lambda part: part[1])
    return f"{name} ({seconds / sum(parts.values()):.0%} of an output token's time)"


def _head(plan: Plan) -> Iterator[str]:
    profile, used, load = plan.profile, plan.used, plan.load
    if profile:
        yield f"{profile.name}: {profile.description}"
        yield f"vLLM {profile.engine_version}, {profile.status} on hardware by us"
    else:
        yield f"{load.model.name} on {plan.target.name}; no profile, so limits and arguments are the planner's own"
    where = f"{used.nodes_per_engine} nodes" if used.nodes_per_engine > 1 else f"a node, which runs {used.engines_per_node} of it"
    count = used.parallel.accelerators
    yield f"{used.parallel} on {count} accelerator{'s' if count > 1 else ''} of {where}; weights in {load.checkpoint.format}"


def _section(title: str, lines: Iterator[str]) -> Iterator[str]:
    yield ""
    yield title
    yield from (f"  {line}" for line in lines)


def _line(label: str, text: str) -> str:
    return f"{label:<{LABEL_WIDTH}}{text}"


def _memory(plan: Plan) -> Iterator[str]:
    device, load, used, shape = plan.used.device, plan.load, plan.used, plan.load.shape
    if device.capacity_bytes is None or device.usable_bytes is None:
        yield _line("usable", "the machine's own memory")
    else:
        yield _line("usable", f"{gigabytes(device.usable_bytes)} = {gigabytes(device.capacity_bytes)} × {load.share:g}")
    copied = f", {shape.replicated_parameters / 1e9:.2f} B parameters on every rank" if used.parallel.tensor > 1 else ""
    ranks = used.parallel.tensor * used.parallel.pipeline
    whole = gigabytes(loaded_bytes(load.checkpoint))
    yield _line("weights", f"{gigabytes(device.weights_bytes)} of {whole} ÷ {ranks}{copied}")
    measured = "measured" if load.overhead_bytes else "estimated: activations, graphs, context"
    yield _line("beside", f"{gigabytes(device.overhead_bytes)} {measured}")
    given = "given by kv-cache-memory-bytes" if load.kv_bytes is not None else "what is left"
    yield _line("KV cache", f"{gigabytes(device.kv_bytes)} {given}")
    if device.missing_bytes:
        yield _line(
            "DOES NOT FIT", f"{gigabytes(device.missing_bytes)} are missing for one request of {load.max_model_len:,} tokens"
        )
        for remedy in plan.remedies:
            yield _line("would fit", remedy)
        return
    copies = "copied on every tensor-parallel rank" if shape.kv_is_replicated else "divided by KV heads"
    per_token = f"{device.kv_bytes_per_token:,.0f} bytes a token in {load.kv_format}, {copies}"
    yield _line("KV tokens", f"{device.kv_tokens:,} ({per_token})")
    workload = plan.workload
    told = f"{workload.prompt_tokens:,}/{workload.output_tokens:,}/{workload.cached_share:.0%}"
    yield _line("requests", f"{used.requests} of the profile {told} at once; the engine takes {load.sequences}")


def _roofline(plan: Plan) -> Iterator[str]:
    bound = plan.used.bound
    if bound is None:
        yield plan.bound_problem or "not known"
        return
    yield from _prefill(bound.prefill, plan.workload.new_tokens)
    yield from _decode(bound.decode)
    used = plan.used
    total, of_node = bound.output_tokens_per_second, bound.output_tokens_per_second * used.engines_per_node
    more = f"; {of_node:,.0f} a node" if used.engines_per_node > 1 else ""
    prompts = f"{bound.new_tokens_per_output_token:.3g} new prompt tokens for each output token"
    yield _line(
        "both", f"1 ÷ (1 ÷ {bound.decode.output_tokens_per_second:,.0f} + {prompts} ÷ {bound.prefill.tokens_per_second:,.0f})"
    )
    yield _line("", f"= {total:,.0f} output tokens/s{more}")
    yield _line("limited by", limit_of(bound))


def _prefill(prefill: Prefill, new_tokens: float) -> Iterator[str]:
    rest_flops = prefill.other_flops + prefill.attention_flops
    parts = f"{rest_flops / 1e9:.1f} GFLOP ÷ {prefill.other_peak / 1e12:,.1f} TFLOP/s"
    if prefill.routed_flops:
        routed = f"{prefill.routed_flops / 1e9:.1f} GFLOP of experts ÷ {prefill.routed_peak / 1e12:,.1f} TFLOP/s"
        parts = f"{routed} + {parts} for the rest"
    yield _line(
        "prefill", f"{parts} = {prefill.seconds_per_token * 1e6:.2f} µs a token: {prefill.tokens_per_second:,.0f} tokens/s"
    )
    yield _line("", f"{new_tokens:,.0f} new tokens of a request take {new_tokens * prefill.seconds_per_token * 1e3:.1f} ms")


def _decode(decode: Decode) -> Iterator[str]:
    drafted = f", {decode.tokens_per_request} tokens each of which {decode.acceptance_tokens:g} count"
    yield _line("decode", f"{decode.batch} requests at once{drafted if decode.tokens_per_request > 1 else ''}")
    experts = f" ({decode.touched_experts:.0f} experts of each layer)" if decode.touched_experts else ""
    weights = f"weights {decode.weights_bytes / 1e9:.4g} GB{experts} ÷ {decode.bandwidth / 1e12:.3g} TB/s"
    kv = f"KV {decode.kv_bytes / 1e9:.2f} GB ÷ {decode.kv_bandwidth / 1e12:.3g} TB/s"
    yield _line("", f"{weights} = {decode.weights_seconds * 1e3:.2f} ms; {kv} = {decode.kv_seconds * 1e3:.2f} ms")
    if decode.compute_seconds > decode.weights_seconds + decode.kv_seconds:
        yield _line("", f"operations take longer than reading: {decode.compute_seconds * 1e3:.2f} ms")
    yield _line("", f"a step takes {decode.step_seconds * 1e3:.2f} ms: {decode.output_tokens_per_second:,.0f} output tokens/s")


def _ways(plan: Plan) -> Iterator[str]:
    best = plan.best
    if best is None:
        yield "none fits"
        return
    yield _line("best", _way(best))
    if best.parallel != plan.used.parallel:
        yield _line("this one", _way(plan.used))
    yield "Traffic between accelerators is not in it: where two are close, take the one with fewer."


def _way(way: Spread) -> str:
    where = f"{way.nodes_per_engine} nodes" if way.nodes_per_engine > 1 else f"{way.engines_per_node} a node"
    bound = f"{way.bound.output_tokens_per_second:,.0f} output tokens/s an engine" if way.bound else "bound not known"
    each = f", {way.output_tokens_per_accelerator_second:,.0f} an accelerator" if way.bound else ""
    return f"{way.parallel}, {where}: {way.requests} requests fit, {bound}{each} at {way.batch} requests"


def _cost(plan: Plan) -> Iterator[str]:
    if plan.throughput is None:
        yield "no throughput is known, given or assumed"
        return
    yield _line("throughput", f"{plan.throughput.output_tokens_per_second:,.0f} output tokens/s; {plan.throughput.label}")
    price = plan.dollars_per_accelerator_hour
    if price is None or plan.dollars_per_hour is None:
        yield _line("price", "not known; give --price")
    else:
        count = plan.used.parallel.accelerators
        yield _line("price", f"{count} × {price:.2f} = {plan.dollars_per_hour:.2f} dollars an hour ({plan.price_source})")
        workload = plan.workload
        prompts = workload.prompt_tokens / workload.output_tokens
        carried = f"each carries {prompts:.3g} prompt tokens, {workload.cached_share:.0%} of them cached"
        yield _line("tokens", f"{plan.dollars_per_million_output_tokens:.3f} dollars for a million output tokens; {carried}")
    if plan.watts and plan.joules_per_output_token:
        kind = (
            "with its share of node and cooling" if plan.target.node_power_watts_per_accelerator else "of the accelerators alone"
        )
        yield _line(
            "energy", f"{plan.joules_per_output_token:.2f} watts per output token/s ({plan.watts:,} W {kind}, at full power)"
        )


def _versus(versus: Versus) -> Iterator[str]:
    yield _line("nodes", f"{versus.nodes[0]} against {versus.nodes[1]}")
    if versus.nodes[0] != versus.nodes[1]:
        yield _line("", versus.memory[0])
        yield _line("", versus.memory[1])
    mine, theirs = versus.dollars_per_hour
    if mine and theirs:
        yield _line("price", f"{mine:.2f} against {theirs:.2f} dollars an hour for one engine")
    if versus.anchors and versus.throughput_ratio:
        yield _line("published", versus.anchors[0])
        yield _line("", versus.anchors[1])
        yield _line("throughput", f"{versus.throughput_ratio:.2f} of it for each accelerator, not reproduced")
    claim = versus.claim
    if claim and versus.per_dollar_as_claimed:
        yield _line("claim", f"“{claim.text}” ({claim.date}, {claim.source})")
        product = f"{versus.throughput_ratio:.3f} × {claim.price_ratio:g} = {versus.per_dollar_as_claimed:.2f}"
        yield _line("", f"{product} times per dollar, only at the claim's price ratio. {claim.meaning}")
    if versus.per_dollar_at_catalog_prices:
        prices = "your price against the catalog's" if versus.price_given else "the catalog's prices"
        product = f"{versus.throughput_ratio:.3f} × {versus.catalog_price_ratio:.3f} = {versus.per_dollar_at_catalog_prices:.2f}"
        yield _line("per dollar", f"{product} times at {prices}")
    if versus.note:
        yield _line("", versus.note)
