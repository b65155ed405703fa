"""CPU reference platform: runs a real SGLang server without a GPU."""
