"""Handlers of native requests: the SDK's bulk calls, the pipeline, operators."""
