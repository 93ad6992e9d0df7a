"""Writes parsed outputs as messages, and grammars of tool calls. Must not know HTTP or rows."""
