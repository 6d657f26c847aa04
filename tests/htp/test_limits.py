from __future__ import annotations

import pytest

from rwkvlab.errors import RwkvlabError
from rwkvlab.htp import build
from rwkvlab.htp.cache import MANIFEST
from rwkvlab.htp.compile import refusal_reasons, refused_nodes
from rwkvlab.htp.limits import check_supported, lacks
from rwkvlab.htp.proof import prove
from rwkvlab.quant.recipe import Recipe
from rwkvlab.soc import SOCS, find_soc
from tests.pipeline import encodings_of, export_to, recipe_for

PRECISIONS = ("fp16", "a16w8", "a16w4", "att-a16w8+ffn-a16w4")
# onnxruntime-qnn #708: v68 has no float path. pytorch/executorch #22542: QNN refuses float16 on SM8635, which is v73.
WITHOUT_FLOAT = {"SM8350", "SM7325", "SC8280X", "QCM6490", "SM8635"}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_recipe_so_far_has_float_parts(precision):
    refused = {name for name, chip in SOCS.items() if lacks(chip, Recipe.model_validate({"precision": precision}))}
    assert refused == WITHOUT_FLOAT


@pytest.mark.parametrize(
    ("precision", "part"), [("fp16", "fp16 is float16 throughout"), ("a16w8", "islands 'linears'")]
)
def test_the_error_says_what_is_missing_for_what_and_which_chips_have_it(precision, part):
    with pytest.raises(RwkvlabError) as refused:
        check_supported(find_soc("SM8635"), Recipe.model_validate({"precision": precision}))
    what, allowed, _ = str(refused.value).split("; ")
    assert "SM8635" in what and "Snapdragon 8s Gen 3" in what and "float16" in what and part in what
    assert {name for name in SOCS if name in allowed} == set(SOCS) - WITHOUT_FLOAT


@pytest.mark.parametrize("name", ["SM8635", "SM7325", "SC8280X", "QCM6490"])
def test_the_real_compiler_refuses_a_float_layer_with_that_reason(name, tmp_path):
    with pytest.raises(RwkvlabError, match=r"product .*The SocModel doesn't support FP16"):
        prove(tmp_path, find_soc(name))


@pytest.mark.parametrize("force", [False, True])
def test_nothing_is_compiled_or_replaced_for_a_chip_that_cannot_run_it(force, tiny_checkpoint, tmp_path, monkeypatch):
    exported = export_to(
        tmp_path / "graphs", tiny_checkpoint, encodings_of(tiny_checkpoint, "fp16"), recipe_for("fp16")
    )
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / MANIFEST).write_text("another chip's cache")
    monkeypatch.setattr(build, "compile_context", lambda *_: pytest.fail("compiled"))
    with pytest.raises(RwkvlabError, match="SM8350"):
        build.build_cache(exported, folder, find_soc("SM8350"), force=force, progress=False)
    assert (folder / MANIFEST).read_text() == "another chip's cache"


def test_a_rejected_node_and_its_reason_are_read_from_the_log():
    log = """
[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> [4294967295] has incorrect Value 68, expected >= 69.

[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> QnnBackend_validateOpConfig failed 3110

[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> Failed to validate op lin with error 0xc26

[W:onnxruntime:, qnn_model_wrapper.cc:511 CreateQnnNode] QNN.backendValidateOpConfig() failed for node `lin` of type `MatMul` with error code 3110
[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> QnnBackend_validateOpConfig failed 3110
	Operator type: Add Node name: /sum Node index: 3
"""  # noqa: E501
    assert refusal_reasons(log) == ["[4294967295] has incorrect Value 68, expected >= 69."]
    assert refused_nodes(log) == ["lin (MatMul)"]


def test_a_node_that_was_accepted_but_cannot_be_built_is_told_from_its_neighbours():
    log = """
	Operator type: Add Node name: /sum Node index: 3
[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> "/emb/Gather" generated: could not create op
[V:onnxruntime:Default, qnn_backend_manager.cc:516 QnnLogging]  <E> RouterX86 graph prepare failed 12
"""
    assert refused_nodes(log) == ["/emb/Gather (cannot be built)"]
    assert refusal_reasons(log) == []
