"""What training programs print of each step, whatever else stands in the same file."""
