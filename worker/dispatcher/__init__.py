"""Keep work moving, in a leaderless loop over Postgres: expired leases, deadlines, windows of tickets."""
