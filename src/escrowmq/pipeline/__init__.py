"""The Spark side: rules as Columns, sources, sink, settle, archive, audit.  Needs ``[spark]``."""
