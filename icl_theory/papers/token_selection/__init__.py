"""Token selection by max-margin attention."""
