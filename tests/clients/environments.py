"""The clients that are tested, and an environment for each: no two of them agree on what they need."""

import subprocess
import sys
from pathlib import Path

FOLDER = Path(sys.prefix) / "clients"
TEST_RUNNER = ("pytest==9.2.0", "pytest-timeout==2.4.0")

# By the module of its tests, what is installed.
CLIENTS = {
    "openai": ("openai==3.54.0",),
    "openai_1": ("openai==1.109.1",),
    "anthropic": ("anthropic==2.12.0",),
    "litellm": ("litellm==1.106.0", "mcp==2.3.0"),  # it imports mcp for tools and does not require it
    "langchain_openai": ("langchain-openai==1.7.0", "langchain-core==1.7.2"),
    "langchain_anthropic": ("langchain-anthropic==1.7.0", "langchain-core==1.7.2"),
    "instructor": ("instructor==1.17.0",),
    "pydantic_ai": ("pydantic-ai-slim[openai]==2.68.0",),
    "llama_index": ("llama-index-llms-openai-like==0.8.1",),
    # It also runs the checkpoint itself, to compare.
    "lm_eval": ("lm_eval[api,hf]==0.4.13", "transformers==5.23.0", "torch==2.13.0"),
    "vllm_run_batch": ("openai==3.54.0",),
    "tables": ("duckdb==2.0.0", "pandas==3.1.1", "datasets==5.2.0", "pyarrow==26.0.1", "httpx==0.28.1"),
}


def python_of(client: str) -> Path:
    """Return the interpreter of a client's environment, which is made if it is not as it should be."""
    place = FOLDER / client
    python, installed = place / "bin" / "python", place / "installed"
    wanted = "\n".join((*CLIENTS[client], *TEST_RUNNER))
    if not installed.exists() or installed.read_text() != wanted:
        subprocess.run([sys.executable, "-m", "venv", "--clear", place], check=True)
        quiet = ["--quiet", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *quiet, *CLIENTS[client], *TEST_RUNNER], check=True)
        installed.write_text(wanted)
    return python
