"""Words of notes by which a report knows them: it must not read files to import these."""

from __future__ import annotations

ASSIGNED_WORDS = "numbers were assigned in order of paths"
"""In the note on ranks that no file states."""
