"""The order to a worker and its answer as JSON texts. Both are checked while they are read; neither can contain a secret.

Functions travel as names. Steps, checks and the host do not travel back: the answer has the numbers of the steps. The commands of
changes do not travel at all: a worker plans again before it changes a host.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import lru_cache, partial
from typing import Any, get_type_hints

from rigwright.core import errors, secrets, submodules
from rigwright.core.change import Change
from rigwright.core.errors import HostError, RigwrightError
from rigwright.core.lazy_dataclasses import dataclass
from rigwright.core.typed_json import Codec, Form, dumps, loads
from rigwright.engine import events, plugins
from rigwright.engine.host_run import Options
from rigwright.engine.nccl_programs import Programs
from rigwright.engine.nccl_test import NcclTestOptions
from rigwright.engine.playbook import BoundPlaybook, Check, Step
from rigwright.engine.report import HostReport
from rigwright.facts import Fact, Unavailable, Unreadable
from rigwright.facts.nccl import Document
from rigwright.features.limits_find.points import Sweep
from rigwright.features.nodes.facts import NodesMeasured
from rigwright.features.stress.facts import Stress
from rigwright.features.training_smoke.facts import Smoke
from rigwright.fleet.host_job import HostAction, HostJob
from rigwright.fleet.report_shapes import KEPT, MACHINE, LimitRow
from rigwright.history.machines import RecordedMachines
from rigwright.inventory.model import Host


@dataclass(frozen=True)
class RemoteJob:
    """An action for one host that a worker is to run, with the host's report so far, which has no events.

    `announced`: the event Connected was shown. `at_s`: seconds since the run began. `recorded` is not part of the order: a slice has it once.
    """

    bound: BoundPlaybook
    options: Options
    action: HostAction
    report: HostReport
    announced: bool
    at_s: float
    recorded: RecordedMachines = field(default_factory=RecordedMachines)


def order_text(job: RemoteJob) -> str:
    """The order as JSON text. Raises HostError for an action that is no function of a module, or that has a parameter
    without a JSON form; ValueError for another value without one, such as a secret."""
    report = _report_codec(job.bound).write(job.report, HostReport)
    return dumps({"job": _ORDER.write(job, RemoteJob), "report": report})


def read_order(text: object) -> RemoteJob:
    """The order that `order_text` wrote. Raises ValueError for another text."""
    whole_order = _object(loads(text), ("job", "report"))
    job: RemoteJob = _ORDER.read(whole_order["job"], RemoteJob)
    return replace(job, report=_report_codec(job.bound).read(whole_order["report"], HostReport))


def answer_text(bound: BoundPlaybook, report: HostReport) -> str:
    """The report as JSON text, without secrets that this process knows. Raises ValueError for a value without a JSON form."""
    written = _report_codec(bound).write(report, HostReport)
    return dumps({"host": bound.host.name, "report": secrets.redacted_document(written)})


def failure_text(host: str, error: BaseException) -> str:
    """The answer of a worker that made no report."""
    text = f"{type(error).__name__}: {error}"[:_LONGEST]
    return dumps({"host": host, "failed": secrets.redacted(text).encode("utf-8", "replace").decode()})


_LONGEST = 500
"""Characters of the error of a worker that are shown."""


def read_answer(bound: BoundPlaybook, text: object) -> HostReport:
    """The report that `answer_text` wrote about this host; raises HostError for any other answer."""
    host = bound.host.name
    try:
        answer = loads(text)
        if isinstance(answer, dict) and isinstance(answer.get("failed"), str):
            fix = "look at the worker's log; then run the same command again, which goes on from where the host is"
            raise HostError(host, f"the worker could not do the work ({answer['failed'][:_LONGEST]})", "a report", fix)
        _object(answer, ("host", "report"))
        if answer["host"] != host:
            raise ValueError("it is about another host")
        report: HostReport = _report_codec(bound).read(answer["report"], HostReport)
    except (ValueError, TypeError, RecursionError) as error:
        found = f"the worker's answer is no report of this host: {error}"
        fix = "look at the worker's log, and at who can reach the scheduler and its workers"
        raise HostError(host, found, "the report of the work", fix) from None
    return report


def _object(document: Any, keys: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(document, dict) or document.keys() != set(keys):
        raise ValueError(f"no object with {' and '.join(keys)}")
    return document


def _step_form(kind: plugins.Kind, made: type[Step] | type[Check], key: str) -> Form:
    """Steps and checks: the function by its name, its parameters by their annotations."""
    plain_fields = ("name", key, "where", *(("skipped",) if made is Step else ()))

    def write(bound: Any) -> Any:
        types = get_type_hints(bound.function)
        parameters = {name: _PARAMETERS.write(value, types[name]) for name, value in bound.parameters.items()}
        return {**{name: getattr(bound, name) for name in plain_fields}, "parameters": parameters}

    def read(given: Any) -> Any:
        _object(given, (*plain_fields, "parameters"))
        texts = {name: _PARAMETERS.read(given[name], str) for name in plain_fields}
        function = plugins.find(kind, texts[key])
        if function is None:
            raise ValueError(f"{texts[key]} is none of the {kind}")
        types = get_type_hints(function)
        parameters = {
            name: _PARAMETERS.read(value, types[name])
            for name, value in _PARAMETERS.read(given["parameters"], dict[str, Any]).items()
        }
        return made(**texts, function=function, parameters=parameters)

    return Form(write, read)


def _write_action(action: HostAction) -> dict[str, Any]:
    function = action.func if isinstance(action, partial) else action
    given = action.keywords if isinstance(action, partial) else {}
    module, name = function.__module__, getattr(function, "__qualname__", "")
    if getattr(sys.modules[module], name, None) is not function or (isinstance(action, partial) and action.args):
        found = f"{module}.{name} cannot be sent to a worker"
        raise HostError(
            "the action", found, "a function of a module, or a functools.partial of one with named arguments"
        )
    types = _PARAMETERS.hints(function)
    arguments = {key: _PARAMETERS.write(value, types[key]) for key, value in given.items()}
    return {"module": module, "name": name, "arguments": arguments}


def _read_action(given: Any) -> HostAction:
    _object(given, ("module", "name", "arguments"))
    function = getattr(importlib.import_module(given["module"]), given["name"], None)
    if not inspect.isfunction(function) or next(iter(inspect.signature(function).parameters), "") != "job":
        raise ValueError(f"{given['module']}.{given['name']} is no action")
    types = _PARAMETERS.hints(function)
    arguments = {key: _PARAMETERS.read(value, types[key]) for key, value in given["arguments"].items()}
    return partial(function, **arguments) if arguments else function


_NAMES = {
    "Document": Document,
    "Stress": Stress,
    "NodesMeasured": NodesMeasured,
    "Smoke": Smoke,
    "Sweep": Sweep,
    "NcclTestOptions": NcclTestOptions,
    "Programs": Programs,
    "HostJob": HostJob,
}
"""Classes that other modules import only for type checking."""

_PARAMETERS = Codec(names=_NAMES)

_ORDER = Codec(
    forms={
        Step: _step_form("operations", Step, "operation"),
        Check: _step_form("checks", Check, "check"),
        HostAction: Form(_write_action, _read_action),
        (RemoteJob, "report"): Form(lambda _report: None, lambda _none: None),
    },
    left_out=frozenset(
        {(RemoteJob, "recorded"), *((Host, name) for name in ("origins", "closed", "opened", "secret"))}
    ),
)

_ERRORS: tuple[type[RigwrightError], ...] = (
    RigwrightError,
    errors.UsageError,
    errors.InputError,
    errors.HistoryError,
    errors.HostError,
    errors.ConsentError,
    errors.Interrupted,
    errors.Unreachable,
)


def _error_form(base: type[RigwrightError]) -> Form:
    known = {error.__name__: error for error in _ERRORS if issubclass(error, base)}

    def write(error: RigwrightError) -> dict[str, str]:
        name = next((each.__name__ for each in type(error).__mro__ if each.__name__ in known), "")
        return {"kind": name, "where": error.where, "found": error.found, "expected": error.expected, "fix": error.fix}

    def read(given: Any) -> RigwrightError:
        _object(given, ("kind", "where", "found", "expected", "fix"))
        texts = _PARAMETERS.read(given, dict[str, str])
        if texts["kind"] not in known:
            raise ValueError(f"{texts['kind'][:60]!r} is no error")
        return known[texts["kind"]](texts["where"], texts["found"], texts["expected"], texts["fix"])

    return Form(write, read)


def _report_codec(bound: BoundPlaybook) -> Codec:
    """The codec of reports about this host: its steps are numbers, its facts have the types that their parsers return."""
    steps = bound.steps

    def step(number: Any) -> Step:
        if type(number) is not int or not 0 <= number < len(steps):
            raise ValueError("a step that was not ordered")
        return steps[number]

    def facts(write: Callable[[str, Any], Any], read: Callable[[str, Any], Any]) -> Form:
        return Form(
            lambda values: {name: write(name, value) for name, value in values.items()},
            lambda given: {name: read(name, value) for name, value in _PARAMETERS.read(given, dict[str, Any]).items()},
        )

    return Codec(
        forms={
            Host: Form(lambda _host: None, lambda _none: bound.host),
            Step: Form(steps.index, step),
            RigwrightError: _error_form(RigwrightError),
            HostError: _error_form(HostError),
            (HostReport, "facts"): facts(_write_fact, _read_fact),
            (HostReport, "kept"): facts(_write_kept, _read_kept),
            (HostReport, "rows"): _document(list[LimitRow], tuple),
            (HostReport, "machine"): _document(MACHINE | None),
            (HostReport, "fleet"): _document(None),  # compared here, not by a worker
            **{(event, "host"): Form(lambda _name: None, lambda _none: bound.host.name) for event in _EVENTS},
        },
        kinds={events.Event: _EVENTS},
        left_out=frozenset({(Change, "commands")}),
        names=_NAMES,
    )


def _document(hint: Any, made: Callable[[Any], Any] = lambda document: document) -> Form:
    """JSON types that stay JSON types, and are checked as this type."""

    def read(given: Any) -> Any:
        _PARAMETERS.read(given, hint)
        return made(given)

    return Form(lambda value: _PARAMETERS.write(value, Any), read)


_EVENTS = (events.Connected, events.StepStarted, events.OutputLine, events.StepDone, events.Note)


def _write_fact(name: str, value: Any) -> dict[str, Any]:
    if isinstance(value, Unreadable):
        return {"unreadable": str(value), "fix": value.fix}
    if isinstance(value, Unavailable):
        return {"unavailable": str(value)}
    try:
        return {"value": _PARAMETERS.write(value, fact_type(name))}
    except ValueError as error:  # such as a number that is none
        return {"unreadable": f"{name}: {error}", "fix": ""}


def _read_fact(name: str, given: Any) -> Any:
    given = _PARAMETERS.read(given, dict[str, Any])
    if given.keys() == {"value"}:
        return _PARAMETERS.read(given["value"], fact_type(name))
    texts: Mapping[str, str] = _PARAMETERS.read(given, dict[str, str])
    if texts.keys() == {"unreadable", "fix"}:
        return Unreadable(texts["unreadable"], texts["fix"])
    if texts.keys() == {"unavailable"}:
        return Unavailable(texts["unavailable"])
    raise ValueError(f"the fact {name[:60]} without a value")


def _write_kept(name: str, value: Any) -> Any:
    return _PARAMETERS.write(value, Any if name in KEPT else fact_type(name))


def _read_kept(name: str, given: Any) -> Any:
    return _document(KEPT[name]).read(given) if name in KEPT else _PARAMETERS.read(given, fact_type(name))


@lru_cache(maxsize=256)
def fact_type(name: str) -> Any:
    """The type that the parser of a fact returns; Any for a name that no fact of a module has."""
    module = name.partition(".")[0]
    if not submodules.load("rigwright.facts", module):
        return Any
    known = (value for value in vars(sys.modules[f"rigwright.facts.{module}"]).values() if isinstance(value, Fact))
    return next((get_type_hints(fact.parse).get("return", Any) for fact in known if fact.name == name), Any)
