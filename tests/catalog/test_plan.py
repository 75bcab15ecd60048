"""Plans against arithmetic done by hand or elsewhere: memory, bounds, ratios, remedies, and what the commands print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serving import cli
from serving.catalog.compare import comparisons_of
from serving.catalog.config_json import model_from_config
from serving.catalog.evidence import PRODUCTION, Workload
from serving.catalog.load import load_catalog
from serving.catalog.plan import Plan, Wishes, plan_model, plan_profile
from serving.catalog.plan_text import plan_lines
from serving.catalog.roofline import Roofline
from serving.catalog.side_by_side import side_by_side
from serving.catalog.speed import priors_of, roofline_of
from serving.core.errors import ConfigurationError
from tests.doubles.catalogs import SHIPPED, copy_of_catalog, spoil

CATALOG = load_catalog(SHIPPED)
GLM_MI355X = CATALOG.profiles["glm-5.2-mxfp4-mi355x"]
GLM_B200 = CATALOG.profiles["glm-5.2-nvfp4-b200"]
R1_MI300X = CATALOG.profiles["deepseek-r1-fp8-mi300x"]


def planned(name: str, **wishes: Any) -> Plan:
    return plan_profile(CATALOG, CATALOG.profiles[name], Wishes(**wishes))


@pytest.mark.parametrize(
    ("model", "parameters", "active", "kv_bf16", "kv_fp8"),
    [
        ("glm-5.2", 743.4e9, 40.3e9, 92_628, 47_700),
        ("deepseek-r1-0528", 671e9, 37e9, 70_272, 35_136),
        ("llama-2-70b-chat", 69e9, 69e9, 327_680, 163_840),
        ("gpt-oss-120b", 117e9, 5.1e9, 73_728, 36_864),
        ("qwen3-0.6b", 0.6e9, 0.6e9, 114_688, 57_344),
    ],
)
def test_what_follows_from_a_shape(model: str, parameters: float, active: float, kv_bf16: int, kv_fp8: int) -> None:
    shape = CATALOG.models[model].shape
    assert shape.parameters == pytest.approx(parameters, rel=0.01)
    assert shape.active_parameters == pytest.approx(active, rel=0.02)
    assert (shape.kv_bytes_per_token("bf16"), shape.kv_bytes_per_token("fp8")) == (kv_bf16, kv_fp8)


def test_draft_layers_and_sliding_windows_in_the_kv_cache() -> None:
    assert CATALOG.models["glm-5.2"].shape.kv_bytes_per_token("fp8", draft=True) == 48_408
    shape = CATALOG.models["gpt-oss-120b"].shape
    assert shape.request_kv_bytes(100, "bf16") == 100 * 73_728
    assert shape.request_kv_bytes(10_000, "bf16") == 18 * 2048 * 10_000 + 18 * 2048 * 128


ROOFLINES = [
    # batch, drafted, accepted, step in ms, decode bound, bound with prompts: computed by an independent script
    (GLM_MI355X, 1, 0, 1, 0.76, 1319, 1273),
    (GLM_MI355X, 32, 0, 1, 4.98, 6419, 5450),
    (GLM_MI355X, 64, 0, 1, 6.97, 9182, 7320),
    (GLM_MI355X, 128, 0, 1, 8.85, 14470, 10329),
    (GLM_MI355X, 1, 3, 2.99, 1.29, 2322, 2182),
    (GLM_MI355X, 32, 3, 2.99, 7.06, 13553, 9853),
    (GLM_MI355X, 64, 3, 2.99, 7.76, 24670, 14653),
    (GLM_B200, 1, 0, 1, 0.77, 1300, 1250),
    (GLM_B200, 32, 0, 1, 5.21, 6141, 5159),
    (GLM_B200, 64, 0, 1, 7.28, 8794, 6911),
    (GLM_B200, 128, 0, 1, 9.19, 13923, 9727),
    (GLM_B200, 1, 3, 2.99, 1.33, 2248, 2102),
    (GLM_B200, 32, 3, 2.99, 7.41, 12917, 9225),
    (GLM_B200, 64, 3, 2.99, 8.11, 23594, 13630),
]


@pytest.mark.parametrize(("profile", "batch", "drafted", "accepted", "step_ms", "decode", "both"), ROOFLINES)
def test_the_roofline_of_glm(
    profile: Any, batch: int, drafted: int, accepted: float, step_ms: float, decode: float, both: float
) -> None:
    base = roofline_of(CATALOG, profile)
    bound = Roofline(base.load, base.target, base.parallel, drafted, accepted).bound(batch, PRODUCTION)
    assert bound.decode.step_seconds * 1e3 == pytest.approx(step_ms, rel=0.01)
    assert bound.decode.output_tokens_per_second == pytest.approx(decode, rel=0.01)
    assert bound.output_tokens_per_second == pytest.approx(both, rel=0.01)


@pytest.mark.parametrize(("profile", "tokens_per_second"), [(GLM_MI355X, 288_700), (GLM_B200, 258_200)])
def test_the_prefill_bound_of_glm(profile: Any, tokens_per_second: float) -> None:
    prefill = roofline_of(CATALOG, profile).prefill(PRODUCTION.prefill_context_tokens)
    total = prefill.routed_flops + prefill.other_flops + prefill.attention_flops
    assert total == pytest.approx(103.7e9, rel=0.001)
    assert prefill.tokens_per_second == pytest.approx(tokens_per_second, rel=0.001)


@pytest.mark.parametrize(
    ("name", "tokens", "requests"),
    [
        # Estimates that were made apart from this code, with another guess of what lies beside weights and KV cache.
        ("glm-5.2-mxfp4-mi355x", 4.08e6, 194),
        ("glm-5.2-mxfp4-mi355x-tp4", 2.98e6, 141),
        ("glm-5.2-nvfp4-b200", 2.02e6, 96),
        ("glm-5.2-fp8-mi300x", 1.46e6, 69),
        ("glm-5.2-fp8-mi325x", 2.65e6, 126),
        ("deepseek-r1-fp8-mi300x", 1.23e6, 58),
    ],
)
def test_the_kv_cache_of_the_large_ones(name: str, tokens: float, requests: int) -> None:
    used = planned(name).used
    assert used.device.kv_tokens == pytest.approx(tokens, rel=0.08)
    assert used.requests == pytest.approx(requests, rel=0.08)


def test_what_every_rank_holds_is_not_divided() -> None:
    """Of GLM-5.2: per layer 6144 x (2048 + 512 + 64), 21 indexers, 75 routers; at 2 bytes of the 428 GB."""
    copied = 2 * (78 * 6144 * 2624 + 21 * (2048 * 32 * 128 + 6144 * (128 + 32)) + 75 * 6144 * 256)
    assert planned("glm-5.2-mxfp4-mi355x").used.device.weights_bytes == pytest.approx((428e9 - copied) / 8 + copied, rel=1e-6)
    assert planned("glm-5.2-mxfp4-mi355x-tp4").used.device.weights_bytes == pytest.approx((428e9 - copied) / 4 + copied, rel=1e-6)


def test_memory_adds_up() -> None:
    for profile in CATALOG.profiles.values():
        device = plan_profile(CATALOG, profile).used.device
        if device.usable_bytes is not None:
            assert device.weights_bytes + device.overhead_bytes + device.kv_bytes == device.usable_bytes
            assert device.kv_tokens * device.kv_bytes_per_token <= device.kv_bytes


def test_the_published_ratios_and_what_they_mean() -> None:
    (versus,) = comparisons_of(CATALOG, GLM_MI355X)
    assert versus.throughput_ratio == pytest.approx(2626 / 3192)
    assert versus.claim is not None and versus.claim.price_ratio == 2.75
    assert versus.per_dollar_as_claimed == pytest.approx(2.26, abs=0.005)
    assert versus.per_dollar_at_catalog_prices == pytest.approx(1.05, abs=0.005)
    text = "\n".join(plan_lines(plan_profile(CATALOG, GLM_MI355X), [versus]))
    for said in (
        "0.82 of it for each accelerator, not reproduced",
        "0.823 × 2.75 = 2.26 times per dollar, only at the claim's price ratio",
        "The throughput is compared with a B200, the price ratio of 2.75 is one to a B300",
        "0.823 × 1.276 = 1.05 times at the catalog's prices",
        "2.454 dollars for a million output tokens",
        "published by Wafer",
    ):
        assert said in text


def test_a_price_of_ones_own_changes_the_ratio() -> None:
    (versus,) = comparisons_of(CATALOG, GLM_MI355X, Wishes(dollars_per_accelerator_hour=1.50))
    assert versus.per_dollar_at_catalog_prices == pytest.approx(2626 / 3192 * 3.70 / 1.50)


def test_one_node_against_two() -> None:
    (versus,) = comparisons_of(CATALOG, R1_MI300X)
    assert versus.nodes == (1, 2)
    assert "689.0 GB of weights, a node of rocm-mi300x may use 8 × 192.0 GB × 0.9 = 1382.4 GB: one node" in versus.memory[0]
    assert "a node of cuda-h100 may use 8 × 80.0 GB × 0.9 = 576.0 GB: 2 nodes are needed" in versus.memory[1]
    assert versus.dollars_per_hour == (pytest.approx(10.40), pytest.approx(32.00))
    assert versus.claim is None and versus.per_dollar_as_claimed is None


def test_what_does_not_fit_says_by_how_much_and_what_would(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    path = root / "profiles" / "deepseek-r1-fp8-h100.yaml"
    spoil(path, "pipeline-parallel-size: 2", "pipeline-parallel-size: 1")
    spoil(path, "nodes_per_engine: 2\n", "")
    catalog = load_catalog(root)
    plan = plan_profile(catalog, catalog.profiles["deepseek-r1-fp8-h100"])
    assert not plan.runs
    device = plan.used.device
    assert device.missing_bytes == round(device.request_kv_bytes - device.kv_bytes) > 20e9
    assert plan.remedies == ("TP8 × PP2 on 16 accelerators of 2 nodes", "the checkpoint nvfp4 (402 GB) with TP8 on a node",
                             "the checkpoint mxfp4 (382 GB) with TP8 on a node")  # fmt: skip
    text = "\n".join(plan_lines(plan, []))
    assert "are missing for one request of 32,768 tokens" in text
    assert "would fit     TP8 × PP2 on 16 accelerators of 2 nodes" in text


def test_a_context_that_would_fit(tmp_path: Path) -> None:
    root = copy_of_catalog(tmp_path)
    spoil(root / "profiles" / "glm-5.2-fp8-h200.yaml", "max-model-len: 32768", "max-model-len: 1_000_000")
    catalog = load_catalog(root)
    plan = plan_profile(catalog, catalog.profiles["glm-5.2-fp8-h200"])
    assert plan.remedies[-1] == f"max-model-len of {plan.used.device.kv_tokens:,} or less with TP8 on a node"


def test_the_best_way_is_the_smallest_that_holds_enough() -> None:
    plan = planned("glm-5.2-mxfp4-mi355x")
    assert plan.best is not None
    assert str(plan.best.parallel) == "TP4"
    assert plan.best.nodes_per_engine == 1
    two_nodes = planned("deepseek-r1-fp8-h100").best
    assert two_nodes is not None and two_nodes.nodes_per_engine == 2


def test_throughput_is_labelled_by_how_it_is_known() -> None:
    def kind(plan: Plan) -> str:
        assert plan.throughput is not None
        return plan.throughput.kind

    assert kind(planned("glm-5.2-nvfp4-b200")) == "published"
    assert kind(planned("glm-5.2-mxfp4-mi350x")) == "assumed"
    assert kind(planned("smollm2-135m-cpu")) == "measured"
    assert kind(planned("glm-5.2-nvfp4-b200", workload=Workload(prompt_tokens=100, output_tokens=100))) == "assumed"
    given = planned("glm-5.2-nvfp4-b200", output_tokens_per_second=1000.0, dollars_per_accelerator_hour=1.0)
    assert kind(given) == "given"
    assert given.dollars_per_million_output_tokens == pytest.approx(8 / 3.6)
    assert given.joules_per_output_token == pytest.approx(8 * 1710 / 1000)


def test_dollars_are_price_over_tokens() -> None:
    assert planned("glm-5.2-mxfp4-mi355x").dollars_per_million_output_tokens == pytest.approx(2.454, abs=0.001)
    assert planned("glm-5.2-nvfp4-b200").dollars_per_million_output_tokens == pytest.approx(2.576, abs=0.001)
    assert planned("glm-5.2-mxfp4-mi355x-tp4").dollars_per_million_output_tokens == pytest.approx(2.454, abs=0.001)


@pytest.mark.parametrize("profile", CATALOG.profiles.values(), ids=lambda profile: profile.name)
def test_priors_stay_below_the_roofline(profile: Any) -> None:
    priors, roofline = priors_of(CATALOG, profile), roofline_of(CATALOG, profile)
    context = min(PRODUCTION.decode_context_tokens, roofline.load.max_model_len)
    assert 0 < priors.prefill_tokens_per_second <= roofline.prefill(context / 2).tokens_per_second
    assert priors.step_seconds > 0 and priors.step_seconds_per_request >= 0
    assert priors.accelerators == roofline.parallel.accelerators
    assert priors.source and priors.arithmetic
    assert priors.kv_capacity_tokens >= roofline.load.max_model_len
    assert (priors.status == "measured") == (profile.simulation is not None)
    assert (priors.status == "published") == bool(profile.assumed and profile.assumed.anchor)


def test_all_targets_side_by_side() -> None:
    rows = side_by_side(CATALOG, CATALOG.models["glm-5.2"], CATALOG.targets.values())
    assert {row.target for row in rows} == set(CATALOG.targets)
    refused = {row.target for row in rows if not row.plan.runs}
    assert refused == {"cpu-epyc", "cpu-epyc-9004", "cpu-epyc-9005"}
    assert all("sparse attention" in row.verdict for row in rows if not row.plan.runs)
    priced = [row.dollars for row in rows if row.dollars is not None]
    assert priced == sorted(priced)
    (rubin,) = [row for row in rows if row.target == "cuda-rubin"]
    assert rubin.plan.runs and rubin.bound_per_node is None and "peak_flops" in str(rubin.plan.bound_problem)


CONFIG = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 4096, "num_hidden_layers": 32, "vocab_size": 128_256,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14_336, "max_position_embeddings": 131_072,
    "dtype": "bfloat16",
}  # fmt: skip


def config(folder: Path, **changes: Any) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({k: v for k, v in (CONFIG | changes).items() if v is not None}))
    return path


def test_an_unknown_model_is_read_from_its_config(tmp_path: Path) -> None:
    model = model_from_config(config(tmp_path / "Llama-3.1-8B"))
    assert model.name == "llama-3.1-8b"
    assert model.parameters == pytest.approx(8.03e9, rel=0.01)
    assert model.checkpoints["bf16"].weights_bytes == pytest.approx(16.06e9, rel=0.01)
    plan = plan_model(CATALOG, model, CATALOG.targets["rocm-mi300x"])
    assert plan.runs and str(plan.used.parallel) == "TP1"
    assert plan.used.device.kv_tokens == pytest.approx((192e9 * 0.92 - 16.06e9 - 4e9) / 65_536, rel=0.05)


def test_the_catalogs_models_are_read_from_configs_alike(tmp_path: Path) -> None:
    glm = {
        "hidden_size": 6144, "num_hidden_layers": 78, "vocab_size": 154_880, "num_attention_heads": 64, "q_lora_rank": 2048,
        "kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 192, "v_head_dim": 256, "intermediate_size": 12_288,
        "n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "n_shared_experts": 1,
        "first_k_dense_replace": 3, "index_topk": 2048, "index_n_heads": 32, "index_head_dim": 128,
        "indexer_types": ["full"] * 21 + ["shared"] * 57, "num_nextn_predict_layers": 1, "max_position_embeddings": 1_048_576,
    }  # fmt: skip
    assert model_from_config(config(tmp_path / "glm", **glm)).shape == CATALOG.models["glm-5.2"].shape
    oss = {
        "hidden_size": 2880, "num_hidden_layers": 36, "vocab_size": 201_088, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 64, "intermediate_size": 2880, "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 18, "quantization_config": {"quant_method": "mxfp4"},
    }  # fmt: skip
    found = model_from_config(config(tmp_path / "oss", **oss))
    known = CATALOG.models["gpt-oss-120b"]
    assert found.shape.model_dump(exclude={"dense_intermediate_size"}) == known.shape.model_dump(
        exclude={"dense_intermediate_size"}
    )
    assert found.checkpoints["mxfp4-w4a16"].weights_bytes == pytest.approx(known.checkpoints["mxfp4"].weights_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("described", "expected"),
    [
        ({"quant_method": "fp8"}, "fp8"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "nvfp4"),
        ({"quant_method": "compressed-tensors", "format": "int-quantized"}, "int8"),
        ({"quant_method": "awq", "bits": 4}, "int4"),
        ({"quant_method": "quark", "global_quant_config": {"weight": {"dtype": "fp4"}}}, "mxfp4"),
    ],
)
def test_the_format_of_a_config(tmp_path: Path, described: dict[str, Any], expected: str) -> None:
    (checkpoint,) = model_from_config(config(tmp_path / "m", quantization_config=described)).checkpoints.values()
    assert checkpoint.format == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": None}, "config.json: hidden_size: must be a whole number of 1 or more, not None"),
        ({"num_hidden_layers": "32"}, "num_hidden_layers: must be a whole number of 1 or more, not '32'"),
        ({"quantization_config": {"quant_method": "magic"}}, "quantization_config.quant_method: 'magic' is not known here"),
        ({"kv_lora_rank": 512}, "qk_rope_head_dim: must be a whole number"),
        ({"intermediate_size": "x"}, "intermediate_size: must be a whole number of 1 or more, not 'x'"),
    ],
)
def test_a_config_that_says_too_little(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message.replace(".", r"\.")):
        model_from_config(config(tmp_path / "m", **changes))


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_config_that_is_none(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"config\.json: (cannot be read|must be)"):
        model_from_config(path)


def ask(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli.app, ["plan", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.stdout


def test_the_command_prints_the_same_each_time_without_network_or_engine() -> None:
    code = (
        "import sys\n"
        "def refuse(event, arguments):\n"
        "    assert event not in ('socket.connect', 'socket.getaddrinfo', 'subprocess.Popen'), event\n"
        "sys.addaudithook(refuse)\n"
        "from typer.testing import CliRunner\nfrom serving.cli import app\n"
        "done = CliRunner().invoke(app, ['plan', 'glm-5.2-mxfp4-mi355x'], catch_exceptions=False)\n"
        "loaded = {'vllm', 'torch', 'fastapi', 'uvicorn', 'transformers', 'httptools'} & set(sys.modules)\n"
        "print(done.exit_code, sorted(loaded), done.output)\n"
    )
    one, two = (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    )
    assert one.startswith("0 [] glm-5.2-mxfp4-mi355x: ")
    assert one == two


def test_the_command_in_json() -> None:
    status, text = ask("glm-5.2-mxfp4-mi355x", "--json")
    told = json.loads(text)
    assert status == 0 and told["runs"] is True
    assert told["engine"]["roofline"]["prefill"]["tokens_per_second"] == pytest.approx(288_717, rel=1e-4)
    assert told["comparisons"][0]["per_dollar_as_claimed"] == pytest.approx(2.26, abs=0.005)
    assert told["dollars_per_million_output_tokens"] == pytest.approx(2.454, abs=0.001)
    rows = json.loads(ask("gpt-oss-120b", "--targets", "rocm-mi300x,cuda-b200", "--json")[1])
    assert {row["plan"]["target"] for row in rows} == {"rocm-mi300x", "cuda-b200"}


def test_the_commands_options_reach_the_plan() -> None:
    text = ask("glm-5.2-nvfp4-b200", "--price", "5", "--throughput", "1000", "--concurrency", "8", "--cached", "0")[1]
    assert "8 × 5.00 = 40.00 dollars an hour (given)" in text
    assert "11.111 dollars for a million output tokens; each carries 20 prompt tokens, 0% of them cached" in text
    assert "8 requests at once, 4 tokens each of which 2.99 count" in text


def test_the_command_on_a_config(tmp_path: Path) -> None:
    status, text = ask(str(config(tmp_path / "mine")), "--targets", "rocm-mi300x")
    assert status == 0
    assert text.startswith("mine: 20,000 prompt and 1,000 output tokens")
    assert "rocm-mi300x (planned)" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["glm-5.3"], "'glm-5.3' is neither a profile nor a model; did you mean glm-5.2?"),
        (["glm-5.2", "--targets", "mi300x"], "--targets: 'mi300x' is not in the catalog; did you mean rocm-mi300x?"),
        (["glm-5.2", "--targets", ","], "--targets: names none"),
        (["glm-5.2", "--throughput", "5"], "--throughput: is that of one profile"),
        (["glm-5.2-nvfp4-b200", "--html", "x.html"], "--html: is a comparison and needs --targets"),
    ],
)
def test_what_the_command_cannot_do(words: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        ask(*words)
    assert message in str(caught.value)
