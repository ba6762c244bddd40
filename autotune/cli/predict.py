"""``autotune predict``."""

import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from autotune.cli import options
from autotune.cli.tables import aligned, terminal_width, wrapped
from autotune.predict.score import Score, Scored, Summary, score_table
from autotune.predict.table import read_table

WORST = 5
"""Rows shown with the largest errors, per quantity."""

GROUPS = 12
"""Groups shown, per quantity, largest error first."""


@click.command("predict")
@click.option(
    "--table", required=True, type=click.Path(path_type=Path), metavar="FILE",
    help="Measurement table: TSV, or Parquet (a study's). FILE.yaml beside it explains another program's columns.",
)  # fmt: skip
@options.as_json
def command(table: Path, as_json: bool) -> int:
    """How good predictions are: every measured row of a table against its prediction.

    Times are corrected by one efficiency factor per cluster, precision and stack, learned from the other rows of the
    table. Rows that cannot be placed are listed with the reason and not scored; when none can, the exit status is 1.
    """
    read = read_table(table)
    _warn(read.unread)
    score = score_table(read)
    if as_json:
        print(json.dumps(_document(score)))
    else:
        _print(score)
    return 0 if score.rows else 1


def _warn(unread: Mapping[str, str]) -> None:
    """Columns that change nothing, on stderr: a misspelled one would be dropped without a word."""
    for column, meant in unread.items():
        if meant:
            print(f"warning: column {column!r} is not read; did you mean {meant}?", file=sys.stderr)
    others = [column for column, meant in unread.items() if not meant]
    if others:
        print("\n".join(wrapped([f"not read: {', '.join(others)}"], terminal_width())), file=sys.stderr)


def _document(score: Score) -> dict[str, Any]:
    return {
        "rows": [_row(item) for item in score.rows],
        "summary": {quantity: asdict(summary) for quantity, summary in score.summary.items()},
        "groups": {
            quantity: {group: _group(summary) for group, summary in groups.items()}
            for quantity, groups in score.groups.items()
        },
        "skipped": [asdict(item) for item in score.skipped],
        "notes": list(score.notes),
        "efficiency": [
            {"cluster": cluster, "precision": precision, "stack": stack, "efficiency": factor}
            for (cluster, precision, stack), factor in score.efficiency.items()
        ],
    }


def _row(item: Scored) -> dict[str, Any]:
    row: dict[str, Any] = {
        "row": item.row, "quantity": item.quantity, "measured": item.measured, "predicted": item.predicted,
    }  # fmt: skip
    return {**row, "approximate": True} if item.approximate else row


def _group(summary: Summary) -> dict[str, Any]:
    return {name: value for name, value in asdict(summary).items() if name != "within_groups"}


def _print(score: Score) -> None:
    rows = [("quantity", "rows", "MAPE", "bias", "tau", "tau within groups", "")]
    rows += [(name, *_cells(found), _tau(found.within_groups), "") for name, found in score.summary.items()]
    print(aligned(rows))
    for note in score.notes:
        print(f"note: {note}")
    for quantity, groups in score.groups.items():
        _print_groups(quantity, groups)
        worst = sorted((item for item in score.rows if item.quantity == quantity), key=lambda item: -abs(item.error))
        print(f"\nworst rows of {quantity}")
        lines = [("row", "measured", "predicted", "error", "group")]
        lines += [_line(item) for item in worst[:WORST]]
        print(aligned(lines))
    if score.efficiency:
        print("\nefficiency: measured over predicted speed, 1 = as predicted")
        print(aligned([("cluster", "precision", "factor", "stack"), *_factors(score)]))
    if score.skipped:
        print(f"\nskipped, not scored: {len(score.skipped)}")
        reasons: dict[str, list[int]] = {}
        for item in score.skipped:
            reasons.setdefault(item.reason, []).append(item.row)
        for reason, places in reasons.items():
            more = f" and {len(places) - 8} more" if len(places) > 8 else ""
            print(f"  row{'s' * (len(places) > 1)} {', '.join(map(str, places[:8]))}{more}: {reason}")


def _print_groups(quantity: str, groups: Mapping[str, Summary]) -> None:
    several = {group: summary for group, summary in groups.items() if summary.n > 1}
    if len(groups) < 2 or not several:
        return
    ordered = sorted(several.items(), key=lambda item: -item[1].mape)
    print(f"\n{quantity} by group")
    print(aligned([("rows", "MAPE", "bias", "tau", "group"), *((*_cells(s), group) for group, s in ordered[:GROUPS])]))
    if len(ordered) > GROUPS:
        print(f"and {len(ordered) - GROUPS} groups with smaller errors (--json has all)")


def _cells(summary: Summary) -> tuple[str, str, str, str]:
    return str(summary.n), _percent(summary.mape), _percent(summary.bias, sign=True), _tau(summary.kendall_tau)


def _factors(score: Score) -> list[tuple[str, str, str, str]]:
    return [
        (cluster, precision, f"{factor:.3f}" if 0.001 <= factor < 1000 else f"{factor:.0e}", stack)
        for (cluster, precision, stack), factor in score.efficiency.items()
    ]


def _percent(share: float, *, sign: bool = False) -> str:
    """A share as per cent; one beyond a hundredfold as a power of ten, so that it stays readable."""
    text = f"{share:.1%}" if abs(share) < 100 else f"{100 * share:.0e}%"
    return f"+{text}" if sign and share >= 0 else text


def _tau(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _line(item: Scored) -> tuple[str, str, str, str, str]:
    mark = "~" * item.approximate
    return (
        str(item.row),
        f"{mark}{item.measured:.6g}",
        f"{item.predicted:.6g}",
        _percent(item.error, sign=True),
        item.group,
    )
