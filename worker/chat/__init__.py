"""Write conversations as prompts, with the checkpoint's chat template. Must not know HTTP or rows."""
