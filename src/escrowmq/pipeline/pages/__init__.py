"""HTML reports: one style sheet, one page frame, tables and charts. Nothing here needs Spark."""
