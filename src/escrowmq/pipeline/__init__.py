"""Spark side of EscrowMQ: rules as Columns, sources, sink, settle, archive, audit.

Needs ``[spark]``.
"""
