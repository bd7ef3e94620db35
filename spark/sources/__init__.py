"""What Spark sees: the data sources, their options, offsets and slots."""
