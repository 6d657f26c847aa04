from __future__ import annotations

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.recipe import CalibrationOptions, GraphOptions, Recipe

recipes = st.builds(
    Recipe,
    precision=st.sampled_from(["fp16", "a16w8", "a16w4"]),
    activation_range=st.sampled_from(["min-max", "percentile"]),
    percentile=st.floats(50.1, 99.999),
    calibration=st.builds(
        CalibrationOptions, text=st.text(max_size=20), tokens=st.integers(2, 10**6), seed=st.integers()
    ),
    graph=st.builds(
        GraphOptions,
        chunks=st.integers(1, 99),
        prefill_tokens=st.sampled_from([32, 48, 64]),
        logits=st.sampled_from(["all", "last"]),
        external_embedding=st.booleans(),
    ),
)


@given(recipes)
@settings(max_examples=60)
def test_yaml_gives_back_the_recipe_and_its_hash(tmp_path_factory, recipe):
    path = tmp_path_factory.mktemp("r") / "r.yaml"
    recipe.save(path)
    loaded = Recipe.load(path)
    assert loaded == recipe and loaded.hash == recipe.hash


@given(recipes, recipes)
def test_hashes_tell_recipes_apart(one, other):
    assert (one.hash == other.hash) == (one == other)
    assert one.quantization_hash == one.model_copy(update={"graph": other.graph}).quantization_hash


def test_hash_is_stable():
    """Stage folders carry it. If this fails, folders that users have are no longer found: say so in the changelog."""
    assert Recipe().hash == "d5b0713b6b7b"
    assert Recipe().quantization_hash == "95802fa41dd9"


def test_defaults_are_the_documented_ones():
    recipe = Recipe()
    assert (recipe.precision, recipe.graph.chunks, recipe.graph.prefill_tokens) == ("a16w8", 1, 32)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("precison: a16w8", "precison"),
        ("graph: {chunk: 2}", "graph.chunk"),
        ("calibration: {length: 1}", "calibration.length"),
        ("precision: a8w8", "precision"),
        ("graph: {prefill_tokens: 40}", "prefill_tokens"),
        ("graph: {prefill_tokens: 16}", "prefill_tokens"),  # compiles, and computes something else
        ("graph: {chunks: 0}", "graph.chunks"),
        ("percentile: 100", "percentile"),
        ("1: 2", "1"),
    ],
)
def test_unknown_keys_and_values_are_named(tmp_path, text, named):
    path = tmp_path / "r.yaml"
    path.write_text(text)
    with pytest.raises(RwkvlabError) as caught:
        Recipe.load(path)
    assert named in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "- a16w8", "a: [", "!!python/object/apply:os.system ['touch hacked']", "\x00"])
def test_other_files_are_refused_and_nothing_runs(tmp_path, monkeypatch, text):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(RwkvlabError, match=r"r\.yaml"):
        Recipe.load(tmp_path / "r.yaml")
    assert not (tmp_path / "hacked").exists()


def test_written_file_is_plain_yaml(tmp_path):
    Recipe().save(tmp_path / "r.yaml")
    assert yaml.safe_load((tmp_path / "r.yaml").read_text())["graph"]["soc"] == "SM8650"


def test_recipes_do_not_change():
    with pytest.raises(ValidationError):
        Recipe().precision = "fp16"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("precision", "linear", "bits"),
    [
        ("fp16", "blocks.0.att.key", None),
        ("fp16", "head", None),
        ("a16w8", "blocks.0.att.key", 8),
        ("a16w8", "blocks.11.att.w1", 8),
        ("a16w8", "head", 8),
        ("a16w4", "blocks.0.att.receptance", 4),
        ("a16w4", "blocks.0.att.key", 4),
        ("a16w4", "blocks.0.att.value", 4),
        ("a16w4", "blocks.11.att.output", 4),
        ("a16w4", "blocks.0.ffn.key", 4),
        ("a16w4", "blocks.0.ffn.value", 4),
        ("a16w4", "blocks.0.att.w1", 8),
        ("a16w4", "blocks.0.att.g2", 8),
        ("a16w4", "head", 8),
    ],
)
def test_weight_bits(precision, linear, bits):
    assert Recipe.model_validate({"precision": precision}).weight_bits(linear) == bits
