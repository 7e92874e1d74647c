"""`sandboxd completion`, and the text of completions for each shell."""
