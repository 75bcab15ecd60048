"""Who asks: a key belongs to a tenant; keys are known by their SHA-256 only."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Mapping

from serving.core.errors import InvalidRequest, Unauthorized
from serving.settings import AuthSettings
from serving.tenancy.tenants import Identity, Tenants
from serving.tenant_settings import DEFAULT_TENANT, ParameterLimits, TenantSettings


class Identities:
    """Resolves credentials. Without any key everybody is the tenant `default`."""

    def __init__(
        self,
        settings: AuthSettings,
        tenants: Mapping[str, TenantSettings] | None = None,
        parameters: ParameterLimits | None = None,
    ) -> None:
        names = {bytes.fromhex(key.sha256): (key.tenant, key.sha256[:_KEY_ID_DIGITS]) for key in settings.keys}
        if settings.api_key is not None:
            names[_digest(settings.api_key.get_secret_value())] = (DEFAULT_TENANT, "api-key")
        isolates = settings.isolate_caches and len({name for name, _ in names.values()}) > 1
        self.tenants = Tenants(tenants or {}, parameters, isolates=isolates)
        self._by_digest = {digest: self._identity(*name) for digest, name in names.items()}
        self._anybody = self._identity(DEFAULT_TENANT, "")
        self._salts: dict[str, str] = {}
        secret = settings.cache_secret
        self._cache_secret = secret.get_secret_value().encode() if secret is not None else secrets.token_bytes(32)

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
        """Whose a bearer credential is. Raises: Unauthorized.

        A dictionary keyed by the digest leaks no timing about the key itself.
        """
        if not self._by_digest:
            return self._anybody
        if credential is None:
            raise Unauthorized(
                "No API key was given. Send it as 'Authorization: Bearer KEY'.",
                code="missing_api_key",
                headers=_CHALLENGE,
            )
        identity = self._by_digest.get(_digest(credential))
        if identity is None:
            raise Unauthorized("The API key is not valid.", headers=_CHALLENGE)
        return identity


_KEY_ID_DIGITS = 12
"""Of its hash, by which a key of the settings is named."""
_CHALLENGE = {"www-authenticate": "Bearer"}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
