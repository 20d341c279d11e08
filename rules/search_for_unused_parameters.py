"""Distributed data parallelism that looks for unused parameters at every step."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where Lightning's DDP is to look for unused parameters."""
    strategy = config.get("trainer.strategy")
    switch = config.on("trainer.strategy.init_args.find_unused_parameters")
    if (
        strategy is not None
        and isinstance(strategy.value, str)
        and strategy.value.endswith("find_unused_parameters_true")
    ):
        switch = strategy
    if switch is not None:
        yield report(
            switch,
            "every step walks the whole graph of autograd to look for parameters that are not used",
            help="use ddp, unless some parameters really get no gradient in some steps",
        )


RULE = Rule(
    code="PL309",
    name="search-for-unused-parameters",
    severity=Severity.WASTE,
    summary="DDP looks for unused parameters at every step.",
    why="PyTorch walks the autograd graph after each forward to mark what will get no gradient, and warns where it "
    "finds nothing. A model with such parameters needs it; so this rule speaks only when asked to.",
    instead="`strategy: ddp`.",
    sources=(
        Source(
            title="PyTorch documentation, DistributedDataParallel",
            where="https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html",
        ),
    ),
    find=find,
    dialects=("lightning",),
    opt_in=True,
)
