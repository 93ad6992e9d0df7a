from tests.clients.openai_calls import *  # noqa: F403 - the tests and their fixture
