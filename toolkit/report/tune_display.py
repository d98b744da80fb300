"""What a tuning job shows while it runs: operator, trial, best GFLOP/s, trials per second, time left.

On a terminal two lines are drawn over and over; elsewhere plain lines come now and then. Everything goes to
standard error: standard output is for the answer.
"""

from __future__ import annotations

import sys
import time
from typing import Final, TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from toolkit.escaping import printable
from toolkit.model_job.options import JobEvent, StageDone, StageStarted, TuningPlanned
from toolkit.model_job.tuning_plan import TuningPlan
from toolkit.report.columns import LEAST, cut
from toolkit.report.failures import brief
from toolkit.report.tables import EMULATED, duration, plan_table, time_text
from toolkit.tuning.progress import OperatorDone, OperatorStarted, TrialDone
from toolkit.tuning.time_breakdown import Clock

PLAIN_EVERY_S: Final = 10.0
BAR: Final = 24


class TuneDisplay:
    """A listener for `tune`; a context manager. `live` None: drawn lines where `stream` is a terminal."""

    def __init__(
        self, stream: TextIO | None = None, *, live: bool | None = None, clock: Clock = time.monotonic
    ) -> None:
        self._stream = stream or sys.stderr
        self._console = Console(file=self._stream, highlight=False, soft_wrap=True, force_terminal=live)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._drawn = self._console.is_terminal if live is None else live
        self._clock = clock
        self._plan = TuningPlanned((), None, None, 0, False)
        self._each: int | None = None  # trials of one operator at most
        self._done = 0  # operators that get no more trials
        self._measured = 0  # trials of this run
        self._spared = 0  # trials that a space which was searched through left over
        self._after_s = 0.0  # what follows tuning
        self._started_s = self._last_s = clock()

    def __enter__(self) -> TuneDisplay:
        if self._drawn:
            self._live.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._drawn:
            self._live.stop()

    def __call__(self, event: JobEvent) -> None:
        match event:
            case StageStarted(stage):
                self._draw(f"{stage} ...")
            case StageDone(stage, seconds, summary):
                self._say(f"{stage:<10}{seconds:7.1f} s  {summary}")
            case TuningPlanned():
                self._plan = event
                self._started_s = self._clock()
                if event.plan:
                    self._say(plan_table(event.plan, self._console.width))
                    self._after_s = event.plan.confirm_s + event.plan.finish_s
                self._say(self._planned(event))
            case OperatorStarted(trials=trials):
                self._each = trials
            case TrialDone():
                self._measured += 1
                self._trial(event)
            case OperatorDone(operator, result):
                self._done += 1
                if self._each is not None:
                    self._spared += max(0, self._each - result.trials)
                best = result.best.cost_s if result.best else None
                self._line(
                    f"{self._where}  {result.trials:4d} trials  best {time_text(best):>11}"
                    f"{_speed('  ', result.best_gflops)}{self._mark}",
                    operator,
                )
                for reason in result.reasons:
                    self._line("    failed:", brief(reason), gap=" ")

    def _planned(self, plan: TuningPlanned) -> str:
        wanted = (
            f"{plan.trials} trials" if plan.trials is not None else f"{duration(plan.seconds or 0)} of time"
        )
        of_them = "of them " if plan.trials is not None else "trials "
        known = f", {plan.recorded} {of_them}recorded already" if plan.recorded else ""
        note = " (emulated: no time says anything about a chip)" if plan.emulated else ""
        ends = f"; done at {self._time_of_day(plan.plan)}" if plan.plan else ""
        return f"tuning {len(plan.operators)} operators: {wanted}{known}{ends}{note}"

    @staticmethod
    def _time_of_day(plan: TuningPlan) -> str:
        """When the whole job will be done."""
        left_s = plan.tuning_s + plan.confirm_s + plan.finish_s
        return time.strftime("%H:%M:%S", time.localtime(time.time() + left_s))

    def _trial(self, event: TrialDone) -> None:
        limit = "" if event.trials is None else f"/{event.trials}"
        speed = _speed("  ", event.best_gflops)
        job = f"{self._rate:5.1f} trials/s  {duration(self._left_s)} left"
        if self._drawn:
            self._draw(
                f"{self._bar} {self._share:4.0%} {job}\n"
                f"{self._where}  {event.operator}  trial {event.trial:4d}{limit}{speed}{self._mark}"
            )
        elif self._clock() - self._last_s >= PLAIN_EVERY_S:
            self._line(
                f"{self._where}  trial {event.trial:4d}{limit}{speed}{self._mark}  {job}", event.operator
            )

    @property
    def _mark(self) -> str:
        return f" ({EMULATED})" if self._plan.emulated else ""

    @property
    def _rate(self) -> float:
        """Trials per second of the whole run."""
        return self._measured / max(self._clock() - self._started_s, 1e-9)

    @property
    def _share(self) -> float:
        """Part of the job that is done, by trials or by time."""
        if self._plan.trials:
            return 1.0 - self._trials_left / self._plan.trials
        return min(1.0, (self._clock() - self._started_s) / max(self._plan.seconds or 1.0, 1e-9))

    @property
    def _trials_left(self) -> int:
        done = self._plan.recorded + self._measured + self._spared
        return max(0, (self._plan.trials or 0) - done)

    @property
    def _left_s(self) -> float:
        if self._plan.trials:
            return self._trials_left / max(self._rate, 1e-9)
        tuning_s = max(0.0, (self._plan.seconds or 0.0) - (self._clock() - self._started_s))
        return tuning_s + self._after_s

    @property
    def _bar(self) -> str:
        filled = round(BAR * self._share)
        return "█" * filled + "░" * (BAR - filled)

    @property
    def _where(self) -> str:
        """How many operators are done."""
        total = len(self._plan.operators)
        return f"[{self._done:{len(str(total))}d}/{total}]"

    def _line(self, facts: str, text: str, gap: str = "  ") -> None:
        """A line that stays, with as much of a text at its end as fits; below where nothing would."""
        room = self._console.width - len(facts) - len(gap)
        if room >= LEAST:
            self._say(f"{facts}{gap}{cut(text, room)}")
        else:
            self._say(f"{facts}\n    {cut(text, self._console.width - 4)}")

    def _say(self, line: str) -> None:
        """A line that stays."""
        self._last_s = self._clock()
        self._console.print(Text(printable(line)))

    def _draw(self, line: str) -> None:
        """The lines that are drawn over."""
        if self._drawn:
            self._live.update(Text(printable(line), no_wrap=True, overflow="ellipsis"), refresh=True)


def _speed(before: str, gflops: float) -> str:
    """Nothing where nothing ran, and for an operator that computes nothing, such as a transpose."""
    return f"{before}{gflops:7.1f} GFLOP/s" if gflops else ""
