"""Serves Anthropic's API: the bodies that its clients send and read. Everything else is shared."""
