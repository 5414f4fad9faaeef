"""Federated conformal prediction that survives wrong, broken and lying sites."""
