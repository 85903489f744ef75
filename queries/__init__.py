"""The DuckDB library: one documented SELECT a file, grouped by subject."""
