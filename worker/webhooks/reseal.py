"""`python -m worker.webhooks.reseal`: seal every endpoint's secret with the first of HEADRACE_SECRET_KEY.

After it has run, the keys after the first are no longer needed.
"""

import sys

from worker.settings import settings
from worker.store.database.session import Store
from worker.store.webhooks import endpoints
from worker.webhooks.sealing import Sealer, SealError


def main() -> int:
    """Reseal in one transaction; nothing changes if one secret cannot be opened."""
    config = settings()
    store = Store(config.direct_url, pool_size=1)
    try:
        with store.transaction() as session:
            count = endpoints.reseal(session, Sealer(config.secret_keys).reseal)
    except SealError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    finally:
        store.close()
    sys.stdout.write(f"{count} endpoints resealed\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
