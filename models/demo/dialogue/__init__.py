"""Conversations that teach the demo model to answer in form: short chats, JSON, and calls of functions."""
