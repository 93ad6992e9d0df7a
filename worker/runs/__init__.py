"""Runs claimed shards through the engine and saves what comes of them."""
