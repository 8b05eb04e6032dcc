"""Words are read alike by the launcher and by a trainer that is started by hand, or refused by both."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amp_launcher import arguments
from amp_launcher import settings as trainer_settings
from amp_launcher.recipe import find
from amp_launcher.settings import Settings
from amp_launcher.typed import SettingsError, convert, fields_of, is_group, is_text, refuse_control_characters
from amp_launcher.values import from_text
from launcher.config.compose import Composer
from launcher.config.parse import parse, read_values
from launcher.errors import UsageError
from tests.launcher.hosts import spec_of

COMPOSER = Composer()
RECIPE = "gpt"
CHOICES_OF_FILES = ("recipe", "amp", "loss_scale", "data", "profile")
KEYS = {
    **{
        f"{group}.{name}": inner
        for group, cls in {**fields_of(Settings), "train": find(RECIPE).settings}.items()
        if is_group(cls)
        for name, inner in fields_of(cls).items()
    },
    **{name: annotation for name, annotation in fields_of(Settings).items() if name not in CHOICES_OF_FILES},
}
KEYS["train"] = find(RECIPE).settings
del KEYS["framework"]  # a trainer has the one that it is written in
TEXTS = [
    *("", " ", "null", "Null", "auto", "true", "True", "FALSE", "yes", "none", "???", "~", "#", "=", "a=b", "\\"),
    *("0", "1", "2", "-1", "+5", "007", "1_000", "1__0", "0x10", " 5 ", "\u0663", "9" * 5000),
    *("1e3", "1.5", ".5", "5.", "inf", "-inf", "nan", "Infinity", "1e999", "1_0.5"),
    *(
        "'5'",
        '"o1"',
        "o1",
        "O1",
        "fp32",
        "float16",
        "cpu",
        "ddp",
        "nearest",
        "half",
        "swiglu",
        "uint16",
        "stop",
        "restart",
    ),
    *("[1,2]", "[ 1 , 2 ]", "['1']", "[1.5]", "[null]", "[]"),
    *("[a,'b, c']", "[a,b", "a]", "[[1]]", "[a][b]", "[,]", "[head.*]", "['a\\'b']", "[a)b,c]", "[f(a]"),
    *("{every: 5}", "{every:5,keep: 3}", "{lr: 1}", "{a:1}", "{every}", "{}", "{", "{record: true}"),
]
LISTED = ["1,2", "[1],[2]", "choice(1,2)", "choice(a)", "range(0,3)", "glob(*)", "interval(0,1)", "int(3)", "${seed}"]


REFUSED = "refused"


def by_launcher(key: str, text: str) -> str:
    """The settings of a job that the word makes, or that they are refused."""
    try:
        return repr(spec_of(f"recipe={RECIPE}", f"{key}={text}", composer=COMPOSER).training)
    except UsageError:
        return REFUSED


def by_trainer(key: str, text: str) -> str:
    try:
        chosen = arguments.parse([f"{key}={text}"], RECIPE, "torch").settings
        trainer_settings.check_settings(chosen)
    except SettingsError:
        return REFUSED
    return repr(chosen)


def launcher_reads(key: str, text: str) -> str:
    try:
        (override,) = read_values([parse(f"{key}={text}")], RECIPE)
        (value,) = override.values
        return repr(convert(value, KEYS[key], key))
    except (UsageError, SettingsError):
        return REFUSED


def trainer_reads(key: str, text: str) -> str:
    try:
        refuse_control_characters(key, text)
        return repr(from_text(text, KEYS[key], key))
    except SettingsError:
        return REFUSED


@pytest.mark.parametrize("key", KEYS)
def test_every_key_reads_every_text_alike(key: str) -> None:
    read = {text: (launcher_reads(key, text), trainer_reads(key, text)) for text in TEXTS}
    assert not {text: both for text, both in read.items() if len(set(both)) > 1}
    assert {launcher for launcher, _ in read.values()} > {REFUSED} or is_text(KEYS[key])


@pytest.mark.parametrize("key", KEYS)
def test_several_values_are_a_sweep_to_the_launcher_and_refused_by_a_trainer(key: str) -> None:
    for text in LISTED:
        if not is_text(KEYS[key]) or text.startswith("choice"):
            assert by_trainer(key, text) == REFUSED


@settings(max_examples=150)
@given(
    key=st.sampled_from(list(KEYS)),
    text=st.one_of(st.sampled_from(TEXTS), st.text("019.-+_eEnulatr[]{}'\\ :o", max_size=10)),
)
def test_a_word_makes_the_same_settings_in_launcher_and_trainer(key: str, text: str) -> None:
    assert by_launcher(key, text) == by_trainer(key, text)
