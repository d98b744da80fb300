"""Processes that may crash, hang or scribble: isolated, confined, with memory between guard pages."""
