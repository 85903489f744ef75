"""One module (or small package) a source family: what a file says, on the file's own clock."""
