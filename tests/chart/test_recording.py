"""What the rules record, reckoned by hand: two gateways over three pools, in promtool of each version."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.chart.dashboards import RECORDING
from tests.chart.test_alerts import VERSIONS, run_promtool

pytestmark = pytest.mark.chart
P, Q = 'namespace="a", model="m", pool="p", target="t"', 'namespace="a", model="m", pool="q", target="u"'
EXPORTER = 'namespace="ops", pod="dcgm"'
FIRST, SECOND = 'instance="1"', 'instance="2"'
SERIES = {
    f"serving_pool_info{{{P}, {FIRST}}}": "1x20",
    f"serving_pool_info{{{Q}, {FIRST}}}": "1x20",
    'serving_pool_info{namespace="a", model="n", pool="r", target="t"}': "1x20",
    'serving_pool_info{namespace="a", model="n", pool="r", target="u"}': "1x20",
    # Both gateways see the whole pool of 24 dollars an hour, one after the other, and each counts the requests that it carried.
    f"serving_accelerators{{{P}, {FIRST}}}": "8x12 stale",
    f"serving_accelerators{{{P}, {SECOND}}}": "_x12 8x8",
    f"serving_accelerator_price_dollars_per_hour{{{P}, {FIRST}}}": "3x12 stale",
    f"serving_accelerator_price_dollars_per_hour{{{P}, {SECOND}}}": "_x12 3x8",
    f'serving_used_dollars_total{{{P}, {FIRST}, kind="output"}}': "0+0.1x20",
    f'serving_used_dollars_total{{{P}, {SECOND}, kind="output"}}': "0+0.1x20",
    f'serving_used_dollars_total{{{P}, {FIRST}, kind="prompt"}}': "0+0.05x20",
    f'serving_used_dollars_total{{{P}, {SECOND}, kind="cached"}}': "0+0.05x20",
    f"serving_failed_dollars_total{{{P}, {FIRST}}}": "0+0.05x20",
    f'serving_tokens_total{{{P}, {FIRST}, kind="output"}}': "0+60000x20",
    f'serving_tokens_total{{{P}, {FIRST}, kind="prompt"}}': "0+120000x20",
    f'serving_tokens_total{{{P}, {FIRST}, kind="cached"}}': "0+60000x20",
    # The other target has half the price and no prompts.
    f"serving_accelerator_price_dollars_per_hour{{{Q}}}": "1.5x20",
    f'serving_tokens_total{{{Q}, {FIRST}, kind="output"}}': "0+60000x20",
    f"serving_accelerators{{{Q}}}": "8x20",
    f'serving_power_watts{{{P}, source="estimated"}}': "8000x20",
    f'serving_power_watts{{{Q}, source="estimated"}}': "4000x20",
    'up{serving="engine", namespace="a", pod="p-0", pool="p", target="t"}': "1x20",
    'up{serving="engine", namespace="a", pod="q-0", pool="q", target="u"}': "1x20",
    **{
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="{gpu}", {EXPORTER}, exported_namespace="a", exported_pod="p-0"}}': "500x20"
        for gpu in range(8)
    },
    # Of the second pod only half of the accelerators are measured.
    **{f'amd_gpu_package_power{{gpu_id="{gpu}", namespace="a", pod="q-0"}}': "700x20" for gpu in range(4)},
}
WANTED = {
    f"serving:bill_dollars_per_hour:rate5m{{{P}}}": 24,
    f'serving:used_dollars_per_hour:rate5m{{{P}, kind="output"}}': 12,
    f"serving:failed_dollars_per_hour:rate5m{{{P}}}": 3,
    f"serving:idle_dollars_per_hour:rate5m{{{P}}}": 3,
    f"serving:utilisation:rate5m{{{P}}}": 0.75,
    f"serving:dollars_per_million_prompt_tokens:rate5m{{{P}}}": 0.833,
    f"serving:dollars_per_million_cached_tokens:rate5m{{{P}}}": 0.833,
    f"serving:dollars_per_million_output_tokens:rate5m{{{P}}}": 3.333,
    f"serving:dollars_per_million_total_tokens:rate5m{{{P}}}": 2.222,
    f"serving:bill_dollars_per_million_output_tokens:rate5m{{{P}}}": 6.667,
    f"serving:idle_dollars_per_hour:rate5m{{{Q}}}": 12,
    'serving:dollars_per_million_tokens:target_rate5m{target="t", kind="output"}': 3.333,
    'serving:dollars_per_million_tokens:times_cheapest{target="t", kind="total"}': 1,
    'serving:dollars_per_million_tokens:times_cheapest{target="u", kind="total"}': 1.5,
    'serving:power_watts:now{target="t", source="measured"}': 4000,
    'serving:power_watts:now{target="u", source="estimated"}': 4000,
    'count(serving:power_watts:now{target="u"})': 1,
    "serving:output_tokens_per_joule:rate5m{target='t'}": 0.25,
    'serving:pool:info{pool="p", target="t"}': 1,
    'count(serving:pool:info{pool="r", target="mixed"}) + count(serving:pool:info{pool="r"})': 2,
}


@VERSIONS
def test_money_and_watts_are_as_reckoned_by_hand(version: str, tmp_path: Path) -> None:
    path = tmp_path / "tests.yaml"
    asked = [
        {"expr": f"sum(round({expression}, 0.001))", "eval_time": "15m", "exp_samples": [{"labels": "{}", "value": value}]}
        for expression, value in WANTED.items()
    ]
    series = [{"series": name, "values": values} for name, values in SERIES.items()]
    test = {"interval": "1m", "input_series": series, "promql_expr_test": asked}
    path.write_text(yaml.safe_dump({"rule_files": [str(RECORDING)], "evaluation_interval": "1m", "tests": [test]}))
    done = run_promtool(version, "test", "rules", str(path))
    assert done.returncode == 0, done.stdout + done.stderr
