"""CP-SAT runs that Ctrl-C can end: by itself, Python would notice it only when the solver is done."""

from concurrent.futures import Future, ThreadPoolExecutor, wait

from ortools.sat.python import cp_model

# How soon Ctrl-C is noticed.
_LATENCY_S = 0.1


class SolverInterrupted(KeyboardInterrupt):
    """Ctrl-C stopped CP-SAT; what it had found until then can be asked of it.

    Args:
        status: the solver's.
    """

    def __init__(self, status: int) -> None:
        super().__init__()
        self.status = status


def run(solver: cp_model.CpSolver, model: cp_model.CpModel) -> int:
    """The solver's status. It runs in a thread, so that Ctrl-C reaches Python while it works.

    The thread is waited for by its future: an interrupted `Thread.join` with a timeout takes a running thread for
    finished (CPython 3.11), and a solver that outlives the interpreter aborts the process.

    Raises:
        SolverInterrupted: Ctrl-C was pressed; the solver has stopped.
    """
    status: Future[int] | None = None
    with ThreadPoolExecutor(max_workers=1) as executor:
        try:
            status = executor.submit(solver.solve, model)
            while not status.done():
                wait([status], _LATENCY_S)
        except KeyboardInterrupt as interrupt:
            if status is None:
                raise
            while not status.done():  # more than once: a search that has not begun cannot be stopped
                solver.stop_search()
                wait([status], _LATENCY_S)
            raise SolverInterrupted(int(status.result())) from interrupt
    return int(status.result())
