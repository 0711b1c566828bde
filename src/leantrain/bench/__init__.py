"""The papers' tables: what they report, and the same trained here beside it, at a scale that is named."""
