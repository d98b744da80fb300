"""What every study needs: arguments and exit codes (command.py), a board's session (place.py), intervals and
comparisons (statistics.py), tables (text.py), JSON documents, progress, and operators from shapes."""
