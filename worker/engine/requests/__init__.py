"""What the engine is asked for, what it answers, and what it is built from."""
