"""The libraries we are compared with: one worker each, run by the Python of that library's environment."""
