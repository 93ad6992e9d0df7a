"""What `headrace compare` compares: outputs, what models make of a text, and what a judge says."""
