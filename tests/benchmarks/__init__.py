"""Speed and memory, measured side by side with the peers in one run. Never timed tests."""
