"""What the proposer asks of a primary and sets there, by ordinary queries; its WAL is `stream/`."""
