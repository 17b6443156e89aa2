"""HTML reports: one style sheet, one page frame, tables and charts.  No Spark in here."""
