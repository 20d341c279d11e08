"""Write docs/handbook.md: python -m benchmarks.handbook [--solve]; with --solve, measure what takes a search anew."""

import argparse

from benchmarks.handbook.page import page
from benchmarks.handbook.solved import ROOT, load, measure, write

PAGE = ROOT / "docs" / "handbook.md"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--solve", action="store_true", help="measure solved.json anew, in a few minutes")
    if parser.parse_args().solve:
        write(measure())
    PAGE.write_text(page(load()), encoding="utf-8")


if __name__ == "__main__":
    main()
