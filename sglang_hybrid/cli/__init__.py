"""The `hybrid-marconi` command."""
