"""The door: a thin FastAPI application over the store. Never loads torch."""
