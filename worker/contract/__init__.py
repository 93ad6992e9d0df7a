"""What api and worker agree on: states, messages, events, sampling parameters. Imports nothing of ours."""
