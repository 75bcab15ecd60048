"""Who asks: a key belongs to a tenant; keys are known by their SHA-256 only."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from serving.core.errors import InvalidRequest, Unauthorized
from serving.settings import AuthSettings

DEFAULT_TENANT = "default"


class Identities:
    """Resolves credentials. Without any key everybody is the tenant `default`."""

    def __init__(self, settings: AuthSettings) -> None:
        self._tenants = {bytes.fromhex(key.sha256): key.tenant for key in settings.keys}
        if settings.api_key is not None:
            self._tenants[_digest(settings.api_key.get_secret_value())] = DEFAULT_TENANT
        self._isolates = settings.isolate_caches and len(set(self._tenants.values())) > 1
        self._salts: dict[str, str] = {}
        secret = settings.cache_secret
        self._cache_secret = secret.get_secret_value().encode() if secret is not None else secrets.token_bytes(32)

    def cache_salt(self, tenant: str, own: object) -> str | None:
        """What keeps a tenant's cached prefixes apart, or None where tenants are not kept apart.

        A keyed hash of the tenant and of the salt that the client itself gave, so that nobody can name another's. The same
        on each gateway that has the same secret. Raises: InvalidRequest where the client's salt is not a string.
        """
        if own is not None and not isinstance(own, str):
            raise InvalidRequest("The field 'cache_salt' must be a string.", param="cache_salt")
        if own is None:
            # All but the rarest requests: made once for each tenant.
            return self._salts.get(tenant) or self._salts.setdefault(tenant, self._salt(tenant, "")) if self._isolates else None
        return self._salt(tenant if self._isolates else "", own)

    def _salt(self, scope: str, own: str) -> str:
        text = f"{len(scope)}:{scope}{own}".encode("utf-8", "surrogatepass")
        return hmac.new(self._cache_secret, text, hashlib.sha256).hexdigest()[:32]

    def identify(self, credential: str | None) -> str:
        """The tenant of a bearer credential. Raises: Unauthorized.

        A dictionary keyed by the digest leaks no timing about the key itself.
        """
        if not self._tenants:
            return DEFAULT_TENANT
        if credential is None:
            raise Unauthorized(
                "No API key was given. Send it as 'Authorization: Bearer KEY'.",
                code="missing_api_key",
                headers=_CHALLENGE,
            )
        tenant = self._tenants.get(_digest(credential))
        if tenant is None:
            raise Unauthorized("The API key is not valid.", headers=_CHALLENGE)
        return tenant


_CHALLENGE = {"www-authenticate": "Bearer"}


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
