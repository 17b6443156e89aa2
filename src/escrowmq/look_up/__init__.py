"""Which ledger is in which database, and what a ledger says about transactions.

The pipeline and the broker's look-up process use it. Nothing here imports Spark, pyarrow or numpy.
"""
