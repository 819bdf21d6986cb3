"""Skills: which handlers are taken, how arguments are checked, what becomes of results."""

from __future__ import annotations

import enum
import functools
import json
import math
import os
from collections.abc import Awaitable, Callable  # noqa: TC003 - annotations of handlers are read
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional, cast

import pytest
from hypothesis import given
from pydantic import (
    AfterValidator,
    BaseModel,
    DirectoryPath,
    Field,
    FilePath,
    FutureDatetime,
    NewPath,
    PastDate,
    PastDatetime,
    field_validator,
)

from orchestrator import Agent, Skill, TaskContext
from orchestrator.core.errors import InvalidInput
from tests.helpers.cases import each_case
from tests.helpers.json_values import alike, json_values

if TYPE_CHECKING:
    from decimal import Decimal

CONTEXT = cast("TaskContext", object())


def skill_of(handler: Callable[..., Awaitable[Any]], **options: Any) -> Skill[..., Any]:
    """Make a skill of a handler."""
    made: Skill[..., Any] = Agent("editor").skill(**options)(handler)
    return made


def bind(skill: Skill[..., Any], args: object) -> dict[str, Any]:
    """Bind JSON arguments."""
    return skill.bind(json.dumps(args).encode(), CONTEXT)


class Note(BaseModel):
    """A model as a parameter."""

    text: str
    at: datetime | None = None


class Aliased(BaseModel):
    """A model whose JSON has other names."""

    word_count: int = Field(alias="wordCount")


class Explosive(BaseModel):
    """A model whose validator has a bug."""

    text: str

    @field_validator("text")
    @classmethod
    def _explode(cls, value: str) -> str:
        raise ZeroDivisionError(f"a bug met {value}")


# ----------------------------------------------------------------------------------------------------------- decorating


def test_the_decorator_works_bare_and_called() -> None:
    """Bare, the skill has the function's name; called, it takes a name and options."""
    agent = Agent("editor")

    @agent.skill
    async def first(text: str) -> int:
        """Count."""
        return len(text)

    @agent.skill(name="second.one", timeout=timedelta(minutes=1), max_attempts=7, max_deaths=2, backoff=1.5)
    async def other() -> None: ...

    assert list(agent.skills) == ["first", "second.one"]
    assert (first.name, first.__doc__) == ("first", "Count.")
    options = other.options
    assert (options.timeout_s, options.max_attempts, options.max_deaths, options.retry.delays) == (60.0, 7, 2, 1.5)


async def test_a_skill_can_be_called_like_its_handler() -> None:
    """A test of a handler needs no server: calling the skill calls the function."""

    async def double(x: int) -> int:
        return 2 * x

    assert await skill_of(double)(21) == 42


@pytest.mark.parametrize("position", [0, 1, 2])
def test_the_context_is_given_wherever_it_stands(position: int) -> None:
    """First, last, in the middle, or by keyword only: the parameter annotated with it receives the context."""

    async def first(ctx: TaskContext, a: int) -> None: ...
    async def last(a: int, ctx: TaskContext) -> None: ...
    async def keyword(a: int, *, context: Optional[TaskContext] = None) -> None: ...  # noqa: UP045

    handler = (first, last, keyword)[position]
    values = bind(skill_of(handler), {"a": 1})
    assert set(values.values()) == {1, CONTEXT}


def test_an_argument_cannot_take_the_place_of_the_context() -> None:
    """The context's parameter is no argument: giving it is refused."""

    async def work(ctx: TaskContext) -> None: ...

    with pytest.raises(InvalidInput, match="ctx: Extra inputs"):
        bind(skill_of(work), {"ctx": 1})


def test_handlers_that_cannot_be_called_by_name_are_refused() -> None:
    """Methods of no object, `*args`, `**kwargs`, positional-only parameters and two contexts are refused."""

    async def star(*args: int) -> None: ...
    async def stars(**options: int) -> None: ...
    async def positional(a: int, /) -> None: ...
    async def twice(a: TaskContext, b: TaskContext) -> None: ...
    async def method(self: Any, a: int) -> None: ...

    for handler, named in (
        (method, "unbound method"),
        (star, r"\*args"),
        (stars, r"\*\*options"),
        (positional, "'a: int'"),
        (twice, "two"),
    ):
        with pytest.raises(InvalidInput, match=named):
            skill_of(handler)


def test_the_kind_of_a_handler_says_where_it_runs() -> None:
    """`async def` in the loop, `def` in a thread, `process=True` in a process."""

    async def waits() -> None: ...
    def blocks() -> None: ...

    assert skill_of(waits).kind == "loop"
    assert skill_of(cast("Any", blocks)).kind == "thread"
    assert skill_of(cast("Any", functools.partial(blocks)), name="partly").kind == "thread"
    assert skill_of(cast("Any", os.getpid), name="pid", process=True).kind == "process"


def test_objects_that_are_called_like_a_handler_are_handlers() -> None:
    """An object with a `__call__` and the method of an object run where a function of that kind would."""

    class Waiting:
        async def __call__(self, x: int) -> None: ...
        def block(self, x: int) -> None: ...

    waiting = Waiting()
    assert skill_of(cast("Any", waiting), name="waits").kind == "loop"
    assert skill_of(cast("Any", waiting.block)).kind == "thread"


def test_handlers_that_cannot_run_are_refused() -> None:
    """A generator has no result, a value is no function, and what has no name needs one."""

    async def stream() -> Any:
        yield 1

    def plain_stream() -> Any:
        yield 1

    for handler, told in (
        (stream, "generator"),
        (plain_stream, "generator"),
        (3, "must be a function"),
        (int, "cannot be evaluated"),
    ):
        with pytest.raises(InvalidInput, match=told):
            skill_of(cast("Any", handler), name="x")
    with pytest.raises(InvalidInput, match="has no name"):
        skill_of(cast("Any", functools.partial(plain_stream)))


def test_handlers_that_no_other_process_could_find_are_refused() -> None:
    """With process=True a handler stands at the top of a module, takes no context and gives no signs of life."""

    def local() -> None: ...
    def needs_context(ctx: TaskContext) -> None: ...

    needs_context.__qualname__ = "needs_context"
    for handler, options, told in (
        (local, {}, "top of a module"),
        (lambda: None, {}, "top of a module"),
        (functools.partial(os.getpid), {}, "top of a module"),
        (needs_context, {}, "no context"),
        (os.getpid, {"silence": 5}, "silence= needs a context"),
    ):
        with pytest.raises(InvalidInput, match=told):
            skill_of(cast("Any", handler), name="x", process=True, **cast("Any", options))


def test_annotations_that_cannot_be_used_are_refused() -> None:
    """A name that exists for type checkers only, and a type that JSON cannot be read as, are refused when decorated."""

    async def unknown(price: Decimal) -> None: ...
    async def shapeless(thing: Callable[[], Plain]) -> None: ...
    async def odd(thing: Plain) -> None: ...
    async def odd_result() -> Plain:
        return Plain()

    with pytest.raises(InvalidInput, match="import its types at module level"):
        skill_of(unknown)
    for handler in (odd, odd_result):
        with pytest.raises(InvalidInput, match="type that pydantic cannot validate"):
            skill_of(handler)
    assert skill_of(shapeless).name == "shapeless"


class Plain:
    """No pydantic type."""


@each_case(
    "options",
    [
        {"max_attempts": 0}, {"max_attempts": True}, {"max_deaths": 1001}, {"backoff": "linear"}, {"backoff": -1},
        {"timeout": 0}, {"timeout": -1}, {"timeout": "1"}, {"name": "two words"}, {"name": "a/b"},
    ])  # fmt: skip
def test_options_that_cannot_work_are_refused(options: dict[str, Any]) -> None:
    """Options are checked when decorated."""

    async def work() -> None: ...

    with pytest.raises(InvalidInput):
        skill_of(work, **options)


def test_two_skills_of_one_name_are_refused() -> None:
    """The second is refused with what to do."""
    agent = Agent("editor")

    @agent.skill
    async def work() -> None: ...

    with pytest.raises(InvalidInput, match="two skills named 'work'"):

        @agent.skill(name="work")
        async def other() -> None: ...


# ------------------------------------------------------------------------------------------------------------ arguments


def test_arguments_are_validated_from_json() -> None:
    """Models, dates, enums, sets and defaults: the handler gets what its signature says."""

    class Colour(enum.Enum):
        RED = "red"

    async def work(  # noqa: PLR0917
        note: Note,
        colour: Literal["red", "blue"],
        when: timedelta,
        words: set[str],
        size: Annotated[int, Field(gt=0)] = 3,
        more: list[int] = [],  # noqa: B006 - what is tested
    ) -> None: ...

    skill = skill_of(work)
    args = {"note": {"text": "x", "at": "2030-01-01T00:00:00Z"}, "colour": "red", "when": 1.5, "words": ["a", "a"]}
    values = bind(skill, args)
    assert values == {
        "note": Note(text="x", at=datetime(2030, 1, 1, tzinfo=UTC)),
        "colour": "red",
        "when": timedelta(seconds=1.5),
        "words": {"a"},
        "size": 3,
        "more": [],
    }
    values["more"].append(1)
    assert bind(skill, args)["more"] == []


@each_case(
    ("args", "told"),
    [
        ({"a": "x", "b": []}, "a: Input should be a valid integer"),
        ({"b": []}, "a: Field required"),
        ({"a": 1, "b": ["x"]}, r"b\.0: Input should be a valid integer"),
        ({"a": 1, "b": [], "c": 1}, "c: Extra inputs are not permitted"),
        ({"a": 1, "b": [], "argument 0": 1}, "argument 0"),
        ([], "arguments: Input should be an object"),
    ],
)
def test_arguments_that_do_not_fit_are_named(args: object, told: str) -> None:
    """The refusal names the skill, the argument and the reason; before a submit it is the same."""

    async def work(a: int, b: list[int]) -> None: ...

    skill = skill_of(work)
    with pytest.raises(InvalidInput, match=f"'work': .*{told}") as by_worker:
        bind(skill, args)
    with pytest.raises(InvalidInput) as by_client:
        skill.check_args(json.dumps(args).encode())
    assert str(by_client.value) == str(by_worker.value)


@each_case(
    ("kind", "value"),
    [
        (Explosive, {"text": "x"}),
        (FilePath, "/no/such/file"),
        (DirectoryPath, "/no/such/folder"),
        (NewPath, "/no/such/folder/file"),
        (int | FilePath, "/no/such/file"),
        (PastDatetime, "2999-01-01T00:00:00Z"),
        (PastDate, "2999-01-01"),
        (FutureDatetime, "2001-01-01T00:00:00Z"),
    ],
)
def test_what_only_a_worker_can_tell_is_submitted(kind: Any, value: object) -> None:
    """A validator that breaks, and what depends on files or the clock, refuses no submit; `bind` refuses them here."""

    async def work(thing: object) -> None: ...

    work.__annotations__["thing"] = kind
    skill, args = skill_of(work), {"thing": value}
    with pytest.raises(InvalidInput):
        bind(skill, args)
    skill.check_args(json.dumps(args).encode())
    with pytest.raises(InvalidInput, match="thing: Field required; thong: Extra inputs"):
        skill.check_args(b'{"thong": 1}')


def test_a_refusal_by_a_validator_refuses_the_submit() -> None:
    """What a validator of the user's own says of a value holds before a submit as well."""

    def positive(value: int) -> int:
        if value < 1:
            raise ValueError("nobody to book for")
        return value

    async def book(seats: int) -> None: ...

    book.__annotations__["seats"] = Annotated[int, AfterValidator(positive)]
    skill = skill_of(book)
    skill.check_args(b'{"seats": 1}')
    with pytest.raises(InvalidInput, match="do not fit 'book': seats: Value error, nobody to book for"):
        skill.check_args(b'{"seats": 0}')


def test_parameters_may_have_any_name() -> None:
    """Names that pydantic keeps for itself, or with an underscore in front, are names like others."""
    names = [
        "json",
        "copy",
        "schema",
        "model_config",
        "model_dump",
        "model_fields",
        "_hidden",
        "__doc__",
        "self_",
        "validate",
    ]
    namespace: dict[str, Any] = {}
    exec(f"async def work({', '.join(f'{name}: int' for name in names)}) -> None: ...", namespace)
    args = {name: number for number, name in enumerate(names)}
    assert bind(skill_of(namespace["work"]), args) == args


def test_models_are_read_by_alias_and_by_name() -> None:
    """A field with an alias is read under both names, so that what a model dumps can be read again."""

    async def work(counted: Aliased) -> Aliased:
        return counted

    skill = skill_of(work)
    assert bind(skill, {"counted": {"wordCount": 5}})["counted"].word_count == 5
    assert bind(skill, {"counted": {"word_count": 5}})["counted"].word_count == 5
    assert skill.read_result(skill.dump_result(Aliased(wordCount=5), max_bytes=100)).word_count == 5


def test_a_bug_in_a_validator_is_invalid() -> None:
    """A validator that raises anything at all is reported as arguments that could not be checked."""

    async def work(thing: Explosive) -> None: ...

    with pytest.raises(InvalidInput, match="ZeroDivisionError: a bug met x"):
        bind(skill_of(work), {"thing": {"text": "x"}})


@given(json_values())
def test_unannotated_arguments_and_results_are_unchanged(value: Any) -> None:
    """Without a type, argument and result are any JSON, unchanged."""

    async def work(value) -> Any: ...  # type: ignore[no-untyped-def]  # noqa: ANN001

    skill = skill_of(work)
    assert alike(bind(skill, {"value": value})["value"], value)
    assert alike(json.loads(skill.dump_result(value, max_bytes=10**6)), value)


# -------------------------------------------------------------------------------------------------------------- results


@dataclass
class Pair:
    """A dataclass as a result."""

    left: int
    right: datetime


@each_case(
    ("kind", "value"),
    [
        (Note, Note(text="é")), (Pair, Pair(1, datetime(2030, 1, 1, tzinfo=UTC))), (dict[int, str], {1: "a"}),
        (set[int], {1, 2}), (tuple[int, str], (1, "a")), (type(None), None), (float, 1.0), (bytes, b"abc"),
        (list[Note], [Note(text="a")]), (Note | None, None), (dict[str, Any], {"deep": [1.0, 2**64]}),
    ])  # fmt: skip
def test_results_come_back_as_their_type(kind: Any, value: Any) -> None:
    """What the handler's annotation says is what a typed handle reads."""

    async def work() -> Any: ...

    work.__annotations__["return"] = kind
    skill = skill_of(work)
    assert skill.read_result(skill.dump_result(value, max_bytes=1000)) == value


@each_case(
    ("kind", "value", "told"),
    [
        (int, "text", "Expected `int`"), (Any, object(), "unknown type"), (Any, math.nan, "NaN"),
        (float, math.inf, "NaN"),
        (list[float], [math.nan], "NaN"), (dict[str, Any], {"a": -math.inf}, "NaN"),
        (str, "\ud800", "surrogate"),
        (Any, b"\xff", "utf-8"), (str, "x" * 999, "more than the 100"),
    ])  # fmt: skip
def test_results_that_do_not_fit_are_refused(kind: Any, value: Any, told: str) -> None:
    """A result of another type, one that JSON lacks, or one too large is refused with the reason."""

    async def work() -> Any: ...

    work.__annotations__["return"] = kind
    with pytest.raises(InvalidInput, match=f"(?s)result of 'work'.*{told}"):
        skill_of(work).dump_result(value, max_bytes=100)


def test_results_as_deep_as_allowed_can_be_read() -> None:
    """The deepest result that is stored is one that a typed handle can read."""

    async def work() -> Any: ...

    skill = skill_of(work)
    value: Any = 1
    for _ in range(128):
        value = [value]
    assert skill.read_result(skill.dump_result(value, max_bytes=1000)) == value
    with pytest.raises(InvalidInput, match="deeper"):
        skill.dump_result([value], max_bytes=1000)


@each_case("value", [math.nan, -math.inf, [[math.inf]], {"a": [1, math.nan]}])
def test_long_results_are_checked_as_short_ones(value: Any) -> None:
    """NaN, infinities and deep nesting are found beside a long text; words like them in the text are no problem."""

    async def work() -> Any: ...

    skill, text = skill_of(work), "NaN Infinity [{" * 1000
    assert skill.read_result(skill.dump_result([text, 1.5], max_bytes=10**6)) == [text, 1.5]
    with pytest.raises(InvalidInput, match="NaN"):
        skill.dump_result(["x" * 5000, value], max_bytes=10**6)
    deep: Any = "x" * 5000
    for _ in range(128):
        deep = [deep]
    assert skill.read_result(skill.dump_result(deep, max_bytes=10**6)) == deep
    with pytest.raises(InvalidInput, match="nested"):
        skill.dump_result([deep], max_bytes=10**6)
