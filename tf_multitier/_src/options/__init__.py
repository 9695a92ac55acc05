"""What a user chooses for a table, checked and as the engine's record has it. Nothing here makes an op."""
