"""Fleets: reports of many clients in Parquet files or on a Spark cluster, and replies on disk."""

from robfcp.fleet._parquet import ReplyStore, list_report_files, write_verdict_table
from robfcp.fleet._spark import read_tables

__all__ = ["ReplyStore", "list_report_files", "read_tables", "write_verdict_table"]
