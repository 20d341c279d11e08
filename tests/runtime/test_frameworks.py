"""A plan under the things people train with: each gives what it gives without the plan."""

import copy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.plan import Plan
from planner.runtime.handle import apply
from tests.runtime.models import Case, build, gpt2, loss_of
from tests.runtime.plans import keep_block_inputs, plan_that_keeps, study

_ROOT = Path(__file__).parents[2]


def _block_plan(case: Case) -> Plan:
    subject = study(case.model, case.batch())
    return plan_that_keeps(subject, keep_block_inputs(subject))


@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_two_processes_get_the_gradients_of_the_unplanned_model(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.runtime.distributed_worker", kind, str(rank), str(tmp_path / "store")],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [0, 0] == [process.returncode for process in processes], outputs[0][-3000:]


# -- a plain loop -----------------------------------------------------------------------------------------------


def _train(case: Case, optimizer: torch.optim.Optimizer, steps: range) -> list[Tensor]:
    losses = []
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        loss = loss_of(case.model(**case.batch()))
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return losses


def _fresh() -> tuple[Case, torch.optim.Optimizer]:
    torch.manual_seed(0)
    case = gpt2()
    case.model.train()
    return case, torch.optim.AdamW(case.model.parameters(), lr=1e-3)


def test_two_hundred_steps_give_the_same_losses_also_after_resuming(tmp_path: Path) -> None:
    expected = _train(*_fresh(), range(200))

    case, optimizer = _fresh()
    plan = _block_plan(case)
    handle = apply(case.model, plan)
    first = _train(case, optimizer, range(120))
    torch.save({"model": case.model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "checkpoint")

    resumed, optimizer = _fresh()
    checkpoint = torch.load(tmp_path / "checkpoint")
    resumed.model.load_state_dict(checkpoint["model"])
    optimizer.load_state_dict(checkpoint["optimizer"])
    apply(resumed.model, plan)
    second = _train(resumed, optimizer, range(120, 200))

    assert all(map(torch.equal, expected, [*first, *second]))
    assert 200 == len(expected)
    assert 0 == handle.fallbacks


# -- trainers ---------------------------------------------------------------------------------------------------


class _Rows(torch.utils.data.Dataset[dict[str, Tensor]]):
    """A few sequences."""

    def __init__(self) -> None:
        self._ids = torch.randint(0, 96, (16, 24), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self._ids)

    def __getitem__(self, place: int) -> dict[str, Tensor]:
        return {"input_ids": self._ids[place], "labels": self._ids[place]}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")
def test_the_hugging_face_trainer_trains_the_same(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")

    def losses(*, is_planned: bool) -> list[float]:
        case = build("gpt2")
        if is_planned:
            apply(case.model, _block_plan(case))
        trainer = transformers.Trainer(
            model=case.model,
            args=transformers.TrainingArguments(
                output_dir=str(tmp_path),
                per_device_train_batch_size=4,
                gradient_accumulation_steps=2,
                max_steps=4,
                logging_steps=1,
                save_strategy="no",
                report_to=[],
                use_cpu=True,
                seed=3,
                disable_tqdm=True,
            ),
            train_dataset=_Rows(),
        )
        trainer.train()
        return [row["loss"] for row in trainer.state.log_history if "loss" in row]

    expected = losses(is_planned=False)
    assert 4 == len(expected)
    assert expected == losses(is_planned=True)


@pytest.mark.filterwarnings("ignore")
def test_lightning_trains_the_same(tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Task(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model
            self.losses: list[Tensor] = []

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            loss = loss_of(self.model(**batch))
            self.losses.append(loss.detach().clone())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    def losses(*, is_planned: bool) -> list[Tensor]:
        case = build("gpt2")
        if is_planned:
            apply(case.model, _block_plan(case))
        task = Task(case.model)
        trainer = lightning.Trainer(
            max_steps=4,
            accelerator="cpu",
            accumulate_grad_batches=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=str(tmp_path),
        )
        torch.manual_seed(5)
        trainer.fit(task, torch.utils.data.DataLoader(_Rows(), batch_size=4))
        return copy.deepcopy(task.losses)

    expected = losses(is_planned=False)
    assert 8 == len(expected)
    assert all(map(torch.equal, expected, losses(is_planned=True)))
