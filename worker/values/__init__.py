"""Plain values that the API, the store and the runs speak in. Imports nothing of ours."""
