"""Tests of the commands; a package, since their shared fixtures are a second conftest."""
