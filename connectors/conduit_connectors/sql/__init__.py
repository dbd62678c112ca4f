"""What the SQL connectors have in common: records as rows, and data and checkpoint in one transaction."""
