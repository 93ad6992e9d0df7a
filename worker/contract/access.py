"""Who may do what: tenants and the scopes of their API keys, as api and worker agree on them."""

from enum import StrEnum

# Whose work it is where nobody says: every batch of a deployment without keys.
DEFAULT_TENANT = "default"
# Whose the batches are that were deleted, until the last of their rows is gone.
NOBODY = ""


class Scope(StrEnum):
    """What an API key allows. None implies another."""

    READ = "read"  # look at the tenant's own batches, results and usage
    SUBMIT = "submit"  # make, change and cancel them
    ADMIN = "admin"  # what concerns the tenant as a whole: its webhook endpoints, audit log, response cache
    DEPLOYMENT = "deployment"  # what concerns all tenants: those of everybody, and what is measured
