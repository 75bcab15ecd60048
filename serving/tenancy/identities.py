"""Who asks: a key belongs to a tenant; keys are known by their SHA-256 only."""

from __future__ import annotations

import hashlib

from serving.core.errors import Unauthorized
from serving.settings import AuthSettings

DEFAULT_TENANT = "default"


class Identities:
    """Resolves credentials. Without any key everybody is the tenant `default`."""

    def __init__(self, settings: AuthSettings) -> None:
        self._tenants = {bytes.fromhex(key.sha256): key.tenant for key in settings.keys}
        if settings.api_key is not None:
            self._tenants[_digest(settings.api_key.get_secret_value())] = DEFAULT_TENANT

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
