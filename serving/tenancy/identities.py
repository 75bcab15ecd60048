"""Who asks: a key belongs to a tenant; keys are known by their SHA-256 only."""

from __future__ import annotations

import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence

from serving.core.errors import InvalidRequest, Unauthorized, Unavailable
from serving.settings import AuthSettings
from serving.tenancy.keys import KeyHashes, KeyRecord
from serving.tenancy.tenants import Identity, Tenants
from serving.tenant_settings import DEFAULT_TENANT, ParameterLimits, TenantSettings

log = logging.getLogger("serving.identities")


class Identities:
    """Resolves credentials. Without any place for keys everybody is the tenant `default`.

    Keys of a database or a file come and go as whole sets (`take_keys`); a request only looks into the last ones.
    """

    def __init__(
        self,
        settings: AuthSettings,
        tenants: Mapping[str, TenantSettings] | None = None,
        parameters: ParameterLimits | None = None,
        *,
        hashes: KeyHashes | None = None,
        sources: Collection[str] = (),
        shared_secret: bytes | None = None,
        ignored: Callable[[str, int], None] = lambda reason, count: None,
    ) -> None:
        """`sources` are those that will bring keys, hashed by `hashes`; until each has, an unknown key is not called wrong.

        `shared_secret` is what other gateways have, too, where there are any.
        `ignored` is told how many keys open nothing, by reason.
        """
        names = {bytes.fromhex(key.sha256): (key.tenant, key.sha256[:_KEY_ID_DIGITS]) for key in settings.keys}
        if settings.api_key is not None:
            names[_digest(settings.api_key.get_secret_value())] = (DEFAULT_TENANT, "api-key")
        isolates = settings.isolate_caches and (bool(sources) or len({name for name, _ in names.values()}) > 1)
        self.tenants = Tenants(tenants or {}, parameters, isolates=isolates)
        self._by_digest = {digest: self._identity(*name) for digest, name in names.items()}
        self._anybody = self._identity(DEFAULT_TENANT, "")
        self._asks_nobody = not self._by_digest and not sources
        self._allow_anonymous = settings.allow_anonymous
        self._hashes = hashes
        self._ignored = ignored
        self._ignored_of: dict[str, dict[str, int]] = {}
        self._sets: dict[str, dict[bytes, Identity]] = {}
        self._kept: Mapping[bytes, Identity] = {}
        """By the digest that the hashes make; replaced as a whole, by another thread."""
        self._awaited = set(sources)
        self._salts: dict[str, str] = {}
        self._cache_secret = _cache_secret(settings, hashes, shared_secret)

    @property
    def is_ready(self) -> bool:
        """Whether every source has brought its keys."""
        return not self._awaited

    def take_keys(self, source: str, records: Sequence[KeyRecord]) -> None:
        """Let the keys of a source be exactly these. Those of tenants that the settings do not list open nothing."""
        assert self._hashes is not None, "keys need a secret"
        taken: dict[bytes, Identity] = {}
        ignored = self._ignored_of[source] = {"unknown_tenant": 0, "other_secret": 0}
        for record in records:
            digest, tenant = self._hashes.digest_of(record), self.tenants.find(record.tenant)
            if digest is None:
                ignored["other_secret"] += 1
            elif tenant is None:
                ignored["unknown_tenant"] += 1
            else:
                taken[digest] = Identity(tenant, record.id)
        self._sets[source] = taken
        for reason in ignored:
            self._ignored(reason, sum(counts[reason] for counts in self._ignored_of.values()))
        if any(ignored.values()):
            log.warning("some keys open nothing", extra={"source": source, **ignored})
        self._kept = {digest: identity for each in self._sets.values() for digest, identity in each.items()}
        self._awaited.discard(source)

    def _identity(self, name: str, key_id: str) -> Identity:
        tenant = self.tenants.find(name)
        assert tenant is not None, "the settings name listed tenants only"
        return Identity(tenant, key_id)

    def cache_salt(self, group: str | None, own: object) -> str | None:
        """What keeps the cached prefixes of an isolation group apart, or None where the tenant is not kept apart.

        A keyed hash of the group and of the salt that the client itself gave, so that nobody can name another's. The same
        on each gateway that has the same secret. Raises: InvalidRequest where the client's salt is not a string.
        """
        if own is not None and not isinstance(own, str):
            raise InvalidRequest("The field 'cache_salt' must be a string.", param="cache_salt")
        if own is None:
            # All but the rarest requests: made once for each group.
            return None if group is None else self._salts.get(group) or self._salts.setdefault(group, self._salt(group, ""))
        return self._salt(group or "", own)

    def _salt(self, scope: str, own: str) -> str:
        text = f"{len(scope)}:{scope}{own}".encode("utf-8", "surrogatepass")
        return hmac.new(self._cache_secret, text, hashlib.sha256).hexdigest()[:32]

    def identify(self, credential: str | None) -> Identity:
        """Whose a bearer credential is. Raises: Unauthorized; Unavailable while not all keys are known yet.

        A dictionary keyed by the digest leaks no timing about the key itself.
        """
        if self._asks_nobody or (credential is None and self._allow_anonymous):
            return self._anybody
        if credential is None:
            raise Unauthorized(
                "No API key was given. Send it as 'Authorization: Bearer KEY'.",
                code="missing_api_key",
                headers=_CHALLENGE,
            )
        identity = self._by_digest.get(_digest(credential)) if self._by_digest else None
        if identity is None and self._hashes is not None:
            identity = self._kept.get(self._hashes.digest(credential))
        if identity is None:
            if self._awaited:
                raise Unavailable(
                    "The keys are not known here yet. Try again shortly.", code="keys_unavailable", retry_after_seconds=5
                )
            raise Unauthorized("The API key is not valid.", headers=_CHALLENGE)
        return identity


def _cache_secret(settings: AuthSettings, hashes: KeyHashes | None, shared: bytes | None) -> bytes:
    """All gateways that agree on keys agree on salts, too, so that an engine's cache serves them all."""
    if settings.cache_secret is not None:
        return settings.cache_secret.get_secret_value().encode()
    if hashes is not None:
        return hashes.digest("what cache salts are made with")
    return secrets.token_bytes(32) if shared is None else hashlib.blake2b(shared, person=b"serving-salts").digest()


_KEY_ID_DIGITS = 12
"""Of its hash, by which a key of the settings is named."""
_CHALLENGE = {"www-authenticate": "Bearer"}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
