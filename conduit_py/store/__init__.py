"""What survives a crash: positions, status, last error."""
