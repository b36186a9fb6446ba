"""What is claimed: statements held against runs, and the audit of all of them."""
