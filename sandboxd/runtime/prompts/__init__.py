"""Permission prompts, their answers and the grants that follow."""
