"""Everything that touches SGLang: flags, cache, components, scheduler hooks."""
