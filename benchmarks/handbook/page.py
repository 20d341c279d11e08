"""docs/handbook.md: what a handbook on activation memory claims, beside what this planner finds.

Claims, verdicts and their reasons are written by hand; every figure of the planner's is from `closed`, or from
solved.json. Each row says by a condition when its verdict goes with the figures.
"""

import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2

from benchmarks.handbook import closed
from benchmarks.handbook.solved import DEPTHS, GROWING, LENGTHS, MEASUREMENTS, Figures, planner
from planner.device import load_device
from planner.errors import PlannerError
from planner.estimation.blocks import AttentionKind, Implementation
from planner.estimation.growth import BlockGrowth, growth
from planner.estimation.phases import Phase
from planner.estimation.step import Checkpointing
from planner.reporting.tables import duration, gigabytes, percent

HOLDS, LIMITS, WRONG, OPEN = "holds", "holds with limits", "wrong", "not answered"
_GIB = 2**30
_WIDTH = 120
_SPECS = "benchmarks/handbook"
_CLAIMED_LENGTHS = (512, 2048, 4096, 32768)
_GPT_3_LENGTH = 2048
KV = ("kv", "llama-3-8b", "--shared-prefix", "2048")


class StaleVerdictError(PlannerError):
    """A row's verdict does not go with its figures any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One claim.

    Attributes:
        topic, claim: in a few words, with the claim's figures.
        command: that answers it.
        figure: the planner's, in a few words.
        verdict: one of four.
        why: in one sentence.
        body: lines of Markdown with the figures in full.
        stands: the verdict goes with the figures.
        wrong: the part of the claim that is, where the rest holds.
    """

    topic: str
    claim: str
    command: str
    figure: str
    verdict: str
    why: str
    body: tuple[str, ...]
    stands: bool = True
    wrong: str = ""


def _gib(size_bytes: float) -> str:
    size = size_bytes / _GIB
    return f"{size:.3f} GiB" if size < 1 else f"{size:,.2f} GiB"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> tuple[str, ...]:
    lines = [header, ["---"] * len(header), *rows]
    return tuple("| " + " | ".join(line) + " |" for line in lines)


def _command(name: str) -> str:
    return "planner " + " ".join(MEASUREMENTS[name].command)


def _times(number: float) -> str:
    return f"{number:.1f}×" if number < 100 else f"{number:,.0f}×"


def _added(row: Figures) -> float:
    return float(row["recompute_s"] + row["stall_s"])


# -- the rows


def full_checkpointing(solved: Figures) -> Row:
    found = solved["every block, replays alone"]
    nothing, blocks = (found["baselines"][name] for name in ("no checkpointing", "every block"))
    overhead = blocks["recompute_s"] / nothing["step_s"]
    static = found["static_bytes"]
    saved = (nothing["peak_bytes"] - blocks["peak_bytes"]) / (nothing["peak_bytes"] - static)
    layers = DEPTHS[-1]
    by_group = closed.groups(layers)
    best = min(by_group, key=lambda size: by_group[size])
    root = closed.root(layers)
    return Row(
        topic="full checkpointing",
        claim="+20–30% compute for 50–80% of activation memory; √N even segments take least memory",
        command=_command("every block, replays alone"),
        figure=f"+{percent(overhead)} time, {percent(saved)} less; best: {best} of {layers} blocks a segment, not "
        f"{root}",
        verdict=LIMITS,
        why="the price and the gain hold, but √N even segments take least only where a block holds no more than its "
        "input",
        wrong="√N segments",
        stands=0.2 <= overhead <= 0.3 and saved >= 0.5 and best < root,
        body=(
            "Llama 3 8B at 8,192 tokens, every block checkpointed by hand, beside nothing checkpointed (`baselines` "
            "in `--json`):",
            "",
            *_table(
                ("", "peak", "above static memory", "replay"),
                [
                    (
                        name,
                        gigabytes(row["peak_bytes"]),
                        gigabytes(row["peak_bytes"] - static),
                        f"{duration(row['recompute_s'])}, {percent(row['recompute_s'] / nothing['step_s'])} of the "
                        "step",
                    )
                    for name, row in (("no checkpointing", nothing), ("every block", blocks))
                ],
            ),
            "",
            "A whole forward again would be a third of the step's FLOPs. Less is replayed: nothing outside the "
            "blocks, and nothing after the last tensor that a block must restore.",
            "",
            f"What segments of even size take at most, in a chain of {layers} blocks (`planner estimate "
            f"{_SPECS}/deep.yaml` with `num_hidden_layers: {layers}` and `checkpointing: {{every: …}}`; parameters "
            "and their gradients left out):",
            "",
            *_table(
                ("blocks a segment", "activations, at most"), [(str(k), gigabytes(v)) for k, v in by_group.items()]
            ),
            "",
            f"A block holds {1 / closed.block_input_share():.0f} times its input in Llama 3 8B, so what a long "
            "segment replays at once weighs more than the inputs it spares.",
        ),
    )


def root_segments(solved: Figures) -> Row:
    rows, shares, above = [], [], []
    for depth in DEPTHS:
        found = solved["depth"][str(depth)]
        way = found["baselines"]["every √N blocks"]
        step_s = found["baselines"]["no checkpointing"]["step_s"]
        shares.append(way["recompute_s"] / step_s)
        above.append(way["peak_bytes"] - found["static_bytes"])
        rows.append((str(depth), str(closed.root(depth)), gigabytes(above[-1]), percent(shares[-1])))
    return Row(
        topic="√N",
        claim="the extra compute is about 1/√N",
        command=f"planner solve {_SPECS}/deep.yaml --budget 80GB",
        figure=", ".join(f"N = {depth}: +{percent(share)}" for depth, share in zip(DEPTHS, shares, strict=True)),
        verdict=WRONG,
        why="the extra compute does not fall with N; every segment is replayed once, whatever their number",
        stands=min(shares) > 0.5 * max(shares) and shares[-1] > 2 / DEPTHS[-1] ** 0.5,
        body=(
            f"A checkpoint every √N of N blocks, with N as `num_hidden_layers` ({_SPECS}/deep.yaml; the row every √N "
            "blocks):",
            "",
            *_table(("N", "blocks a segment", "above static memory", "replay, of the step"), rows),
            "",
            f"The claim would have {percent(1 / DEPTHS[0] ** 0.5)} fall to {percent(1 / DEPTHS[-1] ** 0.5)}. It is "
            "memory that grows with √N rather than N; compute is one forward more, less what need not be replayed.",
        ),
    )


def _against(name: str, way: str, solved: Figures) -> tuple[str, ...]:
    found = solved[name]
    return (
        f"plan, {'with the host' if found['host_bytes'] else 'replays alone'}, at the peak of {way}",
        gigabytes(found["predicted_peak_bytes"]),
        duration(found["recompute_s"]),
        duration(found["stall_s"]),
        percent(_added(found) / found["baselines"]["no checkpointing"]["step_s"]),
    )


def _by_hand(name: str, way: str, solved: Figures) -> tuple[str, ...]:
    row = solved[name]["baselines"][way]
    step_s = solved[name]["baselines"]["no checkpointing"]["step_s"]
    return (
        way,
        gigabytes(row["peak_bytes"]),
        duration(row["recompute_s"]),
        duration(0.0),
        percent(row["recompute_s"] / step_s),
    )


_COMPARED = ("", "peak", "replay", "waiting", "added to the step")


def per_block(solved: Figures) -> Row:
    alone, hosted = solved["every block, replays alone"], solved["every block"]
    blocks_s = alone["baselines"]["every block"]["recompute_s"]
    ratio, ratio_hosted = _added(alone) / blocks_s, _added(hosted) / blocks_s
    return Row(
        topic="per block",
        claim="a block's input is small and its inside large, so blocks are the sweet spot",
        command=_command("every block"),
        figure=f"input is {percent(closed.block_input_share())} of the inside; a plan at the same peak adds "
        f"{ratio:.2f} of the time, with the host's memory {ratio_hosted:.2f}",
        verdict=LIMITS,
        why="at that one peak no plan of replays does much better, but at any larger one, or with the host, blocks "
        "are dear",
        stands=ratio > 0.8 and ratio_hosted < 0.7,
        body=(
            *_table(
                _COMPARED,
                [
                    _by_hand("every block, replays alone", "every block", solved),
                    _against("every block, replays alone", "every block", solved),
                    _against("every block", "every block", solved),
                ],
            ),
            "",
            "Llama 3 8B at 8,192 tokens. Every block has no other budget: between its peak and that of saving "
            "everything the solved plans go on getting cheaper ([frontier.md](frontier.md)), down to nothing added.",
        ),
    )


def throughput(solved: Figures) -> Row:
    small, large = solved["micro-batch 16"], solved["micro-batch 64"]
    blocks = large["baselines"]["every block"]
    blocks_tokens = large["tokens"] / blocks["step_s"]
    base = small["tokens"] / small["baselines"]["no checkpointing"]["step_s"]
    slower = small["baselines"]["every block"]["recompute_s"] / small["baselines"]["no checkpointing"]["step_s"]
    return Row(
        topic="speed",
        claim="−15…30% step rate; a 7B model: +20% an iteration, but 16 → 64 fits and tokens/s nearly double",
        command=_command("micro-batch 64"),
        figure=f"+{percent(slower)} an iteration; 64 fits, with {blocks_tokens / base:.2f}× the tokens/s of 16",
        verdict=LIMITS,
        why="judging by throughput is right and the step rate holds, but the doubling is wrong unless a large cost "
        "per step stays unhidden: 16 sequences keep the GPU busy already",
        wrong="the doubling",
        stands=blocks_tokens < base < 1.3 * blocks_tokens and 0.15 <= slower <= 0.45,
        body=(
            "Llama 2 7B, 512 tokens a sequence, four H100s, within 80 GB:",
            "",
            *_table(
                ("micro-batch", "way", "peak", "tokens/s"),
                [
                    (
                        "16",
                        "no checkpointing",
                        gigabytes(small["baselines"]["no checkpointing"]["peak_bytes"]),
                        f"{base:,.0f}",
                    ),
                    (
                        "16",
                        "every block",
                        gigabytes(small["baselines"]["every block"]["peak_bytes"]),
                        f"{small['tokens'] / small['baselines']['every block']['step_s']:,.0f}",
                    ),
                    ("64", "every block", gigabytes(blocks["peak_bytes"]), f"{blocks_tokens:,.0f}"),
                    ("64", "plan", gigabytes(large["predicted_peak_bytes"]), f"{large['tokens_per_s']:,.0f}"),
                ],
            ),
            "",
            "[throughput.md](throughput.md) has every micro-batch, and what a step would have to wait for so that it "
            "doubled.",
        ),
    )


def _growth_rows(found: BlockGrowth) -> list[tuple[str, ...]]:
    powers = {0: "1", 1: "L", 2: "L²"}
    return [(t.name, t.dtype, powers[t.power], *map(gigabytes, t.size_bytes)) for t in found.tensors if t.is_attention]


def flash(solved: Figures) -> Row:
    del solved
    eager, fused = closed.kept("heads-32", (2048, 4096, 8192))
    header = ("kept by attention", "dtype", "grows as", *(f"{length:,}" for length in eager.lengths))
    return Row(
        topic="FlashAttention",
        claim="scores are never stored; O(N²) → O(N)",
        command=f"planner estimate {_SPECS}/heads-32.yaml --lengths 2048,4096,8192",
        figure=f"doubling the length: eager × {eager.attention_bytes[2] / eager.attention_bytes[1]:.2f}, flash × "
        f"{fused.attention_bytes[2] / fused.attention_bytes[1]:.2f}",
        verdict=HOLDS,
        why="what a fused kernel keeps is q, k, v, the output and one number for each query and head",
        stands=all(t.power == 1 for t in fused.tensors) and any(t.power == 2 for t in eager.tensors),
        body=(
            "Of one block, eager:",
            "",
            *_table(header, _growth_rows(eager)),
            "",
            "and with a fused kernel:",
            "",
            *_table(header, _growth_rows(fused)),
        ),
    )


def by_length(solved: Figures) -> Row:
    del solved
    eager, fused = closed.kept("heads-32", _CLAIMED_LENGTHS)
    grouped, grouped_fused = closed.kept("llama-3-8b-every-block", _CLAIMED_LENGTHS)
    factors = [a / b for a, b in zip(eager.attention_bytes, fused.attention_bytes, strict=True)]
    grouped_factors = [a / b for a, b in zip(grouped.attention_bytes, grouped_fused.attention_bytes, strict=True)]
    return Row(
        topic="by length",
        claim="512 saves 5–10× of attention memory, 4096 about 40×, 32K over 100×; one score matrix: 0.5 GB at 2048, "
        "128 GB at 32K",
        command=f"planner estimate {_SPECS}/heads-32.yaml --lengths {','.join(map(str, _CLAIMED_LENGTHS))}",
        figure=f"{', '.join(map(_times, factors))} (512, 2048, 4096, 32K); one matrix: {_gib(eager.scores_bytes[1])}, "
        f"{_gib(eager.scores_bytes[3])}",
        verdict=LIMITS,
        why="the factors hold for grouped heads and are less without; the sizes are those of scores and softmax "
        "together, so twice one matrix",
        wrong="the sizes of one matrix",
        stands=eager.scores_bytes[1] == _GIB // 4
        and eager.scores_bytes[3] == 64 * _GIB
        and 5 <= grouped_factors[0] <= 10
        and grouped_factors[3] > 100
        and factors[0] < 5,
        body=(
            "One sequence, 32 heads of 128, float16, one block; GiB, 2³⁰ bytes, as the claims are exact only in those:",
            "",
            *_table(
                (
                    "N",
                    "one score matrix",
                    "scores and softmax",
                    "kept by eager attention",
                    "kept by flash",
                    "saving",
                    "saving with 8 KV heads, bfloat16",
                ),
                [
                    (
                        f"{length:,}",
                        _gib(eager.scores_bytes[place]),
                        _gib(2 * eager.scores_bytes[place]),
                        _gib(eager.attention_bytes[place]),
                        _gib(fused.attention_bytes[place]),
                        _times(factors[place]),
                        _times(grouped_factors[place]),
                    )
                    for place, length in enumerate(_CLAIMED_LENGTHS)
                ],
            ),
            "",
            "PyTorch keeps no scores: it keeps the softmax in float32, and its copy in float16 that multiplies v, "
            "which is 6 bytes for every score rather than 4. The scores are there while attention runs. The last "
            "column is Llama 3 8B's grouped heads, of which a fused kernel keeps a quarter of the keys and values.",
        ),
    )


def kernels(solved: Figures) -> Row:
    del solved
    length = 4096
    _, fused = closed.kept("heads-32", (length,))
    return Row(
        topic="FlashAttention 2 and 3",
        claim="same order; v2 with 10–20% less working memory, v3 faster on Hopper",
        command=f"planner estimate {_SPECS}/heads-32.yaml --lengths {length}",
        figure=f"{gigabytes(fused.attention_bytes[0])} kept, {gigabytes(closed.attention_workspace(length))} in "
        "backward (v2, the one PyTorch has)",
        verdict=LIMITS,
        why="the order is the same; by how much v1 takes more and v3 is faster is not answered, since the kernel that "
        "is counted is PyTorch's own, v2",
        body=(
            f"With 32 heads of 128 and {length:,} tokens in float16, flash attention keeps "
            f"{gigabytes(fused.attention_bytes[0])} of a block, and its backward takes "
            f"{gigabytes(closed.attention_workspace(length))} besides while it runs, a float32 accumulator of q's "
            "gradient and one number per query. Both grow with the length, so the order is the same. `attention: "
            "efficient` and `cudnn` are told apart by `planner trace`. The device profile has one efficiency for all "
            "kernels, and does not make v3 faster.",
        ),
    )


def sparse(solved: Figures) -> Row:
    grown = solved["growth"]
    power = {name: log2(sizes[-1] / sizes[-2]) for name, sizes in grown.items()}
    names = {
        "dense": "softmax attention",
        "bigbird": "BigBird",
        "reformer": "Reformer",
        "linear": "linear attention",
    }
    return Row(
        topic="sparse and linear attention",
        claim="Reformer, Linformer, BigBird, Longformer: O(L log L) or O(L); Performer, linear transformers: O(L)",
        command=f"planner trace {_SPECS}/reformer.yaml",
        figure=", ".join(f"{names[name]} L^{power[name]:.2f}" for name in GROWING),
        verdict=LIMITS,
        why="those that can be traced grow so; Longformer's code reads values and cannot be traced, and Linformer and "
        "Performer are not in transformers",
        stands=power["dense"] > 1.5 and all(power[name] < 1.25 for name in GROWING if name != "dense"),
        body=(
            f"Saved tensors of two layers ({_SPECS}/*.yaml, with another `sequence_length`), and the power of the "
            "length between the last two columns:",
            "",
            *_table(
                ("", *(f"{length:,}" for length in LENGTHS), "grows as"),
                [(names[name], *map(gigabytes, grown[name]), f"L^{power[name]:.2f}") for name in GROWING],
            ),
            "",
            "Sizes include those of the layers around attention. BigBird treats its first and last blocks apart, so "
            "that its power comes down to 1 from above. `planner trace benchmarks/handbook/longformer.yaml` says "
            "where its code reads a value. The linear attention is written out beside its spec.",
        ),
    )


def _link_rows(names: Sequence[tuple[str, str]], solved: Figures) -> tuple[str, ...]:
    rows = []
    for name, title in names:
        found = solved[name]
        step_s = found["baselines"]["no checkpointing"]["step_s"]
        rows.append(
            (
                title,
                gigabytes(found["predicted_peak_bytes"]),
                gigabytes(found["host_bytes"]),
                duration(found["recompute_s"]),
                duration(found["stall_s"]),
                percent(_added(found) / step_s),
            )
        )
    return _table(("", "peak", "on the host", "replay", "waiting", "added to the step"), rows)


def offload(solved: Figures) -> Row:
    profile, older = load_device("h100-80gb"), load_device("a100-80gb")
    everything = solved["rivals"]["fastest"]["offload all"]
    plan, long = solved["every block"], solved["128K"]
    waits = plan["stall_s"] / plan["baselines"]["no checkpointing"]["step_s"]
    slower = everything["overhead"] / (1 + everything["overhead"])
    return Row(
        topic="offload",
        claim="PCIe 4.0 x16 about 32 GB/s against HBM over 1 TB/s; −20…50% throughput if not hidden; tens to hundreds "
        "of GB of host memory",
        command=_command("every block"),
        figure=f"offload everything: −{percent(slower)} throughput; a plan waits {percent(waits)} of the step with "
        f"{gigabytes(plan['host_bytes'])} on the host",
        verdict=LIMITS,
        why="all of it holds but the loss: unhidden copies can cost more than half, and what a plan chooses costs "
        "next to nothing",
        wrong="−50% at worst",
        stands=waits < 0.02 and slower > 0.5,
        body=(
            f"Profiles have what copies reach: {older.host_link_bytes_per_s / 1e9:.0f} GB/s each way for the A100, "
            f"which has PCIe 4.0, and {profile.host_link_bytes_per_s / 1e9:.0f} GB/s for the H100, beside "
            f"{older.memory_bytes_per_s / 1e12:.2f} and {profile.memory_bytes_per_s / 1e12:.2f} TB/s of their own "
            "memory. Both memories have a budget, and the time that copies are waited for is in every report. On the "
            "H100:",
            "",
            *_link_rows([("every block", "Llama 3 8B, 8,192 tokens"), ("128K", "Llama 3 8B, 131,072 tokens")], solved),
            "",
            f"At 131,072 tokens the link is busy for {percent(long['forward_busy'])} of forward and "
            f"{percent(long['backward_busy'])} of backward: the host's memory is the limit there. Offloading "
            f"everything at 8,192 tokens adds {percent(everything['overhead'])} to the step, nearly all of it waiting "
            f"({duration(everything['stall_s'])}; `{_command('rivals')}`).",
        ),
    )


def offload_with_checkpointing(solved: Figures) -> Row:
    both, alone = solved["128K"], solved["128K, replays alone"]
    step_s = both["baselines"]["no checkpointing"]["step_s"]
    return Row(
        topic="offload with checkpointing",
        claim="they complement each other: replay reduces, offload moves the rest",
        command=_command("128K"),
        figure=f"at 128K within 80 GB: +{percent(_added(both) / step_s)} together, +{percent(_added(alone) / step_s)} "
        "by replays alone",
        verdict=HOLDS,
        why="the two are decided in one problem, and together they are several times cheaper than replays alone",
        stands=2 * _added(both) < _added(alone),
        body=(
            *_link_rows([("128K", "both"), ("128K, replays alone", "`--host-budget 0`")], solved),
            "",
            "The plan replays what is cheap, and sends to the host what is dear, which at this length is what "
            "attention returns. [how-it-works.md](how-it-works.md#offloading) says how they are decided together.",
        ),
    )


def gpt_3(solved: Figures) -> Row:
    del solved
    run = closed.run_from("gpt-3-175b")
    layers = run.architecture.layers
    eager, fused = closed.kept("gpt-3-175b", (_GPT_3_LENGTH,))
    one_run = replace(run, architecture=replace(run.architecture, activation="gelu_pytorch_tanh"))
    _, one_kernel = growth(one_run, (_GPT_3_LENGTH,))
    size = {t.name: t.size_bytes[0] for t in eager.tensors}
    ffn = sum(s for name, s in size.items() if name == "up_proj" or name.startswith("gelu"))
    block_input = eager.input_bytes[0]

    def peak(kind: AttentionKind, mode: Checkpointing) -> str:
        return _gib(closed.activation_peak(replace(run, attention=kind, checkpointing=mode)))

    rows = [
        ("QKV", "0.14 GB", _gib(size["qkv_proj"]), "right"),
        ("scores", "0.75 GB", _gib(eager.scores_bytes[0]), "right in size, but not kept: there while attention runs"),
        ("softmax", "0.75 GB", _gib(size["attention softmax"]), "right"),
        (
            "dropout on the softmax",
            "–",
            _gib(size["attention dropout"] + size["attention dropout mask"]),
            "left out by the claim: its result and a mask of a byte each",
        ),
        (
            "FFN",
            "0.3 GB",
            _gib(ffn),
            f"one intermediate is {_gib(size['up_proj'])}, and GELU written out keeps five of that size",
        ),
        ("block input", "–", _gib(block_input), "what checkpointing keeps"),
        ("a layer", "about 2 GB", _gib(eager.kept_bytes[0]), "as eager PyTorch keeps it"),
        ("all layers", "192 GB", _gib(layers * eager.kept_bytes[0]), f"{layers} of them"),
    ]
    ways = [
        (
            "checkpointing only",
            "0.14 GB a layer, 13.5 GB",
            _gib(layers * block_input),
            peak(AttentionKind.EAGER, Checkpointing.BLOCK),
        ),
        (
            "flash only",
            "0.5 GB a layer, 48 GB",
            _gib(layers * fused.kept_bytes[0]),
            peak(AttentionKind.FUSED, Checkpointing.NONE),
        ),
        (
            "flash only, GELU in one kernel",
            "–",
            _gib(layers * one_kernel.kept_bytes[0]),
            _gib(closed.activation_peak(replace(one_run, attention=AttentionKind.FUSED))),
        ),
        ("both", "2–3 GB", _gib(layers * block_input), peak(AttentionKind.FUSED, Checkpointing.BLOCK)),
    ]
    return Row(
        topic="GPT-3 175B",
        claim="a layer QKV 0.14, scores 0.75, softmax 0.75, FFN 0.3, about 2 GB, 192 GB in all; checkpointing only "
        "13.5 GB; flash only 48 GB; both 2–3 GB",
        command=f"planner estimate {_SPECS}/gpt-3-175b.yaml --lengths {_GPT_3_LENGTH}",
        figure=f"{_gib(eager.kept_bytes[0])} a layer, {_gib(layers * eager.kept_bytes[0])}; checkpointing "
        f"{_gib(layers * block_input)}; flash {_gib(layers * fused.kept_bytes[0])}; both as much as checkpointing",
        verdict=WRONG,
        why="the parts are right (in GiB), the sums are not: checkpointing keeps a block's input, a third of QKV, and "
        "no kernel makes the kept inputs fewer",
        stands=layers * block_input == round(4.5 * _GIB) and abs(size["qkv_proj"] / _GIB - 0.141) < 0.001,
        body=(
            "One sequence of 2,048 tokens, float16, dropout on; GiB, since the claim's GB are those:",
            "",
            *_table(("per layer", "claim", "planner", ""), rows),
            "",
            *_table(
                ("way", "claim", "kept by all layers", "activations at most, with logits and the replayed block"), ways
            ),
            "",
            f"The 13.5 GB are {layers} times QKV, which is not what is kept: replay starts from a block's input, "
            f"{layers} × {_gib(block_input)}. The O(N²) spike of a replay is real: it is the difference between the "
            "last column's first and last rows. With flash attention and checkpointing the kept inputs stay, so 2–3 "
            "GB are out of reach, but for longer segments or offloaded inputs.",
        ),
    )


def very_long(solved: Figures) -> Row:
    names = [("32K", "32,768 tokens, within 76 GB"), ("128K", "131,072 tokens, within 80 GB, loss in chunks")]
    long, middle = solved["128K"], solved["32K"]

    def mixed(found: Figures) -> str:
        return percent(_added(found) / found["baselines"]["no checkpointing"]["step_s"])

    return Row(
        topic="very long sequences",
        claim="from 32K on combine FlashAttention, checkpointing, sequence parallelism, offload, Ring Attention; it "
        "depends",
        command=_command("32K"),
        figure=f"flash, replays and offload together: +{mixed(middle)} at 32K, +{mixed(long)} at 128K on 8 H100s",
        verdict=LIMITS,
        why="the combination is found for each spec with its figures, but the solver does not choose degrees of "
        "sequence parallelism, and does not know Ring Attention",
        stands=all(f["baselines"]["every block"]["peak_bytes"] > f["predicted_peak_bytes"] for f in (long, middle)),
        body=(
            "Recommended for Llama 3 8B over eight H100s with FSDP, one sequence for each GPU:",
            "",
            *_link_rows(names, solved),
            "",
            "* **32K**: flash attention, FSDP, and a plan that keeps, replays and offloads. Checkpointing every "
            f"block by hand peaks at {gigabytes(middle['baselines']['every block']['peak_bytes'])}, and does not fit; "
            f"saving everything takes {gigabytes(middle['baselines']['no checkpointing']['peak_bytes'])}.",
            "* **128K**: the same, and the loss in chunks. Every block by hand peaks at "
            f"{gigabytes(long['baselines']['every block']['peak_bytes'])}; saving everything takes "
            f"{gigabytes(long['baselines']['no checkpointing']['peak_bytes'])}. The budget is all of the device: take "
            "less in practice, for what PyTorch does not count.",
        ),
    )


def sequence_parallelism(solved: Figures) -> Row:
    del solved
    ways = [
        ("one GPU", 1, False, Checkpointing.NONE),
        ("every block", 1, False, Checkpointing.BLOCK),
        ("TP 8", 8, False, Checkpointing.NONE),
        ("TP 8, SP", 8, True, Checkpointing.NONE),
        ("TP 8, SP, every block", 8, True, Checkpointing.BLOCK),
    ]
    kept: dict[Implementation, dict[str, int]] = {}
    peaks: dict[Implementation, dict[str, int]] = {}
    for whose in Implementation:
        runs = {
            name: closed.shared(tp, sequence=sp, checkpointing=mode, implementation=whose)
            for name, tp, sp, mode in ways
        }
        kept[whose] = {name: closed.kept_by_blocks(run) for name, run in runs.items()}
        peaks[whose] = {name: closed.activation_peak(run) for name, run in runs.items()}
    first, blocks, _, shared, both = kept[Implementation.MEGATRON].values()
    lower = {whose: found["TP 8"] / found["TP 8, SP, every block"] for whose, found in peaks.items()}
    torch_shared = kept[Implementation.TRANSFORMERS]["one GPU"] / kept[Implementation.TRANSFORMERS]["TP 8, SP"]
    return Row(
        topic="sequence parallelism and recomputation",
        claim="orthogonal, so 1/N and 1/K multiply; 65B, 4096 tokens, TP 8, SP, every block: over 10× lower peak a GPU",
        command=f"planner estimate {_SPECS}/llama-65b-tp8.yaml",
        figure=f"kept: {first / shared:.1f}× by TP and SP, {first / blocks:.1f}× by blocks, {first / both:.0f}× by "
        f"both; peak {lower[Implementation.MEGATRON]:.0f}× lower by SP and blocks on top of TP 8",
        verdict=HOLDS,
        why="what is kept divides by both factors; the peak by somewhat less, since one block is replayed whole",
        stands=abs(first / both / (first / shared) / (first / blocks) - 1) < 0.01
        and all(times > 10 for times in lower.values()),
        body=(
            "LLaMA 65B, one sequence of 4,096 tokens, bfloat16, flash attention; one GPU's share, with the blocks of "
            "Megatron-LM:",
            "",
            *_shares(ways, kept[Implementation.MEGATRON], peaks[Implementation.MEGATRON]),
            "",
            "TP alone divides what lies within attention and the feed-forward layer; norms and residuals are whole on "
            "every rank, and SP divides those. Megatron-LM keeps its shares and gathers them again in backward. Under "
            "PyTorch's own tensor parallelism, which `planner estimate` counts for a spec, linear layers keep what "
            f"they gathered, so that TP and SP divide by {torch_shared:.1f} alone; with every block checkpointed "
            "nothing gathered is kept:",
            "",
            *_shares(ways, kept[Implementation.TRANSFORMERS], peaks[Implementation.TRANSFORMERS]),
        ),
    )


def _shares(
    ways: Sequence[tuple[str, int, bool, Checkpointing]], kept: Mapping[str, int], peaks: Mapping[str, int]
) -> list[str]:
    return _table(
        ("", "kept by blocks", "activations at most", "beside one GPU"),
        [
            (name, gigabytes(kept[name]), gigabytes(peaks[name]), _times(peaks["one GPU"] / peaks[name]))
            for name, *_ in ways
        ],
    )


def quadratic(solved: Figures) -> Row:
    del solved
    eager, fused = closed.kept("gpt-3-175b", (1024, 2048, 4096))
    squares = [t for t in eager.tensors if t.power == 2]
    lines = [t for t in eager.tensors if t.power == 1]
    return Row(
        topic="O(L²)",
        claim="only scores and softmax grow with L²; everything else with L",
        command=f"planner estimate {_SPECS}/gpt-3-175b.yaml --lengths 1024,2048,4096",
        figure=f"{len(squares)} of {len(eager.tensors)} tensors of a block grow with L², "
        f"{percent(eager.quadratic_bytes[1] / eager.kept_bytes[1])} of its bytes at 2,048; none with flash attention",
        verdict=LIMITS,
        why="so does what is made of the softmax: attention's dropout result and mask, or a copy in another dtype",
        wrong="only these two",
        stands=len(squares) + len(lines) == len(eager.tensors) and len(squares) > 1 and not any(fused.quadratic_bytes),
        body=(
            "One block of GPT-3, eager attention. All others of its tensors grow with L:",
            "",
            *_table(
                ("grows with L²", "dtype", *(f"{length:,}" for length in eager.lengths)),
                [(t.name, t.dtype, *map(gigabytes, t.size_bytes)) for t in squares],
            ),
            "",
            "| All that grows with | " + " | ".join(f"{length:,}" for length in eager.lengths) + " |",
            "| --- | --- | --- | --- |",
            "| L² | " + " | ".join(map(gigabytes, eager.quadratic_bytes)) + " |",
            "| L | "
            + " | ".join(gigabytes(a - b) for a, b in zip(eager.kept_bytes, eager.quadratic_bytes, strict=True))
            + " |",
        ),
    )


def selective(solved: Figures) -> Row:
    found = solved["selective, replays alone"]
    ways = {name: found["baselines"][name] for name in ("no checkpointing", "every block", "selective")}
    step_s = ways["no checkpointing"]["step_s"]
    share = {name: row["recompute_s"] / step_s for name, row in ways.items()}
    spared = {
        name: (ways["no checkpointing"]["peak_bytes"] - row["peak_bytes"])
        / (ways["no checkpointing"]["peak_bytes"] - found["static_bytes"])
        for name, row in ways.items()
    }
    ratio = _added(found) / ways["selective"]["recompute_s"]
    return Row(
        topic="selective checkpointing",
        claim="replay what is large and cheap, keep matrix products: +10–15% compute instead of 20–30% at nearly the "
        "same saving",
        command=_command("selective, replays alone"),
        figure=f"+{percent(share['selective'])} for {percent(spared['selective'])} of activation memory, against "
        f"+{percent(share['every block'])} for {percent(spared['every block'])}; a plan at that peak "
        f"+{percent(_added(found) / step_s)}",
        verdict=LIMITS,
        why="the price holds, the saving is well below that of every block, and a solved plan has it for half the "
        "price",
        wrong="nearly the same saving",
        stands=0.1 <= share["selective"] <= 0.15 and spared["selective"] < spared["every block"] - 0.1 and ratio < 0.6,
        body=(
            *_table(
                _COMPARED,
                [
                    *(_by_hand("selective, replays alone", name, solved) for name in ways),
                    _against("selective, replays alone", "selective", solved),
                ],
            ),
            "",
            "Llama 3 8B at 8,192 tokens. Keeping every matrix product keeps the widest ones too, those of the "
            "feed-forward layer; a plan decides for each tensor. Where scores are stored, selective checkpointing "
            "spares more: see the GPT-3 row for how large they are.",
        ),
    )


def inference(solved: Figures) -> Row:
    del solved
    found = planner(*KV)
    attentions = {row["name"]: row for row in found["attentions"]}
    formats = {row["name"]: row for row in found["formats"]}
    return Row(
        topic="inference",
        claim="no backward, so activations do not matter; the KV cache does: GQA, MQA, INT8 or FP8, paging, shared "
        "prefixes",
        command="planner " + " ".join(KV),
        figure=f"{found['token_bytes']:,} B a token; GQA {percent(attentions['GQA']['relative'])} of MHA, FP8 "
        f"{percent(formats['fp8']['relative'])}; a shared prefix: {found['sequences']} sequences, not "
        f"{found['sequences_unshared']}",
        verdict=LIMITS,
        why="the cache matters most, but the activations of a long prefill are there and have to fit",
        stands=attentions["GQA"]["relative"] == 0.25 and found["sequences"] > found["sequences_unshared"],
        body=(
            "Llama 3 8B on an H100, sequences of 8,192 tokens that begin with the same 2,048:",
            "",
            *_table(
                ("", "a token", "sequences that fit"),
                [
                    (name, f"{row['token_bytes']:,} B", str(row["sequences"]))
                    for name, row in [
                        *((f"{name}, bf16", attentions[name]) for name in ("MHA", "GQA", "MQA")),
                        *((f"GQA, {name}", formats[name]) for name in ("fp8", "int8")),
                    ]
                ],
            ),
            "",
            f"Weights take {gigabytes(found['budget']['weights_bytes'])}, and activations of a prefill "
            f"{gigabytes(found['budget']['activations_bytes'])}. [kv.md](kv.md) has the rest.",
        ),
    )


def two_peaks(solved: Figures) -> Row:
    phases = closed.phases("llama-3-8b-every-block")
    forward = max((phases[p] for p in (Phase.FORWARD, Phase.LOSS)), key=lambda one: one.size_bytes)
    backward = phases[Phase.BACKWARD]
    plan = solved["two peaks"]

    def by_hand_rows() -> Iterable[tuple[str, ...]]:
        for part in {**forward.parts, **backward.parts}:
            sizes = (forward.parts.get(part, 0), backward.parts.get(part, 0))
            if max(sizes) >= 10_000_000:
                yield str(part), *map(gigabytes, sizes)
        yield "**in all**", gigabytes(forward.size_bytes), gigabytes(backward.size_bytes)

    def plan_rows() -> Iterable[tuple[str, ...]]:
        ends = [plan[name] for name in ("forward", "backward")]
        for kind in dict.fromkeys(kind for end in ends for kind in end["by_kind"]):
            sizes = [end["by_kind"].get(kind, 0) for end in ends]
            if max(sizes) >= 10_000_000:
                yield kind, *map(gigabytes, sizes)
        yield "**in all**", *(gigabytes(end["bytes"]) for end in ends)

    return Row(
        topic="two peaks",
        claim="one at the end of forward, one early in backward of replays, gradients and what is kept; with "
        "checkpointing the second is usually higher",
        command=f"planner estimate {_SPECS}/llama-3-8b-every-block.yaml; planner report PLAN",
        figure=f"every block: {gigabytes(forward.size_bytes)} and {gigabytes(backward.size_bytes)}; a plan: "
        f"{gigabytes(plan['forward']['bytes'])} and {gigabytes(plan['backward']['bytes'])}",
        verdict=LIMITS,
        why="there are two and the second is higher, but in a model with a large vocabulary it is the loss's, before "
        "anything is replayed",
        stands=forward.size_bytes < backward.size_bytes
        and plan["forward"]["bytes"] < plan["backward"]["bytes"]
        and "loss" in backward.where,
        body=(
            "Llama 3 8B at 8,192 tokens over eight H100s, every block checkpointed: the fullest moment up to the "
            f"loss ({forward.where}) and of backward ({backward.where}):",
            "",
            *_table(("every block", "up to the loss", "backward"), by_hand_rows()),
            "",
            f"A plan within the peak of selective checkpointing (`{_command('selective, replays alone')}`, then "
            f"`planner report` of it), at {plan['forward']['at']}, and {plan['backward']['at']}:",
            "",
            *_table(("plan", "forward", "backward"), plan_rows()),
        ),
    )


def frameworks(solved: Figures) -> Row:
    del solved
    return Row(
        topic="frameworks",
        claim="PyTorch, Hugging Face and Megatron checkpoint every block by default when asked",
        command="none yet",
        figure="–",
        verdict=OPEN,
        why="the linter that reads their configurations is not there yet",
        body=(),
    )


ROWS: tuple[Callable[[Figures], Row], ...] = (
    full_checkpointing,
    root_segments,
    per_block,
    throughput,
    flash,
    by_length,
    kernels,
    sparse,
    offload,
    offload_with_checkpointing,
    gpt_3,
    very_long,
    sequence_parallelism,
    quadratic,
    selective,
    inference,
    two_peaks,
    frameworks,
)

_INTRODUCTION = """# A handbook's claims, and what this planner finds

A handbook on activation memory states many figures. Each is answered here by a command, and judged. Figures of the
planner are generated: `python -m benchmarks.handbook` writes this page, from the closed form and from
`benchmarks/handbook/solved.json`; with `--solve` it first measures the latter anew, in some minutes. A test compares
the page byte by byte, and a slow one measures again. Times are those of the cost model and the device profile, not of
a GPU.

GB are 10⁹ bytes, GiB 2³⁰; L and N are tokens of a sequence unless said otherwise. **Holds with limits** means right as
far as the sentence in its section says."""


def page(solved: Figures) -> str:
    """The whole page.

    Raises:
        StaleVerdictError: a verdict does not go with its figures any more.
    """
    rows = [make(solved) for make in ROWS]
    for number, row in enumerate(rows, start=1):
        if not row.stands:
            raise StaleVerdictError(f"row {number}, {row.topic}: {row.verdict!r} does not go with {row.figure!r}")
    summary = _table(
        ("#", "Topic", "Claim", "Planner", "Verdict"),
        [
            (str(number), f"[{row.topic}](#{_anchor(number, row)})", row.claim, row.figure, _judged(row))
            for number, row in enumerate(rows, start=1)
        ],
    )
    sections = [_section(number, row) for number, row in enumerate(rows, start=1)]
    return "\n\n".join([_INTRODUCTION, "\n".join(summary), *sections]) + "\n"


def _judged(row: Row) -> str:
    return f"**{row.verdict}**" + (f"; wrong: {row.wrong}" if row.wrong else "")


def _section(number: int, row: Row) -> str:
    command = f"`{row.command}`" if row.command.startswith("planner") else row.command
    prose = [f"**Claim:** {row.claim}.", "", f"**Verdict:** {_judged(row)}. {_sentence(row.why)}", "", *row.body]
    lines = [f"## {number}. {row.topic}", "", f"**Command:** {command}", "", *_wrapped(prose)]
    return "\n".join(lines).rstrip()


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _wrapped(lines: Iterable[str]) -> Iterable[str]:
    """Lines as wide as those of other pages; tables are left as they are."""
    for line in lines:
        if line.startswith("|") or not line:
            yield line
        else:
            indent = "  " if line.startswith("* ") else ""
            yield from textwrap.wrap(line, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def _anchor(number: int, row: Row) -> str:
    """As GitHub makes it from the heading: letters, decimal digits and hyphens are left."""
    words = f"{number}. {row.topic}".lower().replace(" ", "-")
    return "".join(letter for letter in words if letter.isalpha() or letter.isdecimal() or letter == "-")
