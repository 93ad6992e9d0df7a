"""Parse the text of an output into content, reasoning and tool calls. Must not know HTTP or rows."""
