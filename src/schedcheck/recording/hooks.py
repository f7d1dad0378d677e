"""What happens around each call into vLLM's Scheduler.

Rules
-----
- Nothing here ever raises into the engine. What goes wrong is counted and told once; then the next
  file begins, with requests whose history is unknown. After FAULTS_MAX it is over.
- What the engine itself raises is written down, and raised again as it was.
- A call that the scheduler makes to itself within another is part of that one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from schedcheck.model.actions import Action, Complete, Schedule
from schedcheck.recording.engine import EngineRecorder
from schedcheck.recording.telling import LOG
from schedcheck.recording.writing import Options

FAULTS_MAX: Final = 5
"""After so many faults nothing more is recorded."""

_SCHEDULE: Final = Schedule()
_COMPLETE: Final = Complete()

Call = Callable[..., Any]
Args = tuple[Any, ...]
Options_ = Mapping[str, Any]


class Hooks:
    """Stands between an engine and the scheduler that it calls."""

    def __init__(self, scheduler: Any, options: Options) -> None:
        self.faults = 0
        self._depth = 0
        self.recorder: EngineRecorder | None = None
        self._guarded(self._begin, scheduler, options)

    def _begin(self, scheduler: Any, options: Options) -> None:
        self.recorder = EngineRecorder(scheduler, options)

    def add_request(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record that a request was added."""
        request = _first(args, kwargs, "request")
        answer = self._calling(None, "add_request", call, args, kwargs)
        self._record("added", request)
        return answer

    def schedule(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record that a step was planned."""
        output = self._calling(_SCHEDULE, "schedule", call, args, kwargs)
        recorder = self.recorder
        if recorder is not None and not self._depth:
            try:
                recorder.scheduled(output)
            except Exception as error:  # noqa: BLE001  whatever it is, the engine goes on
                self._fail(error)
        return output

    def update_from_output(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record that the result of a step was processed."""
        result = kwargs.get("model_runner_output", args[1] if len(args) > 1 else None)
        answer = self._calling(_COMPLETE, "update_from_output", call, args, kwargs)
        recorder = self.recorder
        if recorder is not None and not self._depth:
            try:
                recorder.completed(result, answer)
            except Exception as error:  # noqa: BLE001  whatever it is, the engine goes on
                self._fail(error)
        return answer

    def finish_requests(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record that requests were ended from outside."""
        answer = self._calling(None, "finish_requests", call, args, kwargs)
        self._record("aborted")
        return answer

    def reset_prefix_cache(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record that the prefix cache was emptied."""
        running = kwargs.get("reset_running_requests", args[0] if args else False)
        try:
            answer = self._calling(None, "reset_prefix_cache", call, args, kwargs)
        except RuntimeError as error:
            if _is_refusal(error):
                self._record("reset", bool(running), False)  # noqa: FBT003  as it was answered
            raise
        self._record("reset", bool(running), bool(answer))
        return answer

    def set_pause_state(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """Record a pause, or its end."""
        answer = self._calling(None, "set_pause_state", call, args, kwargs)
        self._record("paused", _first(args, kwargs, "pause_state"))
        return answer

    def shutdown(self, call: Call, args: Args, kwargs: Options_) -> Any:
        """End the recording."""
        self.close()
        return call(*args, **kwargs)

    def close(self) -> None:
        """End the recording."""
        recorder, self.recorder = self.recorder, None
        if recorder is not None:
            self._guarded(recorder.close)

    def _calling(
        self, action: Action | None, name: str, call: Call, args: Args, kwargs: Options_
    ) -> Any:
        self._depth += 1
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if not _is_refusal(error):
                self._record("crashed", action or Schedule(), name, error)
            raise
        finally:
            self._depth -= 1

    def _record(self, what: str, *args: Any) -> None:
        if self.recorder is not None and (not self._depth or what == "crashed"):
            self._guarded(getattr(self.recorder, what), *args)

    def _guarded(self, hook: Call, *args: Any) -> None:
        try:
            hook(*args)
        except Exception as error:  # noqa: BLE001  whatever it is, the engine goes on
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.faults += 1
        try:
            if self.faults == 1:
                LOG.warning(
                    "schedcheck: recording failed; the engine is not affected", exc_info=error
                )
            if self.recorder is not None:
                self.recorder.begin_anew()
        except Exception:  # noqa: BLE001  the same
            self.faults += 1
        if self.faults >= FAULTS_MAX and self.recorder is not None:
            self.recorder = None
            LOG.warning("schedcheck: recording ends after %d faults", self.faults)


def _is_refusal(error: Exception) -> bool:
    """Whether this is the one exception by which vLLM lawfully refuses to reset its cache."""
    return isinstance(error, RuntimeError) and str(error).startswith("Failed to reset KV cache")


def _first(args: Args, kwargs: Options_, name: str) -> Any:
    return args[0] if args else kwargs.get(name)
