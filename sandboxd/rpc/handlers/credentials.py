"""`credential.*`: the values of credentials. They come in, and never go out."""

from __future__ import annotations

from sandboxd.daemon.policies import Policies
from sandboxd.policy.display import neutralise
from sandboxd.rpc.call import MethodCall
from sandboxd.runtime.credentials.credential_store import CredentialStore
from sandboxd_client.records import dataclass
from sandboxd_client.wire.messages.policy import (
    CredentialListParams,
    CredentialListResult,
    CredentialRecord,
    CredentialRemoveParams,
    CredentialRemoveResult,
    CredentialSetParams,
    CredentialSetResult,
)


@dataclass(frozen=True, slots=True)
class CredentialMethods:
    """`credential.set`, `credential.remove` and `credential.list`."""

    store: CredentialStore
    policies: Policies

    async def set(self, call: MethodCall, params: CredentialSetParams) -> CredentialSetResult:
        """Keep a value. Raises CallerError."""
        self.store.give(params.name, params.value)
        rules = self.policies.own.now.policy.network.credentials
        return CredentialSetResult(any(str(rule.source) == f"env:{params.name}" for rule in rules))

    async def remove(self, call: MethodCall, params: CredentialRemoveParams) -> CredentialRemoveResult:
        return CredentialRemoveResult(self.store.forget(params.name))

    async def list_credentials(self, call: MethodCall, params: CredentialListParams) -> CredentialListResult:
        rules = self.policies.own.now.policy.network.credentials
        return CredentialListResult(
            tuple(
                CredentialRecord(
                    neutralise(str(rule.source)),
                    rule.pattern.text,
                    f"{rule.place} {rule.name}",
                    self.store.state(rule.source),
                    rule.variables,
                )
                for rule in rules
            )
        )
