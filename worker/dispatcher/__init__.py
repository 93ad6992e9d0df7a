"""A leaderless loop over Postgres: expired leases, deadlines, the bounded window of tickets."""
