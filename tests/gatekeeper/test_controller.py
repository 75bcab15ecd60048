"""The controller against an API server on a real socket: what pods are told, and what is written down."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from serving.engines.api_server import ApiServer
from serving.fleet.mirror import ApiFailed
from serving.gatekeeper import controller as module
from serving.gatekeeper.cluster import Cluster
from serving.gatekeeper.controller import Controller
from serving.gatekeeper.lease import Leadership
from serving.gatekeeper.records import Approval, config_map, record_name
from tests.doubles.kubernetes_api import CONFIG_MAPS, EVENTS, LEASES, PODS, KubernetesApi
from tests.doubles.settling import HANG_SECONDS, become
from tests.gatekeeper.doubles import (
    LEASE_SECONDS,
    ToldJudge,
    add_gated,
    condition,
    digest_of,
    events,
    settings_for,
    verdict_names,
)


@pytest.fixture
async def api() -> AsyncIterator[KubernetesApi]:
    async with KubernetesApi() as started:
        yield started


@pytest.fixture
def judge() -> ToldJudge:
    return ToldJudge()


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.05)


@contextlib.asynccontextmanager
async def controller(api: KubernetesApi, judge: ToldJudge, **fields: Any) -> AsyncIterator[Controller]:
    settings = settings_for(api, **fields)
    server = ApiServer(settings.kubernetes)
    made = Controller(Cluster(server, "serving", 1.0), judge, settings)
    task = asyncio.create_task(made.lead())
    try:
        yield made
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        server.close()


async def test_a_good_one_becomes_ready_and_its_verdict_is_kept(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a")
    assert not api.is_ready("a")
    async with controller(api, judge):
        await become(lambda: events(api).keys() >= {"QualityJudging", "QualityPassed"})
        assert api.is_ready("a")
    assert condition(api, "a") == ("True", "Passed")
    (name,) = verdict_names(api)
    kept = api.objects[CONFIG_MAPS][name]
    assert name == record_name("llm-gate", "verdict", digest_of(api, "a")) and kept["immutable"] is True
    assert json.loads(kept["data"]["verdict.json"])["outcome"] == "pass"


async def test_a_bad_one_stays_out_and_says_why(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", flags="bad")
    async with controller(api, judge):
        await become(lambda: condition(api, "a") == ("False", "Failed") and "QualityFailed" in events(api))
    assert not api.is_ready("a")
    found = api.objects[PODS]["a"]["status"]["conditions"][-1]
    assert "matched.kl: 0.09" in found["message"] and digest_of(api, "a")[:16] in found["message"]
    assert [each["type"] for each in api.objects[EVENTS].values() if each["reason"] == "QualityFailed"] == ["Warning"]


async def test_a_known_configuration_is_not_judged_again(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a")
    async with controller(api, judge):
        await become(lambda: api.is_ready("a"))
    add_gated(api, "b")
    add_gated(api, "c", flags="other")
    async with controller(api, judge):
        await become(lambda: api.is_ready("b") and api.is_ready("c"))
    assert judge.judged == ["a", "c"]


async def test_pods_of_one_configuration_are_judged_at_one_of_them(api: KubernetesApi, judge: ToldJudge) -> None:
    judge.go.clear()
    for name in ("a", "b", "c"):
        add_gated(api, name)
    async with controller(api, judge):
        await become(lambda: all(condition(api, name) == ("False", "Judging") for name in ("a", "b", "c")))
        judge.go.set()
        await become(lambda: all(map(api.is_ready, ("a", "b", "c"))))
    assert judge.judged == ["a"]


async def test_one_that_has_not_started_is_not_asked(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", ready=False)
    api.add_pod("plain", "127.0.0.2", labels={"app": "engine", "serving/gated": "true"})
    async with controller(api, judge) as made:
        await become(lambda: made.pods)
        assert judge.judged == [] and condition(api, "a") is None
        api.set_ready("a", True)
        await become(lambda: api.is_ready("a"))
    assert judge.judged == ["a"] and condition(api, "plain") is None


async def test_not_decided_waits_for_a_person(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", flags="new")
    async with controller(api, judge) as made:
        await become(lambda: condition(api, "a") == ("False", "NeedsApproval"))
        digest = digest_of(api, "a")
        approval = Approval(digest=digest, reason="looked at", by="ann", at="2026-11-30T20:15:00Z", said="not decided")
        api.write(CONFIG_MAPS, config_map("llm-gate", "cpu", approval))
        await become(lambda: api.is_ready("a"))
        assert condition(api, "a") == ("True", "Approved")
        assert made.standings.by_digest[digest].approval == approval
    assert "ann: looked at" in api.objects[PODS]["a"]["status"]["conditions"][-1]["message"]
    assert judge.judged == ["a"]


async def test_a_run_that_breaks_off_is_begun_again(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", flags="broken")
    async with controller(api, judge):
        await become(lambda: condition(api, "a") == ("False", "NotJudged"))
        assert verdict_names(api) == set()
        judge.broken = False
        await become(lambda: api.is_ready("a"))


async def test_a_run_has_a_time(api: KubernetesApi, judge: ToldJudge) -> None:
    judge.go.clear()
    add_gated(api, "a")
    async with controller(api, judge, run_seconds=0.1):
        await become(lambda: condition(api, "a") == ("False", "NotJudged"))
        assert "longer than 0.1 s" in api.objects[PODS]["a"]["status"]["conditions"][-1]["message"]
        judge.go.set()
        await become(lambda: api.is_ready("a"))


async def test_a_pod_that_goes_ends_its_run_and_another_takes_its_place(api: KubernetesApi, judge: ToldJudge) -> None:
    judge.go.clear()
    add_gated(api, "a")
    async with controller(api, judge):
        await become(lambda: judge.running == 1)
        api.remove_pod("a")
        await become(lambda: judge.cancelled == 1 and judge.running == 0)
        add_gated(api, "b")
        await become(lambda: judge.judged == ["a", "b"])
        judge.go.set()
        await become(lambda: api.is_ready("b"))


async def test_another_pod_of_the_same_name_is_not_told_what_was_said_of_the_first(api: KubernetesApi, judge: ToldJudge) -> None:
    """Its uid is part of what is written, so that the server refuses it."""
    add_gated(api, "a", uid="one")
    settings = settings_for(api)
    server = ApiServer(settings.kubernetes)
    cluster = Cluster(server, "serving", 1.0)
    made = Controller(cluster, judge, settings)
    await made._pods.read_list()
    (pod,) = made.pods
    api.remove_pod("a")
    add_gated(api, "a", uid="two")
    with pytest.raises(ApiFailed, match="uid") as refused:
        await cluster.set_condition(pod, module.Condition("True", "Passed", ""))
    assert refused.value.status == 409 and condition(api, "a") is None
    server.close()


async def test_a_condition_that_was_set_by_hand_is_set_back(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", flags="bad")
    async with controller(api, judge):
        await become(lambda: condition(api, "a") == ("False", "Failed"))
        pod = api._pod("a")
        pod["status"]["conditions"][-1]["status"] = "True"
        api.wrote(PODS, pod)
        await become(lambda: condition(api, "a") == ("False", "Failed") and not api.is_ready("a"))


@pytest.mark.parametrize("edit", ["outcome", "digest", "name", "garbage", "emptied"])
async def test_a_verdict_that_was_made_by_hand_counts_as_none(api: KubernetesApi, judge: ToldJudge, edit: str) -> None:
    add_gated(api, "a")
    async with controller(api, judge):
        await become(lambda: api.is_ready("a"))
    (name,) = verdict_names(api)
    document = json.loads(json.dumps(api.objects[CONFIG_MAPS][name]))
    api.remove(CONFIG_MAPS, name)
    add_gated(api, "b", flags="bad")
    other = digest_of(api, "b")
    data = json.loads(document["data"]["verdict.json"])
    document["metadata"]["name"] = record_name("llm-gate", "verdict", other)
    if edit == "outcome":  # of a target without a floor, where there is no pass
        configuration = data["configuration"] | {"argv": ["vllm", "serve", "bad"]}
        data |= {"digest": other, "configuration": configuration, "calibrated": False}
    elif edit == "digest":
        data["digest"] = other
    document["data"] = {"verdict.json": {"garbage": "{", "emptied": ""}.get(edit, json.dumps(data))}
    api.write(CONFIG_MAPS, document)
    async with controller(api, judge):
        await become(lambda: condition(api, "b") == ("False", "Failed"))
    assert "b" in judge.judged
    kept = [api.objects[CONFIG_MAPS][name] for name in verdict_names(api) - {document["metadata"]["name"]}]
    outcomes = {(text := json.loads(each["data"]["verdict.json"]))["digest"]: text["outcome"] for each in kept}
    assert outcomes[other] == "fail", "the real one stands beside it"


async def test_a_verdict_cannot_be_edited(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a", flags="bad")
    async with controller(api, judge):
        await become(lambda: condition(api, "a") == ("False", "Failed"))
    (name,) = verdict_names(api)
    document = json.loads(json.dumps(api.objects[CONFIG_MAPS][name]))
    document["data"]["verdict.json"] = document["data"]["verdict.json"].replace('"fail"', '"pass"')
    server = ApiServer(settings_for(api).kubernetes)
    with pytest.raises(ApiFailed, match="immutable"):
        await Cluster(server, "serving", 1.0).replace(f"{CONFIG_MAPS}/{name}", document)
    server.close()


async def test_one_that_serves_goes_on_when_its_verdict_is_lost(api: KubernetesApi, judge: ToldJudge) -> None:
    add_gated(api, "a")
    async with controller(api, judge):
        await become(lambda: api.is_ready("a"))
        judge.go.clear()
        api.remove(CONFIG_MAPS, verdict_names(api).pop())
        await become(lambda: judge.judged == ["a", "a"])
        await asyncio.sleep(0.2)
        assert api.is_ready("a")
        judge.go.set()
        await become(lambda: verdict_names(api))


@pytest.mark.parametrize("fault", ["failing", "silent", "no pods", "no patches", "no creates"])
async def test_an_api_server_that_is_away_decides_nothing_and_heals(api: KubernetesApi, judge: ToldJudge, fault: str) -> None:
    add_gated(api, "a")
    async with controller(api, judge):
        await become(lambda: api.is_ready("a"))
        if fault == "failing":
            api.failing = 503
        elif fault == "silent":
            api.silent = True
            api.drop_watches()
        else:
            api.forbidden = {
                {"no pods": "list pods", "no patches": "patch pods/status", "no creates": "create configmaps"}[fault]
            }
        if fault == "no pods":
            api.forbidden.add("watch pods")
            api.drop_watches()
        add_gated(api, "b", flags="other")
        await asyncio.sleep(0.5)
        assert api.is_ready("a") and not api.is_ready("b")
        api.failing, api.silent, api.forbidden = None, False, set()
        await become(lambda: api.is_ready("a") and api.is_ready("b"))
    assert judge.judged == ["a", "b"], "what was judged is written later, and not judged again"


async def test_without_a_list_of_verdicts_nothing_is_judged(api: KubernetesApi, judge: ToldJudge) -> None:
    """What is not known is not the same as what is not there."""
    add_gated(api, "a")
    api.forbidden = {"list configmaps"}
    async with controller(api, judge) as made:
        await become(lambda: made.pods)
        await asyncio.sleep(0.2)
        assert judge.judged == []


# Leading


@contextlib.asynccontextmanager
async def candidate(api: KubernetesApi, judge: ToldJudge, name: str, **fields: Any) -> AsyncIterator[Leadership]:
    settings = settings_for(api, **fields)
    server = ApiServer(settings.kubernetes)
    cluster = Cluster(server, "serving", 0.5)
    leadership = Leadership(cluster, "llm-gate", name, settings.lease)
    task = asyncio.create_task(leadership.run(Controller(cluster, judge, settings).lead))
    try:
        yield leadership
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        server.close()


async def test_of_two_one_leads_and_the_other_follows_it(api: KubernetesApi) -> None:
    first, second = ToldJudge(), ToldJudge()
    async with contextlib.AsyncExitStack() as stack:
        one = stack.push_async_exit(leaving := candidate(api, first, "one"))
        leader = await leaving.__aenter__()
        del one
        await become(lambda: leader.leads)
        async with candidate(api, second, "two") as other:
            add_gated(api, "a")
            await become(lambda: api.is_ready("a"))
            await asyncio.sleep(LEASE_SECONDS + 0.5)
            assert leader.leads and not other.leads and second.judged == []
            await stack.aclose()
            await become(lambda: other.leads)
            add_gated(api, "b", flags="other")
            await become(lambda: api.is_ready("b"))
    assert (first.judged, second.judged) == (["a"], ["b"])
    assert api.objects[LEASES]["llm-gate"]["spec"]["leaseTransitions"] >= 1


async def test_a_leader_that_died_is_followed_when_its_lease_is_over(api: KubernetesApi, judge: ToldJudge) -> None:
    """It said nothing at its end: its Lease names it, and its run left no verdict."""
    api.write(
        LEASES,
        {
            "metadata": {"name": "llm-gate"},
            "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 1, "renewTime": "2026-11-30T00:00:00.000000Z"},
        },
    )
    add_gated(api, "a")
    began = asyncio.get_running_loop().time()
    async with candidate(api, judge, "one") as leader:
        await become(lambda: leader.leads)
        assert asyncio.get_running_loop().time() - began >= 1.0, "however old the time is that it wrote"
        await become(lambda: api.is_ready("a"))


async def test_a_leader_that_cannot_renew_stops_before_another_begins(api: KubernetesApi, judge: ToldJudge) -> None:
    judge.go.clear()
    add_gated(api, "a")
    other = ToldJudge()
    async with candidate(api, judge, "one") as first:
        await become(lambda: first.leads and judge.running == 1)
        api.forbidden = {"update leases", "create leases"}
        await become(lambda: not first.leads and judge.cancelled == 1)
        writes = sum(asked.verb in ("patch", "create") for asked in api.asked)
        api.forbidden = set()
        lease = json.loads(json.dumps(api.objects[LEASES]["llm-gate"]))
        lease["spec"] |= {"holderIdentity": "two", "renewTime": "2026-11-30T20:15:00.000000Z", "leaseDurationSeconds": 60}
        api.write(LEASES, lease)
        await asyncio.sleep(0.5)
        assert sum(asked.verb in ("patch", "create") for asked in api.asked) == writes, "it writes nothing as a follower"
        assert not first.leads and other.judged == []


async def test_to_be_stopped_while_the_lease_is_being_lost_is_to_be_stopped(api: KubernetesApi) -> None:
    """The cancellation is not taken for that of the work."""
    settings = settings_for(api)
    server = ApiServer(settings.kubernetes)
    leadership = Leadership(Cluster(server, "serving", 0.5), "llm-gate", "one", settings.lease)
    ending, go = asyncio.Event(), asyncio.Event()

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await go.wait()

    task = asyncio.create_task(leadership.run(slow_to_end))
    await become(lambda: leadership.leads)
    api.forbidden = {"update leases"}
    await ending.wait()
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=HANG_SECONDS)
    go.set()
    assert done and task.cancelled()
    server.close()


async def test_a_lease_that_another_one_took_is_let_go_at_once(api: KubernetesApi, judge: ToldJudge) -> None:
    """And not when it would be over, which nobody waits for."""
    long = {"seconds": 30 * HANG_SECONDS, "renew_within_seconds": 20 * HANG_SECONDS, "period_seconds": 0.1}
    async with candidate(api, judge, "one", lease=long) as first:
        await become(lambda: first.leads)
        lease = json.loads(json.dumps(api.objects[LEASES]["llm-gate"]))
        lease["spec"] |= {"holderIdentity": "two", "renewTime": "2026-11-30T20:15:00.000000Z", "leaseDurationSeconds": 60}
        api.write(LEASES, lease)
        await become(lambda: not first.leads)
        assert api.objects[LEASES]["llm-gate"]["spec"]["holderIdentity"] == "two"
