from typing import Any

import pytest

from planner.configs.tree import Document, Entry, Mapping, Scalar, Sequence, SourceFormat, plain
from planner.linting.sources import parse


def commands(script: str) -> list[dict[str, Any]]:
    """The settings of each command, without the environment of those that have none."""
    found = plain(parse(script, "x.sh", SourceFormat.SHELL).root)
    assert isinstance(found, list)
    return [{key: value for key, value in command.items() if key != "$env" or value} for command in found]


def flags(script: str) -> dict[str, Any]:
    """The flags of the only command."""
    (command,) = commands(script)
    return {key: value for key, value in command.items() if not key.startswith("$")}


def place(script: str, key: str) -> tuple[str, str, int]:
    """What stands at a flag's key and at its value, and the line of the value."""
    document = parse(script, "x.sh", SourceFormat.SHELL)
    entry = entry_of(document, key)
    value = entry.value
    line, _ = document.position(value.start)
    return script[entry.key_start : entry.key_end], script[value.start : value.end], line


def entry_of(document: Document, key: str) -> Entry:
    assert isinstance(document.root, Sequence)
    node = document.root.items[-1]
    for part in key.split("."):
        assert isinstance(node, Mapping)
        entry = node.by_key[part]
        node = entry.value
    return entry


def test_flags_have_values_as_an_argument_parser_takes_them() -> None:
    assert {
        "n": 8,
        "lr": 1e-4,
        "eps": 0.001,
        "neg": -1,
        "bf16": True,
        "ok": False,
        "save": "no",
        "path": "a/b.c",
        "empty": "",
        "text": "a b",
        "quoted": 5,
        "octal": 10,
        "many": [1, "x", -2.5],
        "eq": "1=2",
        "swiglu": True,
    } == flags(
        "x --n 8 --lr 1e-4 --eps .001 --neg -1 --bf16 True --ok false --save no --path a/b.c --empty '' --text \"a b\" "
        "--quoted '5' --octal 010 --many 1 x -2.5 --eq=1=2 --swiglu"
    )


def test_repeated_flags_are_kept_and_the_last_one_counts() -> None:
    document = parse("x --a 1 --a 2", "x.sh", SourceFormat.SHELL)
    assert isinstance(document.root, Sequence)
    command = document.root.items[0]
    assert isinstance(command, Mapping)
    assert [1, 2] == [e.value.value for e in command.entries if e.key == "a" and isinstance(e.value, Scalar)]
    assert 2 == flags("x --a 1 --a 2")["a"]


def test_dots_in_flags_and_overrides_are_levels() -> None:
    assert {"training": {"seq_len": 1, "compile": True}, "x": 2} == flags(
        "x --training.seq_len 1 --x 2 --training.compile"
    )
    assert {"actor": {"lr": 1e-6, "path": "a"}, "n": 1} == flags("python -m main actor.lr=1e-6 +actor.path='a' n=1")
    assert ("seq_len", "1", 1) == place("x --training.seq_len 1", "training.seq_len")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('ARGS="--a 1 --b"\nx $ARGS', {"a": 1, "b": True}),
        ("ARGS=(--a 1\n --b  # note\n)\nx ${ARGS[@]}", {"a": 1, "b": True}),
        ('ARGS=(--a "1 2")\nx "${ARGS[@]}"', {"a": "1 2"}),
        ('A=(--a 1)\nA+=(--b 2)\nx "${A[@]}"', {"a": 1, "b": 2}),
        ('A="--a 1"\nA="${A} --b 2"\nA+=" --c 3"\nx $A', {"a": 1, "b": 2, "c": 3}),
        ('A=(--a 1)\nB=("${A[@]}" --b $C)\nx "${B[@]}"', {"a": 1, "b": "$C"}),
        ("N=4\nx --n $N --m=${N} --k a-${N}b", {"n": 4, "m": 4, "k": "a-4b"}),
        ("x --n ${N:-8} --m ${M-9} --k \"${K:-'a b'}\"", {"n": 8, "m": 9, "k": "'a b'"}),
        ("N=${N:-8}\nx --n $N", {"n": 8}),
        (': "${N:=8}"\nx --n $N', {"n": 8}),
        ("E=()\nx --a 1 ${E[@]+\"${E[@]}\"} $@", {"a": 1}),
        ("x --a $1 --b $(nproc) --c $((2*3)) --d `date` --e ${X%.py}", {
            "a": "$1", "b": "$(nproc)", "c": "$((2*3))", "d": "`date`", "e": "${X%.py}"}),
        ("x --a 1 \\\n  --b 2 \\\r\n  --c 3", {"a": 1, "b": 2, "c": 3}),
        ("x --a 1 > log 2>&1 | tee x; y", {"a": 1}),
        ("x --a 1 # --b 2", {"a": 1}),
        ("cat <<EOF\ny --c \"\nEOF\nx --a 1", {"a": 1}),
        ("cmd='python x.py --a 1 &> log'\neval $cmd", {"a": 1}),
        ("CMD=(x --a 1)\n\"${CMD[@]}\" --b", {"a": 1, "b": True}),
        ("T=\"cd y;\npython x.py --a 1 ${U[@]}\"\nsrun -N 1 bash -x -c \"${T}\"", {"a": 1}),
        ("run() {\n  local n=1\n  x --a $n --b $M\n}\nM=2\nrun", {"a": 1, "b": 2}),
        ("cd y && export M=2 && x --b $M", {"b": 2}),
        ("(cd y; x --a 1)", {"a": 1}),
        ("time ! x --a 1", {"a": 1}),
    ],
)  # fmt: skip
def test_what_a_script_says_is_put_in(script: str, expected: dict[str, Any]) -> None:
    assert expected == flags(script)


UNKNOWN = "${...}"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('A=(--a 1)\nif [ $1 ]; then A+=(--b 2); fi\nx "${A[@]}"', {"a": 1, "b": UNKNOWN}),
        ('A="--a 1"\nif [ $1 ]; then\nA="$A --b"\nelse A="$A --c"; fi\nx $A', {"a": 1, "b": UNKNOWN, "c": UNKNOWN}),
        ("if [ $1 ]; then A='--a 1'; elif y; then A='--a 2'; else A='--b'; fi\nx $A --c", {
            "a": UNKNOWN, "b": UNKNOWN, "c": True}),
        ("A=--a\nif [ $1 ]; then A=--b; fi\nx $A", {"a": UNKNOWN, "b": UNKNOWN}),
        ("N=1\nif [ $1 ]; then N=2; fi\nx --n $N", {"n": "$N"}),
        ("N=1\n[ $1 ] && N=2\nx --n $N", {"n": "$N"}),
        ("N=1\nif [ $1 ]; then N=2; x --n $N --m; fi", {"n": 2, "m": True}),
        ("case $1 in a) N=1 ;; *) N=2 ;; esac\nx --n $N", {"n": "$N"}),
        ("while [ $# -gt 0 ]; do\n  case $1 in --n) N=$2; shift ;; esac\ndone\nx --n $N", {"n": "$N"}),
        ("N=1\nfor N in 1 2; do x --n $N; done", {"n": "$N"}),
        ("N=1\nfor i in 1 2; do x --n $N; N=2; done", {"n": "$N"}),
        ("N=1\nf() { N=2; }\nf\nx --n $N", {"n": "$N"}),
        ("f() { x --n $N; }\nN=1\nf\nN=2\nf", {"n": "$N"}),
        ("N=1\n((N++))\nx --n $N", {"n": "$N"}),
        ("N=1\nread N\nx --n $N", {"n": "$N"}),
        ("N=1\nunset N\nx --n $N", {"n": "$N"}),
        ("A=(1 2)\nA[0]=3\nx --n ${A[0]} --m ${#A[@]}", {"n": "${A[0]}", "m": "${#A[@]}"}),
        ("x --a 1\nif [ $1 ]; then x --a 1 --a 2; fi".splitlines()[1], {"a": 2}),
        ("A=(--a 1)\nif [ $1 ]; then A+=(--a 2); fi\nx ${A[@]}", {"a": UNKNOWN}),
        ("x --a 1 ${MORE[@]} --$B --c", {"a": 1, "c": True}),
    ],
)  # fmt: skip
def test_what_a_condition_or_a_run_decides_is_not_known(script: str, expected: dict[str, Any]) -> None:
    assert expected == flags(script)


def test_arguments_that_are_not_known_are_named() -> None:
    (command,) = commands('x --a 1 "$@" ${MORE[@]} --$B')
    assert {"$command": "x", "$unknown": ["$@", "${MORE[@]}", "--$B"], "a": 1} == command


@pytest.mark.parametrize(
    ("script", "program", "launcher", "own"),
    [
        ("torchrun --nproc_per_node 8 --standalone t.py --a 1", "torchrun t.py", {"nproc_per_node": 8,
         "standalone": True}, 1),
        ("torchrun --nnodes=2 -m a.b --a 1", "torchrun -m a.b", {"nnodes": 2, "m": True}, 1),
        ("D='--nnodes 2'\npython -m torch.distributed.launch $D t.py --a 1",
         "python -m torch.distributed.launch t.py", {"nnodes": 2}, 1),
        ("accelerate launch --config_file a.yaml --use_fsdp t.py --a 1", "accelerate launch t.py",
         {"config_file": "a.yaml", "use_fsdp": True}, 1),
        ("deepspeed --num_gpus 8 --no_local_rank t.py --a 1", "deepspeed t.py", {"num_gpus": 8,
         "no_local_rank": True}, 1),
        ("torchrun --nproc-per-node=4 /opt/bin/swift sft --a 1", "torchrun /opt/bin/swift sft", {"nproc-per-node": 4},
         1),
        ("srun -N 2 --mpi=pmix python -u t.py --a 1", "srun python t.py", {"N": 2, "mpi": "pmix"}, 1),
        ("ray job submit --address x -- python3 t.py --a 1", "ray python3 t.py", {"address": "x"}, 1),
        ("swift sft --a 1", "swift sft", None, 1),
        ("NPROC=8 megatron sft --a 1", "megatron sft", None, 1),
        ("python -X dev -u t.py --a 1", "python t.py", None, 1),
        ("$LAUNCH t.py --a 1", "$LAUNCH t.py", None, 1),
        ("vllm serve m --a 1", "vllm serve m", None, 1),
    ],
)  # fmt: skip
def test_a_launchers_flags_are_kept_apart(script: str, program: str, launcher: dict[str, Any] | None, own: int) -> None:
    (command,) = commands(script)
    assert program == command["$command"]
    assert launcher == command.get("$launcher")
    assert own == command["a"]


def test_the_environment_is_what_is_exported_by_then_and_what_stands_before_the_command() -> None:
    script = "export A=1 B='x y'\nC=3\nD=4\nexport C\nE=5 x --a\nexport F=6\nunset A\n[ $1 ] && export B=7\nx --b\n"
    assert [
        {"$command": "x", "$env": {"A": 1, "B": "x y", "C": 3, "E": 5}, "a": True},
        {"$command": "x", "$env": {"A": UNKNOWN, "B": UNKNOWN, "C": 3, "F": 6}, "b": True},
    ] == commands(script)


@pytest.mark.parametrize(
    ("script", "key", "expected"),
    [
        ("x --a-b 1", "a-b", ("a-b", "1", 1)),
        ("x --a='1 2'", "a", ("a", "'1 2'", 1)),
        ('ARGS="\n  --a 1"\nx $ARGS', "a", ("a", "1", 2)),
        ('N=8\nARGS=(\n  --a "$N"\n)\nx ${ARGS[@]}', "a", ("a", "8", 1)),
        ("x --a ${N:-8}", "a", ("a", "8", 1)),
        ("N=8\nx --a n-$N", "a", ("a", "n-$N", 2)),
        ("x --a", "a", ("a", "", 1)),
        ("x \\\n --a 1 2\\\n 3", "a", ("a", "1 2\\\n 3", 2)),
        ("A=1 \\\nx --b", "$env.A", ("A", "1", 1)),
        ("export A='b'\nx --b", "$env.A", ("A", "'b'", 1)),
        ("torchrun --n 2 a/t.py --b", "$command", ("", "a/t.py", 1)),
        ("C='x --a 1'\neval $C", "a", ("a", "1", 1)),
    ],
)
def test_places_are_where_flag_and_value_are_written(script: str, key: str, expected: tuple[str, str, int]) -> None:
    assert expected == place(script, key)


def test_each_command_with_flags_is_one_config_in_the_order_of_the_file() -> None:
    script = (
        "f() { x --a 1; }\npip install y\nmkdir -p z\npython t.py\nwhile true; do x --b 2; done\nx --c 3 & x --d 4\n"
    )
    assert ["a", "b", "c", "d"] == [next(key for key in command if key[0] != "$") for command in commands(script)]
