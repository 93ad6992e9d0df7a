"""The engine's public data types: requests, outcomes, configuration and errors. Imports no torch."""
