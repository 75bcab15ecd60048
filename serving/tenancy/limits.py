"""Admission: nothing is taken on that cannot be given back, and it is given back exactly once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import get_args

from serving.core.clock import Clock, monotonic
from serving.core.context import Headers, RequestContext
from serving.core.errors import Overloaded, QuotaSpent, RateLimited, RequestError
from serving.setting_types import RequestClass
from serving.settings import LimitSettings
from serving.tenancy.claims import Claims, Guess
from serving.tenancy.limit_headers import limit_fields, limit_headers
from serving.tenancy.prices import NANODOLLARS
from serving.tenancy.quotas import NOTHING, Claim, Limit, Limits, Quotas, Reservation, Standing, Verdict
from serving.tenancy.slots import LONGEST_RETRY_SECONDS, Slots
from serving.tenancy.tenants import Tenant
from serving.tenant_settings import TenantLimits

CLASSES: tuple[str, ...] = get_args(RequestClass)
"""Most urgent first."""
_UNLIMITED = TenantLimits()


class Lease:
    """What one admitted request holds. Closing it twice is the same as closing it once."""

    __slots__ = ("_admission", "guess", "limits", "reservation", "slot_since", "slots", "standing", "tenant")

    # Few requests have more than their place under the ceiling: the rest is set where it is needed.
    guess: Guess
    tenant: str
    slot_since: float
    limits: Limits
    standing: Standing

    def __init__(self, admission: Admission) -> None:
        self._admission: Admission | None = admission
        self.reservation: Reservation | None = None
        self.slots: Slots | None = None
        """Where it has a slot."""

    @property
    def open(self) -> bool:
        return self._admission is not None

    @property
    def is_counted(self) -> bool:
        """What the request used has to be known when it is closed."""
        return self.reservation is not None or self.slots is not None

    def close(self, ctx: RequestContext | None = None) -> None:
        """`ctx` is needed where the lease is counted."""
        admission, self._admission = self._admission, None
        if admission is None:
            return
        admission.give_back()
        if ctx is not None and (self.reservation is not None or self.slots is not None):
            admission.settle(self, ctx)


class Admission:
    """Lets requests in: under the gateway's ceiling, within the limits of their tenant, and when an engine has a slot."""

    def __init__(
        self,
        settings: LimitSettings,
        *,
        quotas: Quotas | None = None,
        claims: Claims | None = None,
        slots: Mapping[str, Slots] | None = None,
        refused: Callable[[str, Limit], None] = lambda tenant, limit: None,
        clock: Clock = monotonic,
    ) -> None:
        """`slots` by the model that engines serve; `refused` is told whom a limit has refused."""
        self._ceiling = settings.in_flight
        self._quotas = quotas
        self._claims = claims
        self._slots = slots or {}
        self._refused = refused
        self._clock = clock
        self._limits: dict[str, tuple[TenantLimits, Limits | None]] = {}
        self.open_leases = 0

    def admit(self) -> Lease:
        """Take a lease. Raises: Overloaded when the gateway is full."""
        if self.open_leases >= self._ceiling:
            raise Overloaded("The gateway is full. Try again in a moment.", retry_after_seconds=1)
        self.open_leases += 1
        return Lease(self)

    def counts(self, ctx: RequestContext, tenant: Tenant) -> bool:
        """Whether more than the ceiling stands between the request and an engine."""
        return ctx.model in self._slots or self.limits_of(tenant) is not None

    def limits_of(self, tenant: Tenant) -> Limits | None:
        """None where the tenant has none."""
        known = self._limits.get(tenant.name)
        if known is None or known[0] is not tenant.limits:
            known = self._limits[tenant.name] = (tenant.limits, _limits(tenant.limits))
        return known[1]

    async def enter(self, lease: Lease, ctx: RequestContext, tenant: Tenant, priority: str) -> None:
        """Reserve what the request will take of its tenant's limits, then wait for a slot. The lease holds what was taken.

        `priority` is the request's class. Raises: RateLimited, InvalidRequest, Overloaded, Unavailable; the lease is to be
        closed in any case.
        """
        assert self._claims is not None and self._quotas is not None
        limits = self.limits_of(tenant)
        guess = lease.guess = self._claims.guess(ctx, tenant, limits)
        lease.tenant = tenant.name
        if limits is not None:
            lease.limits = limits
            claim = self._claims.claim(ctx, guess, limits)
            found = self._quotas.reserve(tenant.name, limits, claim)
            verdict = found if isinstance(found, Verdict) else await found
            lease.standing, lease.reservation = verdict.standing, verdict.reservation
            if verdict.refused_by is not None:
                self._refused(tenant.name, verdict.refused_by)
                raise _refusal(verdict, limits, claim, ctx)
        slots = self._slots.get(ctx.model)
        if slots is not None and ctx.route.runs_model:
            if not slots.take(tenant.name, guess.tokens):
                ends = ctx.ends or self._clock() + 1e9
                await slots.wait(tenant.name, guess.tokens, len(ctx.body), CLASSES.index(priority), ends)
            lease.slots, lease.slot_since = slots, self._clock()

    def move(self, lease: Lease, ctx: RequestContext, tenant: Tenant, model: str) -> bool:
        """Let a request go on at another model, without waiting. Returns whether it has a slot there, if it needs one."""
        slots = self._slots.get(model)
        if lease.slots is slots:
            return True
        if slots is not None:
            assert self._claims is not None
            if not lease.is_counted:
                lease.tenant, lease.guess = tenant.name, self._claims.guess(ctx, tenant, None)
            if not slots.take(lease.tenant, lease.guess.tokens):
                return False
        self._leave(lease, 0)
        if slots is not None:
            lease.slots, lease.slot_since = slots, self._clock()
        return True

    def settle(self, lease: Lease, ctx: RequestContext) -> None:
        """Hand on the slot and put the truth in the place of the reservation."""
        assert self._claims is not None and self._quotas is not None
        used = self._claims.used(ctx, lease.guess) if ctx.outcome is not None else NOTHING
        self._claims.learn(ctx)
        self._leave(lease, used.tokens)
        if lease.reservation is not None:
            self._quotas.settle(lease.reservation, used)

    def give_back(self) -> None:
        self.open_leases -= 1

    def headers(self, lease: Lease, ctx: RequestContext) -> Headers:
        """What the tenant is told about its limits with an answer."""
        return limit_headers(lease.limits, lease.standing, ctx.route.dialect)

    def error_fields(self, lease: Lease, ctx: RequestContext) -> Mapping[str, str]:
        """The same for an error, once it is known how the request ended: what it has not cost is there again."""
        assert self._claims is not None
        standing, reservation = lease.standing, lease.reservation
        if reservation is not None and self._claims.used(ctx, lease.guess) is NOTHING:
            standing = standing._replace(
                requests=standing.requests + reservation.claim.requests, tokens=standing.tokens + reservation.claim.tokens
            )
        return dict(limit_fields(lease.limits, standing, ctx.route.dialect))

    def _leave(self, lease: Lease, used_tokens: int) -> None:
        slots, lease.slots = lease.slots, None
        if slots is not None:
            slots.give_back(lease.tenant, lease.guess.tokens, used_tokens, self._clock() - lease.slot_since)


def _limits(settings: TenantLimits) -> Limits | None:
    if settings == _UNLIMITED:
        return None
    dollars = settings.dollars_per_day
    return Limits(
        settings.requests_per_minute,
        settings.tokens_per_minute,
        settings.concurrency,
        None if dollars is None else round(dollars * NANODOLLARS),
    )


def _refusal(verdict: Verdict, limits: Limits, claim: Claim, ctx: RequestContext) -> RequestError:
    fields = dict(limit_fields(limits, verdict.standing, ctx.route.dialect))
    if verdict.refused_by is Limit.DOLLARS:
        words = "The dollars of this day are used up. They are there again at midnight UTC."
        if left := verdict.standing.nano_dollars:
            words = (
                f"Of the dollars of this day {left / NANODOLLARS:.6g} are left, and this request may cost "
                f"{claim.nano_dollars / NANODOLLARS:.6g}. Send a shorter prompt or a smaller max_tokens, "
                "or wait until midnight UTC."
            )
        return QuotaSpent(words, headers={**fields, "x-should-retry": "false"})
    words = {
        Limit.REQUESTS: f"More than {limits.requests} requests a minute.",
        Limit.TOKENS: f"More than {limits.tokens} tokens a minute.",
        Limit.CONCURRENCY: f"More than {limits.concurrency} requests at a time.",
    }[verdict.refused_by or Limit.REQUESTS]
    # Rounded up, so that who comes back then is not too early.
    seconds = min(max(1, int(-(-verdict.wait_seconds // 1))), LONGEST_RETRY_SECONDS)
    return RateLimited(f"Rate limit reached: {words} Try again in {seconds} s.", retry_after_seconds=seconds, headers=fields)
