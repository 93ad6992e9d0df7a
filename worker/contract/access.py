"""Define well-known tenants and the scopes of API keys, for api and worker."""

from enum import StrEnum

# The tenant of work that names none: every batch of a deployment without keys.
DEFAULT_TENANT = "default"
# The tenant of deleted batches, until the last of their rows is gone.
NOBODY = ""

# Begins the name of the tenant that the shadows of a tenant's batches belong to; no key can have one.
SHADOW = "shadow:"

# The pattern of a tenant's name.
TENANT_NAME = "[a-z0-9][a-z0-9._-]{0,62}"
# Names all tenants in a request of an operator.
EVERY_TENANT = "*"


class Scope(StrEnum):
    """Permission of an API key. No scope implies another."""

    READ = "read"  # read the tenant's own batches, results and usage
    SUBMIT = "submit"  # make, change and cancel batches
    ADMIN = "admin"  # administer the tenant: its API keys, webhook endpoints, audit log, response cache
    DEPLOYMENT = "deployment"  # administer all tenants: their batches, keys and quotas, audit logs, metrics
