"""Pure inference: tokens in, tokens out. Knows no queue, database, HTTP or settings."""
