"""The data sources of Spark: their options, offsets and slots."""
