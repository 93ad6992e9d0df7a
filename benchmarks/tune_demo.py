"""Tunes the demo model's workload from deliberately poor settings: `make tune-demo`.

The study is stored, so that another run goes on where the last one ended. The last line is JSON. The status
is 1 unless the gain is GAIN at least, and the interval of the quality loss lies below ALLOWED_LOSS.
"""

import json
import sys

from api.cli.commands.tune import shown
from api.cli.tuning import measured, open_search, prepared
from worker.tuning.records import Objective
from worker.tuning.report import summary
from worker.tuning.space import ADMISSION, PREFIX_CACHE, SEQUENCES, THREADS, TOKENS, exact

TRIALS = 8
ALLOWED_LOSS = 0.05
GAIN = 1.5
POOR = {SEQUENCES: "2", TOKENS: "64", PREFIX_CACHE: "off", ADMISSION: "fifo", THREADS: "1"}


def main() -> int:
    """Tune the workload and print what it gave; return the exit status."""
    objective = Objective(max_quality_loss=ALLOWED_LOSS)
    with prepared() as tuning, open_search(tuning, objective) as search:
        measurer = tuning.measurer
        before = measured(lambda: measurer.measure(exact(tuning.config.device) | POOR))
        print(f"before: {before.result.tokens_per_second:.0f} tokens/s with {POOR}", flush=True)
        with shown(search) as changed:
            search.run(TRIALS, measurer, changed)
        winner = search.winner()
        if winner is None:
            print(f"no settings lose less than {ALLOWED_LOSS}")
            return 1
        print(f"after: {dict(winner.setting)}")
        after = measured(lambda: measurer.measure(winner.setting))
        found = summary(before, after, search.num_ended)
    print(json.dumps(found))
    return 0 if found["gain"] >= GAIN and after.loss.high < ALLOWED_LOSS else 1


if __name__ == "__main__":
    sys.exit(main())
