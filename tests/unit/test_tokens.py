"""The toy model must never change: every trace ever written draws its tokens from it."""

from __future__ import annotations

import pytest

from schedcheck.model.request import RequestSpec
from schedcheck.model.tokens import (
    FIRST_TOKEN,
    LAST_TOKEN,
    ROOT,
    STOP_TOKEN,
    UnknownStream,
    extend,
    mix,
    next_token,
    prompt_tokens,
    state_of,
    token_in,
)


def spec(*prompt: tuple[str, int], **fields: object) -> RequestSpec:
    return RequestSpec(prompt=prompt, **fields)


def output_of(name: str, specs: dict[str, RequestSpec], *, count: int) -> tuple[int, ...]:
    """Generate as an engine's worker would: token by token, each a function of all before it."""
    tokens = list(prompt_tokens(name, specs))
    prompt_length = len(tokens)
    for index in range(count):
        tokens.append(next_token(specs[name], state=state_of(tokens), output_index=index))
    return tuple(tokens[prompt_length:])


# --- Pinned values. If one of these fails, the model is wrong, never the test. ---


@pytest.mark.parametrize(
    ("value", "expected"),
    [(0, 0xE220A8397B1DCDAF), (1234567, 6457827717110365317), (2**64 - 1, 0xE4D971771B652C20)],
)
def test_mix_is_splitmix64_as_others_publish_it(value, expected):
    assert mix(value) == expected


def test_the_root_and_the_reserved_tokens_are_pinned():
    assert (ROOT, STOP_TOKEN, FIRST_TOKEN, LAST_TOKEN) == (
        0x5C4EDC4EC0FFEE01,
        7,
        1000,
        2147483647,
    )


def test_states_and_tokens_are_pinned():
    state = extend(ROOT, 1000)
    assert (state, token_in(state), token_in(ROOT)) == (17054981569775721935, 211604995, 1323030321)


def test_prompts_are_pinned():
    specs = {"r0": spec(("sys", 2), ("own", 2)), "r1": spec(("own", 3))}
    assert (prompt_tokens("r0", specs), prompt_tokens("r1", specs)) == (
        (1687973347, 1461670228, 884774692, 1268075793),
        (669934597, 1650827880, 1726973156),
    )


def test_outputs_are_pinned():
    specs = {"r0": spec(("own", 3), max_tokens=4)}
    assert output_of("r0", specs, count=4) == (
        880371236,
        1374797059,
        19726335,
        76450760,
    )


# --- What follows from the definition. ---


def test_equal_streams_share_a_prefix_and_own_ones_part():
    specs = {"r0": spec(("sys", 4), ("own", 4)), "r1": spec(("sys", 4), ("own", 4))}
    first, second = prompt_tokens("r0", specs), prompt_tokens("r1", specs)
    assert first[:4] == second[:4]
    assert not set(first[4:]) & set(second[4:])


def test_a_longer_segment_only_goes_on():
    specs = {"r0": spec(("sys", 3)), "r1": spec(("sys", 9))}
    assert prompt_tokens("r1", specs)[:3] == prompt_tokens("r0", specs)


def test_a_shared_stream_named_like_a_request_is_not_that_requests_own():
    specs = {"r0": spec(("own", 3)), "r1": spec(("r0", 3)), "r2": spec(("own r0", 3))}
    assert len({prompt_tokens(name, specs) for name in specs}) == 3


def test_the_same_stream_twice_repeats_itself():
    tokens = prompt_tokens("r0", {"r0": spec(("sys", 2), ("sys", 2))})
    assert tokens[:2] == tokens[2:]


def test_segments_of_length_zero_add_nothing():
    specs = {"r0": spec(("sys", 0), ("own", 3)), "r1": spec(("sys", 0))}
    assert prompt_tokens("r0", specs) == prompt_tokens("r0", {"r0": spec(("own", 3))})
    assert prompt_tokens("r1", specs) == ()


def test_equal_prefixes_continue_equally():
    specs = {"r0": spec(("sys", 4)), "r1": spec(("sys", 4))}
    assert output_of("r0", specs, count=5) == output_of("r1", specs, count=5)


@pytest.mark.parametrize("change", ["lost", "repeated", "swapped", "invented"])
def test_a_tampered_prefix_continues_differently(change):
    good = list(prompt_tokens("r0", {"r0": spec(("own", 5))}))
    bad = {
        "lost": good[:2] + good[3:],
        "repeated": [*good[:3], good[2], *good[3:]],
        "swapped": [good[1], good[0], *good[2:]],
        "invented": [*good, FIRST_TOKEN],
    }[change]
    assert token_in(state_of(bad)) != token_in(state_of(good))


def test_the_state_can_be_extended_bit_by_bit():
    tokens = (1000, 7, 2**31 - 1)
    assert extend(state_of(tokens[:2]), tokens[2]) == state_of(tokens)


def test_tokens_stay_within_what_engines_can_hold():
    tokens = prompt_tokens("r0", {"r0": spec(("own", 2000))})
    assert all(FIRST_TOKEN <= token <= LAST_TOKEN for token in tokens)
    assert len(set(tokens)) == 2000


def test_the_stop_token_stands_at_stop_at_and_nowhere_else():
    specs = {"r0": spec(("own", 3), max_tokens=5, stop_at=2)}
    output = output_of("r0", specs, count=5)
    assert [index for index, token in enumerate(output) if token == STOP_TOKEN] == [2]


def test_a_stop_changes_nothing_before_it():
    with_stop = {"r0": spec(("own", 3), max_tokens=5, stop_at=2)}
    without = {"r0": spec(("own", 3), max_tokens=5)}
    expected = output_of("r0", without, count=5)[:2]
    assert output_of("r0", with_stop, count=2) == expected


# --- Streams made of another request's output. ---


def test_a_later_turn_holds_the_earlier_ones_output():
    specs = {
        "r2": spec(("sys", 2), ("own", 2), max_tokens=3),
        "r5": spec(("sys", 2), ("output:r2", 3)),
    }
    assert prompt_tokens("r5", specs) == (
        *prompt_tokens("r2", specs)[:2],
        *output_of("r2", specs, count=3),
    )


def test_a_conversation_repeated_whole_shares_the_whole_prefix():
    specs = {
        "r0": spec(("sys", 3), max_tokens=2),
        "r1": spec(("sys", 3), ("output:r0", 2), ("own", 1)),
    }
    conversation = prompt_tokens("r0", specs) + output_of("r0", specs, count=2)
    assert prompt_tokens("r1", specs)[:5] == conversation


def test_the_output_stream_holds_the_stop_token_too():
    specs = {"r0": spec(("own", 2), max_tokens=2, stop_at=1), "r1": spec(("output:r0", 2))}
    assert prompt_tokens("r1", specs)[1] == STOP_TOKEN


def test_turns_may_follow_turns():
    specs = {
        "r0": spec(("own", 1), max_tokens=2),
        "r1": spec(("output:r0", 2), max_tokens=2),
        "r2": spec(("output:r1", 2)),
    }
    assert prompt_tokens("r2", specs) == output_of("r1", specs, count=2)


@pytest.mark.parametrize(
    ("specs", "name"),
    [
        ({"r0": spec(("output:r9", 1))}, "r9"),
        ({"r0": spec(("output:r0", 1))}, "r0"),
        ({"r0": spec(("output:", 1))}, ""),
        ({"r0": spec(("output:r1", 1)), "r1": spec(("output:r0", 1))}, "r0"),
    ],
    ids=["absent", "itself", "nameless", "in a circle"],
)
def test_an_output_that_is_not_there_is_named(specs, name):
    with pytest.raises(UnknownStream) as caught:
        prompt_tokens("r0", specs)
    assert str(caught.value) == (
        f"the prompt of a request continues {name!r}, which is not added yet"
    )
