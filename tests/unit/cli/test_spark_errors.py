"""The text of Spark about one of our errors becomes the original error message again."""

from __future__ import annotations

from quorum_wal.cli.spark_session import command_error_of

TRACEBACK = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/spark/inputs/wal_reader.py", line 136, in _whole_records
    raise LostWal(lsn, f"{reason}, in {name}")
quorum_wal.spark.inputs.wal_input.LostWal: incorrect checksum in record at 0/97A0F0, in /wal/0009
hint: Use another source.
"""


def test_our_sentence_and_its_hint() -> None:
    error = command_error_of(Exception(TRACEBACK))
    assert error.message == "incorrect checksum in record at 0/97A0F0, in /wal/0009"
    assert error.hint == "Use another source."


def test_a_foreign_error_has_no_stack() -> None:
    text = "[DIVIDE_BY_ZERO] Division\nby zero.\n\tat org.apache.X(Y.scala:1)\n"
    error = command_error_of(Exception(text))
    assert error.message == "[DIVIDE_BY_ZERO] Division by zero."
