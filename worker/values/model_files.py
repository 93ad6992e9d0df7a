"""Names a file of a model directory that is no part of the model's own weights."""

# Medusa heads: they guess tokens, so what a model answers does not depend on them.
HEADS_FILE = "medusa.safetensors"
