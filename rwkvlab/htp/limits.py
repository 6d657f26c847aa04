"""What a chip's HTP lacks, said before anything is compiled for it.

Only refusals of the real compiler are repeated here; `python -m benchmarks.soc_matrix` asks it again.
"""

from __future__ import annotations

from rwkvlab.errors import RwkvlabError
from rwkvlab.quant.recipe import Recipe
from rwkvlab.soc import SOCS, Soc


def lacks(soc: Soc, recipe: Recipe) -> str | None:
    """What `recipe` needs and the HTP of `soc` does not have, in words; None if nothing is known to be missing.

    Without float16 the compiler answers "The SocModel doesn't support FP16" to every float operation (SM8635, SM7325,
    SC8280X, QCM6490), or accepts them one by one and then cannot build the graph (SM8350).
    """
    return None if soc.fp16 else f"float16 arithmetic, and {_float_part(recipe)}"


def check_supported(soc: Soc, recipe: Recipe) -> None:
    """Stop before compiling what the HTP of `soc` cannot run.

    Raises:
        RwkvlabError: saying what it lacks and which chips have it.
    """
    missing = lacks(soc, recipe)
    if missing:
        raise RwkvlabError(
            f"the HTP v{soc.htp_arch} of {soc.name} ({soc.sold_as}) lacks {missing}",
            "with float16: " + ", ".join(sorted(chip.name for chip in SOCS.values() if chip.fp16)),
            "compile for one of these chips",
        )


def _float_part(recipe: Recipe) -> str:
    if not recipe.quantizes:
        return f"precision {recipe.precision} is float16 throughout"
    return f"{recipe.precision} with islands '{recipe.islands}' leaves all between the linears in float16"
