"""What people look at: figures and pages built from query rows."""
