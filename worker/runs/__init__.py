"""Run claimed shards through the engine and save their results."""
