"""One file a peer, read by `benchmarks.peers` and run by the peer's own interpreter; imports nothing of ours.

Each states its REQUIREMENTS (installed in this order), FORMS (for each dtype, the name of the converted
checkpoint it needs, or None for the checkpoint itself) and OPTIONS (integers that made it fast). It may state
UNWANTED (packages to remove again) and BUILD_ENVIRONMENT. `load` returns a function from prompts and output
lengths to outputs; `convert` writes a form. Nothing outside the standard library is imported before they run.
"""
