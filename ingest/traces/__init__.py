"""What ingestors of traces share: what names say, columns, launches, rows that wait."""
