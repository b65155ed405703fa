"""Small models with weights made from a seed, for tests and demonstrations."""
