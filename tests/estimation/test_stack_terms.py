"""Terms that single stacks brought up: LoRA's dropout and padding, what quantized products keep, flat gradients."""

from dataclasses import replace

from planner.estimation.blocks import Adapters, Loss
from planner.estimation.estimate import sections_of, static_of, step_moments
from planner.estimation.run import Degrees, Run, Sharding
from planner.estimation.tape import saved_storages
from planner.families import architecture_of
from planner.spec import QuantizationName

TOKENS, HIDDEN, FFN = 64, 32, 128
SMALL = architecture_of(
    "llama",
    {
        "hidden_size": HIDDEN,
        "intermediate_size": FFN,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "vocab_size": 64,
    },
)
LORA = Adapters(rank=4, targets=("q_proj",), dtype="bfloat16")
RUN = Run(
    architecture=SMALL,
    micro_batch=1,
    length=TOKENS,
    parameter_dtype="bfloat16",
    compute_dtype="bfloat16",
    adapters=LORA,
)


def saved_names(run: Run) -> dict[str, int]:
    return {tensor.name: tensor.size_bytes for tensor in saved_storages(sections_of(run)[1][0].tape)}


def saved_bytes(run: Run) -> int:
    return sum(saved_names(run).values())


def peak_bytes(run: Run, phase: str) -> int:
    return max(moment.size_bytes for moment in step_moments(run) if moment.phase == phase)


def test_dropout_before_adapters_keeps_its_result_and_a_mask_although_the_model_has_none():
    run = replace(RUN, adapters=replace(LORA, dropout=True))
    # Instead of the norm's result the adapter keeps what dropout made of it, as large; one byte an element besides.
    assert saved_bytes(run) == saved_bytes(RUN) + TOKENS * HIDDEN


def test_adapters_of_q_and_v_alone_keep_what_they_pad():
    fused = replace(RUN, architecture=replace(SMALL, fused_qkv=True))
    lora = Adapters(rank=4, targets=("qkv_proj",), dtype="bfloat16", parts=("q", "v"))
    padded = saved_names(replace(fused, adapters=lora))
    assert padded["qkv_proj.lora_B"] == TOKENS * 2 * HIDDEN * 2
    whole = saved_names(replace(fused, adapters=replace(lora, parts=("q", "k", "v"))))
    assert "qkv_proj.lora_B" not in whole


def test_parts_of_a_joint_matrix_have_ranks_of_their_own():
    fused = replace(RUN, architecture=replace(SMALL, fused_qkv=True))
    lora = Adapters(rank=4, targets=("qkv_proj",), dtype="bfloat16", parts=("q", "v"))
    # In each of two blocks: 8 × 32 and 64 × 4 elements of 2 bytes.
    assert static_of(replace(fused, adapters=lora)).gradients == 2 * (8 * 32 + 64 * 4) * 2


def test_a_quantized_output_matrix_takes_a_quarter():
    quantized = replace(RUN, quantization=QuantizationName.NF4)
    kept = static_of(quantized).parameters - static_of(replace(quantized, quantizes_head=True)).parameters
    assert kept == 64 * HIDDEN * (2 - 0.5 - 4 / 64)


def test_products_with_quantized_weights_may_keep_their_inputs():
    quantized = replace(RUN, quantization=QuantizationName.NF4)
    more = saved_bytes(replace(quantized, quantized_saves_input=True)) - saved_bytes(quantized)
    # The second norm's result and the product before down_proj; the others are kept anyway.
    assert more == TOKENS * (HIDDEN + FFN) * 2


def test_a_weight_made_whole_in_another_dtype_is_there_twice():
    quantized = replace(RUN, quantization=QuantizationName.NF4)
    found = {
        dtype: max(op.forward_bytes for op in sections_of(replace(quantized, quantized_from=dtype))[1][0].tape.ops)
        for dtype in (None, "bfloat16", "float16")
    }
    assert found == {None: FFN * HIDDEN * 2, "bfloat16": FFN * HIDDEN * 2, "float16": FFN * HIDDEN * 4}


def test_flat_gradients_are_as_large_as_the_blocks_they_belong_to():
    sharded = replace(RUN, sharding=Sharding.FSDP1, degrees=Degrees(data=2), flat_gradients=True)
    block = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * FFN + 2 * HIDDEN + 2 * 4 * HIDDEN
    assert static_of(sharded).gradients == 2 * block * 2 // 2
    assert static_of(replace(sharded, defers_reduction=True)).gradients == 2 * block * 2
    assert static_of(replace(sharded, defers_reduction=True)).reduced_gradients == 2 * block * 2 // 2


def test_deferred_reduction_never_takes_less():
    sharded = replace(RUN, sharding=Sharding.FSDP1, degrees=Degrees(data=2), accumulates=True)
    deferred = replace(sharded, defers_reduction=True)
    assert peak_bytes(deferred, "backward") >= peak_bytes(sharded, "backward")
    assert peak_bytes(deferred, "optimizer step") == peak_bytes(sharded, "optimizer step")


def test_outputs_that_linger_are_there_in_the_optimizers_step():
    chunked = replace(RUN, loss=Loss.CHUNKED, upcasts_in_model=True, chunks=2)
    more = peak_bytes(replace(chunked, outputs_linger=True), "optimizer step") - peak_bytes(chunked, "optimizer step")
    assert more == TOKENS * 64 * 4


def test_chunked_losses_keep_the_tanh_of_a_model_that_caps_its_logits() -> None:
    chunked = replace(RUN, loss=Loss.CHUNKED, logits_stay=False)
    capped = replace(chunked, architecture=replace(RUN.architecture, logit_softcap=True))
    heads = [sections_of(run)[2] for run in (chunked, capped)]
    less, more = (sum(tensor.size_bytes for tensor in saved_storages(head.tape)) for head in heads)
    assert RUN.micro_batch * RUN.length * RUN.architecture.vocab * 2 == more - less  # in bfloat16
