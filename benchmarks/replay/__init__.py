"""Recorded spaces to search in within seconds, without a board: `open_replay(name)`; see recorded.py."""

from benchmarks.replay.recorded import Replay, open_replay
