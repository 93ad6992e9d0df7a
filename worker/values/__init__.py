"""Define plain values that the API, the store and the runs share. Must not import our other packages."""
