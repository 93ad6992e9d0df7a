"""Define what api and worker share: states, messages, events, meters. Must import only `worker.values`."""
