"""Fleets: reports of many clients in Parquet files or on a Spark cluster, and replies on disk.

`read_report_files`, `read_dataframe` and `read_tables` read them, `write_table` and
`write_verdict_table` write tables, and `ReplyStore` keeps replies while a round waits. May import
`federation`, `reports` and what lies below them.
"""

from robfcp.fleet._parquet import (
    UNNAMED_TABLE,
    list_report_files,
    list_unnamed_tables,
    read_report_files,
    write_table,
    write_verdict_table,
)
from robfcp.fleet._replies import ReplyStore
from robfcp.fleet._spark import is_dataframe, read_dataframe, read_tables

__all__ = [
    "UNNAMED_TABLE",
    "ReplyStore",
    "is_dataframe",
    "list_report_files",
    "list_unnamed_tables",
    "read_dataframe",
    "read_report_files",
    "read_tables",
    "write_table",
    "write_verdict_table",
]
