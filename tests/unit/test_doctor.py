"""The doctor: a target that is what it says, and targets that are not, each in one way."""

from __future__ import annotations

import pytest
from attrs import Factory, evolve, frozen

from schedcheck.engine import doctor
from schedcheck.engine.doctor import Examination
from schedcheck.engine.events import Checked, Examined, Fault
from schedcheck.engine.jobs import DoctorJob
from schedcheck.engine.perform import perform
from schedcheck.model.capability import Capability
from schedcheck.model.check import Check, State
from schedcheck.model.config import SchedulerConfig
from schedcheck.model.options import NO_OPTIONS, Options
from schedcheck.reference.target import CAPABILITIES, ReferenceTarget, reference_target

PLAIN = ReferenceTarget("plain")


def examined(target: object) -> dict[str, Check]:
    """Return what is found of a target, by what was looked at."""
    checks = Examination(target=target, target_text="t", options=NO_OPTIONS).checks()
    return {one.what: one for one in checks}


def worst(checks: dict[str, Check]) -> dict[str, State]:
    return {one.what: one.state for one in checks.values() if one.state is not State.OK}


@frozen
class Patient:
    """The reference with one thing that is not as it should be."""

    capabilities: frozenset[Capability] = CAPABILITIES
    shifts: bool = False
    """Answers another configuration each time."""
    forgets: bool = False
    """Its snapshot has no queues."""
    malformed: bool = False
    raises_every: int = 0
    """After so many calls one raises; 0: none does."""
    calls: list[int] = Factory(list)

    name, version, dialects = "patient", "1", PLAIN.dialects

    def honours(self, config: SchedulerConfig) -> SchedulerConfig:
        return evolve(config, blocks_total=config.blocks_total + 1) if self.shifts else config

    def open(self, config: SchedulerConfig):
        sut = PLAIN.open(config)
        if self.forgets:
            look = sut.snapshot
            sut.snapshot = lambda: evolve(look(), queues={})
        if self.malformed:
            sut.has_work = lambda: 1
        if self.raises_every:
            plain = sut.has_work

            def answer() -> bool:
                self.calls.append(1)
                if len(self.calls) % self.raises_every == 0:
                    raise OSError("gone")
                return plain()

            sut.has_work = answer
        return sut


def test_the_reference_is_what_it_says_and_every_claim_is_seen():
    checks = examined(PLAIN)
    assert {} == worst(checks)
    claims = [what for what in checks if what.startswith("capability ")]
    assert sorted(f"capability {one}" for one in CAPABILITIES) == sorted(claims)


def test_a_claim_that_nothing_shows_is_missing(monkeypatch):
    monkeypatch.setattr(doctor, "TRACES_MAX", 45)
    checks = examined(Patient(forgets=True))
    assert {"capability SHOWS_QUEUES": State.MISSING} == worst(checks)
    assert "claimed, and never seen in 45 traces" == checks["capability SHOWS_QUEUES"].detail
    assert checks["capability SHOWS_QUEUES"].fix


def test_what_is_seen_and_not_claimed_is_said():
    lacking = CAPABILITIES - {Capability.SHOWS_QUEUES}
    checks = examined(Patient(capabilities=lacking))
    assert {"capability SHOWS_QUEUES": State.CHANGED} == worst(checks)
    assert (
        "not claimed, yet seen: the snapshot had queues" in checks["capability SHOWS_QUEUES"].detail
    )


def test_a_configuration_that_is_honoured_otherwise_each_time_is_said():
    check = next(
        Examination(target=Patient(shifts=True), target_text="t", options=NO_OPTIONS).checks()
    )
    assert ("configurations", State.CHANGED) == (check.what, check.state)


def test_an_answer_outside_the_protocol_is_said(monkeypatch):
    monkeypatch.setattr(doctor, "TRACES_MAX", 2)
    check = examined(Patient(malformed=True))["answers"]
    assert State.CHANGED is check.state
    assert "it returned 1, not bool" in check.detail


@pytest.mark.parametrize(("every", "state"), [(1, State.CHANGED), (3_000, State.OK)])
def test_calls_that_raise_are_counted_and_too_many_are_said(monkeypatch, every, state):
    monkeypatch.setattr(doctor, "TRACES_MAX", 40)
    check = examined(Patient(raises_every=every))["calls"]
    assert state is check.state
    assert "first ENG-001/OSError-in-answer: OSError: gone" in check.detail


@pytest.mark.parametrize(
    ("mutant", "what"),
    [("changed-by-looking", "looks"), ("order-depends-on-history", "determinism")],
)
def test_what_is_not_the_same_twice_is_said(mutant, what):
    assert State.CHANGED is examined(reference_target(mutant))[what].state


def test_a_job_says_each_check_and_then_that_it_is_over():
    heard: list[object] = []
    perform(DoctorJob(target="reference"), heard.append)
    assert isinstance(heard[0], Checked)
    assert Examined(target="reference", version="") == heard[-1]


def test_a_target_that_cannot_be_loaded_is_a_fault():
    heard: list[object] = []
    perform(DoctorJob(target="reference", options=Options(scheduler="a:B")), heard.append)
    (fault,) = heard
    assert isinstance(fault, Fault)
    assert "takes no --scheduler" in fault.message
