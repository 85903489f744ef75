"""The accuracy bench: simulated jobs with known faults through the ordinary diagnosis."""
