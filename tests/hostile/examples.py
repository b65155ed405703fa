"""How many examples property tests try: few, and the same ones, unless a profile asks for more."""

from hypothesis import settings


def examples(count: int) -> settings:
    """Settings of a test; `--hypothesis-profile=night` has its own number."""
    if settings.get_current_profile_name() == "night":
        return settings()
    return settings(max_examples=count, deadline=None, derandomize=True)
