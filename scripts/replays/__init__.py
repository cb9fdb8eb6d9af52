"""The replays of scripts/replay: `base` runs them, `complaints` and `programs` list them."""
