"""Adapters of the peers, one file each; they import nothing of this repository.

`benchmarks.peers` reads a file, and the peer's own interpreter runs it. Each file states its REQUIREMENTS
(installed in this order), FORMS (for each dtype, the name of the converted checkpoint it needs, or None for
the checkpoint itself) and OPTIONS (integers that made it fast). It may state UNWANTED (packages to remove
again) and BUILD_ENVIRONMENT. `load` returns a function from prompts and output lengths to outputs; `convert`
writes a form. Before these two run, a file imports the standard library only.
"""
