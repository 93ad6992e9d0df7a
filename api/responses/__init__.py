"""Serves OpenAI's Responses API: its bodies, events and stored conversations. The work is a chat's."""
