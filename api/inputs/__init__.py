"""Fields that several routes take, and the checkpoint that they are checked by."""
