"""A spec becomes a run, or one line that says what contradicts what, where, and the way out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.errors import SpecError
from planner.estimation.blocks import Adapters, AttentionKind, Loss
from planner.estimation.from_spec import run_of
from planner.estimation.phases import phases_of, phases_of_stage
from planner.estimation.ranks import fullest_rank
from planner.estimation.run import Degrees, Sharding
from planner.estimation.step import Checkpointing
from planner.spec import OptimizerImplementation, OptimizerName, QuantizationName, check_traceable, from_mapping, load

LLAMA = "model: {preset: llama-3-8b}\nbatch: {micro_batch: 1, sequence_length: 4096}\n"
MIXTRAL = "model: {preset: mixtral-8x7b}\nbatch: {micro_batch: 1, sequence_length: 4096}\n"


def gpt2(**more: Any) -> dict[str, Any]:
    return {"model": {"preset": "gpt2"}, "batch": {"micro_batch": 2, "sequence_length": 128}, **more}


def configured(**config: Any) -> str:
    inside = ", ".join(f"{key}: {value}" for key, value in config.items())
    return f"model:\n  preset: llama-3-8b\n  config: {{{inside}}}\nbatch: {{micro_batch: 1, sequence_length: 4096}}\n"


def test_a_spec_with_every_key_becomes_a_run() -> None:
    run = run_of(
        from_mapping(
            gpt2(
                checkpointing={"every": 3},
                lora={"rank": 8, "targets": ["c_attn"], "dropout": 0.1, "quantization": "nf4-double"},
                loss_kernel="chunked",
                attention="eager",
                gradient_accumulation=4,
                optimizer={
                    "name": "adam",
                    "implementation": "fused",
                    "master_weights": "fp32",
                    "state_dtype": "bf16",
                },
                offload={"activations": True, "optimizer": True},
            )
        )
    )
    assert Checkpointing.BLOCK is run.checkpointing
    assert 3 == run.group
    assert Adapters(rank=8, targets=("qkv_proj",), dtype="float32", dropout=True) == run.adapters
    assert QuantizationName.NF4_DOUBLE is run.quantization
    assert Loss.CHUNKED is run.loss
    assert not run.logits_stay
    assert AttentionKind.EAGER is run.attention
    assert run.accumulates
    assert OptimizerName.ADAM is run.optimizer
    assert OptimizerImplementation.FUSED is run.step
    assert "float32" == run.master_dtype
    assert "bfloat16" == run.state_dtype
    assert run.offloads_inputs
    assert run.offloads_optimizer


def test_without_targets_every_linear_layer_of_a_block_has_adapters() -> None:
    run = run_of(from_mapping(gpt2(lora={"rank": 8})))
    assert run.adapters is not None
    assert ("qkv_proj", "o_proj", "up_proj", "down_proj") == run.adapters.targets


@pytest.mark.parametrize(
    ("parallel", "sharding", "degrees"),
    [
        ({}, Sharding.NONE, Degrees()),
        ({"fsdp": 8}, Sharding.FSDP2, Degrees(data=8)),
        ({"world_size": 4}, Sharding.DDP, Degrees(data=4)),
        ({"world_size": 8, "fsdp": 8}, Sharding.FSDP2, Degrees(data=8)),
    ],
)
def test_parallel_degrees(parallel: dict[str, Any], sharding: Sharding, degrees: Degrees) -> None:
    run = run_of(from_mapping(gpt2(parallel=parallel)))
    assert (sharding, degrees) == (run.sharding, run.degrees)


def test_stages_may_have_layers_as_listed() -> None:
    run = run_of(from_mapping(gpt2(parallel={"pp": 5, "stage_layers": [2, 3, 3, 3, 1]})))
    assert (2, 3, 3, 3, 1) == run.stage_layers


def test_replicas_follow_from_the_world_size_and_the_other_degrees() -> None:
    spec = from_mapping(gpt2(parallel={"world_size": 24, "tp": 2, "pp": 3, "zero": 1}))
    assert 4 == spec.parallel.ddp


REFUSED = {
    "parallel: {world_size: 12, tp: 8}": "3: parallel.world_size: expected a multiple of 8, which tp 8 × cp 1 × pp 1 "
    "need, found 12; change a degree, or the number of ranks",
    "parallel: {world_size: 12, fsdp: 8}": "3: parallel.world_size: expected 8, the product of fsdp 8 × tp 1 × cp 1 × "
    "pp 1, found 12; change a degree, or leave it out",
    "parallel: {tp: 3}": "3: parallel.tp: 3 ranks cannot share 32 heads; use a divisor of the heads",
    "parallel: {pp: 5}": "3: parallel.pp: 5 stages cannot share 32 layers evenly; use a divisor of the layers, or list "
    "those of each in parallel.stage_layers",
    "parallel: {pp: 4, virtual_pp: 9}": "3: parallel.pp: 4 stages of 9 chunks cannot share 32 layers evenly; use a "
    "divisor of the layers, or list those of each in parallel.stage_layers",
    "parallel: {pp: 3, stage_layers: [10, 11, 12]}": "3: parallel.stage_layers: expected 3 numbers that add up to 32 "
    "layers, found 3 that add up to 33; give one for each stage, or chunk of one",
    "parallel: {pp: 3, stage_layers: [16, 16]}": "3: parallel.stage_layers: expected 3 numbers that add up to 32 "
    "layers, found 2 that add up to 32; give one for each stage, or chunk of one",
    "parallel: {pp: 2, stage_layers: 16}": "3: parallel.stage_layers: expected a list of layers such as [15, 16, 16, "
    "15], found 16",
    "parallel: {stage_layers: [32]}": "3: parallel.stage_layers: has no meaning without pipeline stages; add "
    "parallel.pp",
    "parallel: {cp: 3}": "3: parallel.cp: 3 ranks cannot share sequences of 4,096 tokens; use a divisor of "
    "batch.sequence_length",
    "parallel: {ep: 2, fsdp: 4}": "3: parallel.ep: the model has no experts to share; leave it out",
    "parallel: {ep: 3, fsdp: 4}": "3: parallel.ep: expected a divisor of the 4 ranks of a stage, found 3; experts "
    "share "
    "those ranks",
    "parallel: {zero: 2}": "3: parallel.zero: ZeRO shards among the ddp replicas, and there is one; add "
    "parallel.ddp or "
    "parallel.world_size",
    "parallel: {sp: true}": "3: parallel.sp: sequence parallelism shares among the tp ranks; add parallel.tp, or use "
    "parallel.cp to share sequences",
    "parallel: {virtual_pp: 2}": "3: parallel.virtual_pp: has no meaning without pipeline stages; add parallel.pp",
    "parallel: {micro_batches: 2}": "3: parallel.micro_batches: has no meaning without pipeline stages; add "
    "parallel.pp, "
    "or use gradient_accumulation",
    "checkpointing: blok": "3: checkpointing: unknown mode 'blok'; did you mean 'block'?",
    "checkpointing: {every: 0}": "3: checkpointing.every: expected a positive whole number, found 0",
    "checkpointing: {every: 64}": "3: checkpointing: expected at most 32, the layers of the model; checkpoint fewer "
    "blocks together",
    "checkpointing: 3": "3: checkpointing: expected none, block, selective, or a mapping such as {every: 4}, found 3",
    "lora: {rank: 8, targets: [q_prj]}": "3: lora.targets[0]: llama has no linear layer 'q_prj'; known ones: q_proj, "
    "k_proj, v_proj, o_proj, gate_proj, up_proj, down_proj",
    "lora: {}": "3: lora: 'rank' is missing",
    "lora: {rank: 4, dtype: int8}": "3: lora.dtype: expected one of float32, bfloat16, float16, float64, found int8",
    "offload: {activations: true}": "3: offload.activations: only the inputs of checkpoints are offloaded; add "
    "checkpointing: block; `planner solve` offloads single tensors",
    "offload: {parameters: true}": "3: offload.parameters: offloaded parameters are not counted yet; leave it out",
    "loss_kernel: ful": "3: loss_kernel: expected one of full, chunked, fused, fused-linear, found 'ful'; did you mean "
    "'full'?",
    "optimizer: {name: adamw, implementation: each}": "3: optimizer.implementation: expected one of foreach, fused, "
    "for-loop, found 'each'; did you mean 'foreach'?",
    "optimizer: {name: adamw, in_backward: true}\ngradient_accumulation: 2": "3: optimizer.in_backward: gradients that "
    "are accumulated cannot be freed in backward; leave it out, or gradient_accumulation",
    "loss: mean": "3: loss: a loss other than the model's own is not known in closed form; leave it out, or name a "
    "loss_kernel; `planner trace` reads any model, with torch",
    "parallel: {pp: 4}\noptimizer: {name: adamw, in_backward: true}": "4: optimizer.in_backward: gradients of a "
    "pipeline's micro-batches are added up, and cannot be freed in backward; leave it out",
    "parallel: {zero: 2, ddp: 8}\noptimizer: {name: adamw, in_backward: true}": "4: optimizer.in_backward: ZeRO's "
    "optimizer steps when all gradients are reduced; leave it out, or parallel.zero",
    "offload: {optimizer: true}\noptimizer: {name: adamw, in_backward: true}": "4: optimizer.in_backward: an optimizer "
    "on the host steps when backward is done; leave it out, or offload.optimizer",
    "parallel: {zero: 2, ddp: 8}\noptimizer: {name: adamw, master_weights: bfloat16}": "4: optimizer.master_weights: "
    "ZeRO's own copy of the parameters is in float32, found bfloat16; leave it out, or parallel.zero",
    "optimizer: {name: adamw-8bit, state_dtype: float32}": "3: optimizer.state_dtype: adamw-8bit has states of its own "
    "kind, or none; leave it out",
    "optimizer: {name: sgd, momentum: 0, state_dtype: float32}": "3: optimizer.state_dtype: sgd has states of its own "
    "kind, or none; leave it out",
    "optimizer: {name: sgd, state_dtype: float32}": "3: optimizer.state_dtype: sgd has states of its own kind, or "
    "none; leave it out",
    "optimizer: {name: lion, implementation: fused}": "3: optimizer.implementation: PyTorch has no fused lion; leave "
    "it out",
    "gradient_accumulation: 0": "3: gradient_accumulation: expected a positive whole number, found 0",
}


@pytest.mark.parametrize(("more", "message"), REFUSED.items(), ids=REFUSED)
def test_what_contradicts_itself_is_one_line(more: str, message: str, tmp_path: Path) -> None:
    assert message == refusal(LLAMA + more, tmp_path)


CONFIGURATIONS = {
    configured(hidden_size=0): "3: model.config.hidden_size: expected a whole number from 1 to 1,000,000,000, found 0",
    configured(hidden_size="null"): "3: model.config.hidden_size: expected a whole number from 1 to 1,000,000,000, "
    "found nothing",
    configured(vocab_size="true"): "3: model.config.vocab_size: expected a whole number from 1 to 1,000,000,000, "
    "found true",
    configured(num_hidden_layers="many"): "3: model.config.num_hidden_layers: expected a whole number from 1 to "
    "10,000, found 'many'",
    configured(num_hidden_layers=1_000_000): "3: model.config.num_hidden_layers: expected a whole number from 1 to "
    "10,000, found 1000000",
    configured(num_key_value_heads=5): "3: model.config.num_key_value_heads: 32 attention heads cannot share 5 key and "
    "value heads evenly",
    configured(num_attention_heads=7, num_key_value_heads=7): "3: model.config.num_attention_heads: 7 heads do not "
    "divide the width of 4096",
    configured(tie_word_embeddings="'no'"): "3: model.config.tie_word_embeddings: expected true or false, found 'no'",
    configured(hidden_act="[silu]"): "3: model.config.hidden_act: expected a name such as silu, found a list",
    configured(attention_dropout=2): "3: model.config.attention_dropout: expected a number from 0 to 1, found 2",
    configured(
        attention_dropout="null"
    ): "3: model.config.attention_dropout: expected a number from 0 to 1, found nothing",
    configured(hidden_act="null"): "3: model.config.hidden_act: expected a name such as silu, found nothing",
}


@pytest.mark.parametrize(("text", "message"), CONFIGURATIONS.items(), ids=CONFIGURATIONS.values())
def test_impossible_sizes_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert f"{message}; correct the model's configuration" == refusal(text, tmp_path)


KNOWN = (
    "20 are, such as LlamaForCausalLM, Qwen3ForCausalLM, GPT2LMHeadModel; `planner trace` reads any model, with torch"
)
MODELS = {
    "model: {preset: resnet-50}\nbatch: {micro_batch: 1}\n": "1: model.preset: ResNetForImageClassification is not an "
    f"architecture that is known in closed form; {KNOWN}",
    "model: {transformers: NewForCausalLM}\nbatch: {micro_batch: 1}\n": "1: model.transformers: NewForCausalLM is "
    "not an "
    f"architecture that is known in closed form; {KNOWN}",
    "model: {factory: 'a:b'}\nbatch: {micro_batch: 1}\n": "1: model.factory: what a function builds is not known in "
    "closed form; `planner trace` reads any model, with torch",
    "model: {preset: gpt2}\ninputs: {x: {shape: [2], dtype: int64}}\n": "2: inputs: only models that read tokens are "
    "known in closed form; give batch.sequence_length instead; or `planner trace` reads any model, with torch",
    "model: {preset: gpt2}\nbatch: {micro_batch: 1}\n": "2: batch: 'sequence_length' is missing; the model "
    "reads tokens",
    "model: {preset: gpt2}\nbatch: {micro_batch: 1, sequence_length: 2048}\n": "2: batch.sequence_length: the model "
    "has "
    "1,024 positions, found 2,048; use shorter sequences, or more positions in model.config",
    MIXTRAL + "lora: {rank: 8, quantization: nf4}": "3: lora.quantization: bitsandbytes quantizes linear layers, and "
    "experts are none in transformers 5.24; leave it out",
    MIXTRAL.replace("mixtral-8x7b", "mixtral-8x7b, config: {intermediate_size: 14340}")
    + "parallel: {tp: 8}": "3: parallel.tp: 8 ranks cannot share a width of 14,340; use a divisor of the ffn width",
    "model: {transformers: Gemma2ForCausalLM}\nbatch: {micro_batch: 1, sequence_length: 4096}\n"
    "parallel: {cp: 2}": "3: parallel.cp: ranks that share sequences exchange what a kernel makes, and none caps "
    "scores as this model does; use tensor parallelism with sequence parallelism",
    "model: {transformers: OPTForCausalLM, config: {word_embed_proj_dim: 512}}\n"
    "batch: {micro_batch: 1, sequence_length: 64}\n": "1: model.config.word_embed_proj_dim: an embedding of another "
    "width than the model's 768 is not known in closed form; correct the model's configuration",
    "model: {transformers: Qwen3MoeForCausalLM, config: {decoder_sparse_step: 2}}\n"
    "batch: {micro_batch: 1, sequence_length: 64}\n": "1: model.config.decoder_sparse_step: 2 is not known in closed "
    "form; correct the model's configuration",
    MIXTRAL
    + "parallel: {ep: 3, fsdp: 3}": "3: parallel.ep: 3 ranks cannot share 8 experts; use a divisor of the experts",
}


@pytest.mark.parametrize(("text", "message"), MODELS.items(), ids=MODELS)
def test_models_that_cannot_be_estimated_are_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert message == refusal(text, tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "attention: eager\nparallel: {cp: 2}",
            "4: parallel.cp: ranks that share sequences exchange what a kernel makes, and eager attention is none; use "
            "another attention",
        ),
        (
            "precision: {parameters: float32}\nparallel: {cp: 2}",
            "4: parallel.cp: ranks that share sequences exchange what a kernel makes, and none has these heads in "
            "float32; use tp with sp, or for grouped heads compute in bfloat16",
        ),
        (
            "parallel: {pp: 4, virtual_pp: 2, micro_batches: 6}",
            "3: parallel.micro_batches: 6 micro-batches do not go round 4 ranks in turns; use a multiple",
        ),
    ],
)
def test_what_cannot_be_counted_together_is_one_line(text: str, message: str, tmp_path: Path) -> None:
    assert message == refusal(LLAMA + text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        LLAMA + "parallel: {tp: 8, sp: true}",
        LLAMA + "precision: {parameters: bfloat16}\nparallel: {cp: 4, fsdp: 2}",
        LLAMA + "parallel: {pp: 4, virtual_pp: 2, micro_batches: 8}",
        LLAMA + "parallel: {zero: 3, ddp: 8}",
        MIXTRAL + "parallel: {ep: 8, fsdp: 8}",
    ],
)
def test_every_figure_of_a_divided_run_is_the_sum_of_its_entries(text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text)
    run = run_of(load(path))
    peaks = {moment.phase: moment.size_bytes for moment in fullest_rank(run).moments}
    found = {one.phase.value: one.size_bytes for one in phases_of(run)}
    for phase in ("forward", "loss", "backward"):
        assert peaks[phase] == found[phase]


def test_deepspeed_holds_parameters_in_the_compute_dtype_and_a_copy_for_its_optimizer(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA + "parallel: {zero: 2, ddp: 8}\nprecision: {parameters: float32, compute: bfloat16}\n")
    run = run_of(load(path))
    assert ("bfloat16", "float32", False) == (run.parameter_dtype, run.master_dtype, run.autocast)


def refusal(text: str, directory: Path) -> str:
    """The one line that refuses a spec, after the file's name."""
    path = directory / "a.yaml"
    path.write_text(text)
    with pytest.raises(SpecError) as error:
        run_of(load(path))
    return str(error.value).removeprefix(f"{path}:")


@pytest.mark.parametrize(
    ("more", "key"),
    [
        ("checkpointing: block", "checkpointing"),
        ("checkpointing: {every: 2}", "checkpointing"),
        ("lora: {rank: 4}", "lora"),
        ("loss_kernel: fused", "loss_kernel"),
        ("gradient_accumulation: 2", "gradient_accumulation"),
        ("optimizer: {name: muon}", "optimizer.name"),
        ("optimizer: {name: paged-adamw}", "optimizer.name"),
        ("optimizer: {name: adamw, implementation: fused}", "optimizer.implementation"),
        ("optimizer: {name: adamw, in_backward: true}", "optimizer.in_backward"),
        ("optimizer: {name: adamw, master_weights: float32}", "optimizer.master_weights"),
        ("optimizer: {name: adamw, state_dtype: bfloat16}", "optimizer.state_dtype"),
        ("parallel: {tp: 2}", "parallel.tp"),
        ("parallel: {cp: 2}", "parallel.cp"),
        ("parallel: {pp: 2}", "parallel.pp"),
        ("parallel: {ep: 2, fsdp: 2}", "parallel.ep"),
        ("parallel: {zero: 1, ddp: 2}", "parallel.zero"),
        ("offload: {optimizer: true}", "offload.optimizer"),
    ],
)
def test_what_a_traced_step_cannot_have_is_refused(more: str, key: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA + more)
    with pytest.raises(SpecError, match="a traced step cannot have this yet; leave it out") as error:
        check_traceable(load(path))
    assert (3, key) == (error.value.line, error.value.key)


@pytest.mark.parametrize(
    "more",
    [
        "",
        "checkpointing: none\nloss_kernel: full\ngradient_accumulation: 1",
        "optimizer: {name: adam-8bit, implementation: foreach, in_backward: false}",
        "parallel: {fsdp: 8, tp: 1, world_size: 8}",
    ],
)
def test_what_changes_nothing_can_be_traced(more: str, tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA + more)
    check_traceable(load(path))


def test_the_stage_that_is_meant_is_the_fullest_of_all_phases_also_where_gradients_are_reduced() -> None:
    sizes = {"hidden_size": 64, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 8}
    spec = {
        "model": {"transformers": "LlamaForCausalLM", "config": {**sizes, "vocab_size": 512}},
        "parallel": {"pp": 2, "ddp": 8, "zero": 3},
        "optimizer": {"name": "adamw-8bit"},
        "loss_kernel": "fused",
    }
    run = run_of(from_mapping({**spec, "batch": {"micro_batch": 4, "sequence_length": 1}}))
    stages = [max(phase.size_bytes for phase in phases_of_stage(replace(run, stage=stage))) for stage in range(2)]
    assert 0 == fullest_rank(run).stage, "without the reduction, the other one"
    assert stages[1] == max(stages) == max(phase.size_bytes for phase in phases_of(run))
