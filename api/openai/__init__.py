"""OpenAI's face: the bodies its clients send, and the ones they read. Everything else is shared."""
