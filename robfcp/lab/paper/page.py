"""The results page and the pages behind it, made from the files `reproduce` leaves."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from robfcp.errors import RobfcpError
from robfcp.figures import save
from robfcp.files import write_atomically
from robfcp.lab.paper.compare import AHEAD, PaperCell, Standing, beaten, cells, standings
from robfcp.lab.paper.contradictions import contradictions
from robfcp.lab.paper.experiments import NAMES
from robfcp.lab.paper.figures import draw_overview
from robfcp.lab.paper.methods import FCP, LABELS, OURS, RELEASED, TEXT
from robfcp.lab.paper.sections import models, section

INTRO = """# Results: the paper's text, its released code and ours side by side

Written by `robfcp reproduce all -o out/paper --page docs/results.md` from outputs that ship with
the package: no network, no GPU. Target coverage 0.9; means over {seeds} seeds, each a new split
of the test samples over the clients, halved into calibration and test, with new attackers.

![Distance from the honest coverage in {total} cells, ours and theirs]({folder}/overview.png)

"""


def write_page(directory: Path, page: Path) -> None:
    """Write the page from the JSON files in `directory`, its sections in a folder beside it."""
    contents = {}
    for name in NAMES:
        path = directory / f"{name}.json"
        if path.is_file():
            contents[name] = json.loads(path.read_text(encoding="utf-8"))
    if not contents:
        raise RobfcpError(f"{directory}: holds no results; run `robfcp reproduce all` first")
    folder = page.parent / page.stem
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        for suffix in (".png", ".csv"):
            if (directory / f"{name}{suffix}").is_file():
                shutil.copyfile(directory / f"{name}{suffix}", folder / f"{name}{suffix}")
        write_atomically(folder / f"{name}.md", section(name, content))
    found = cells(contents)
    write_atomically(folder / "models.md", models(_population(contents)))
    write_atomically(folder / "contradictions.md", contradictions(contents))
    write_atomically(folder / "rivals.md", _rivals_page(found))
    save(draw_overview(found), folder / "overview.png")
    write_atomically(page, _front(contents, found, page.stem))


def _front(contents: dict[str, Any], found: list[PaperCell], folder: str) -> str:
    text = INTRO.format(seeds=_seeds(contents), folder=folder, total=len(found))
    text += "## Five findings\n\n"
    findings = _findings(contents, found, folder)
    text += "".join(f"{number}. {line}\n" for number, line in enumerate(findings, 1))
    text += "\n## Over all cells\n\n" + _standings(standings(found))
    text += f"\n## The tables\n\n{_links(contents, folder)}"
    return text


def _findings(contents: dict[str, Any], found: list[PaperCell], folder: str) -> list[str]:
    by_name = {one.method: one for one in standings(found)}
    lines = []
    if {TEXT, RELEASED, OURS} <= set(by_name):
        text, code, ours = by_name[TEXT], by_name[RELEASED], by_name[OURS]
        lines.append(
            "**Text and code are two methods.** Distance from the honest clients' coverage over "
            "all "
            f"cells, mean (worst): the paper's text {_summary(text)}, its released code "
            f"{_summary(code)}, ours {_summary(ours)}. What each does: "
            f"[contradictions]({folder}/contradictions.md)."
        )
        lines += _luck(contents, folder)
    leads = list(beaten(found))
    most = f" (most: {_lead(leads[0])})" if leads else ""
    lines.append(
        f"**Where a rival beats ours.** By more than {AHEAD} of coverage in {len(leads)} of "
        f"{len(found)} cells{most}: [all of them]({folder}/rivals.md)."
    )
    lines += _quiet(contents, folder)
    lines += _proofs(contents, folder)
    return lines


def _summary(one: Standing) -> str:
    return f"{one.mean:.3f} ({one.worst:+.3f}; over 0.02 in {one.off} of {one.total})"


def _luck(contents: dict[str, Any], folder: str) -> list[str]:
    rows = contents.get("evading", {}).get("rows", ())
    picked = {
        (row["dataset"], row["method"]): row["coverage"]
        for row in rows
        if (row["dataset"], row["variant"]) in (("mnist", "0.0005"), ("pathmnist", "0.001"))
        and row["model"] == "final"
    }
    if not picked:
        return []
    texts = [
        f"{name} {picked[dataset, RELEASED]:.3f} (ours {picked[dataset, OURS]:.3f})"
        for name, dataset in (("MNIST", "mnist"), ("PathMNIST", "pathmnist"))
    ]
    return [
        "**The code's luck, and where it ends.** Its binning sets scores of exactly 0 apart from "
        "those "
        "just above, so it sees the published coverage attack. Liars who send 0.0005 or 0.001 "
        f"instead take it to {' and '.join(texts)}: [the attack]({folder}/evading.md)."
    ]


def _quiet(contents: dict[str, Any], folder: str) -> list[str]:
    rows = contents.get("benign", {}).get("rows", ())
    if not rows:
        return []
    texts = []
    for name in (TEXT, RELEASED, OURS):
        own = [row for row in rows if row["method"] == name]
        worst = max(own, key=lambda row: abs(row["coverage"] - row["honest_coverage"]))
        error = worst["coverage"] - worst["honest_coverage"]
        out = sum(row["flagged"] for row in own) / len(own)
        texts.append(f"{LABELS[name]} {out:.1f} left out, coverage {error:+.3f} at worst")
    return [
        "**When nobody lies** and the number is estimated, of 100 honest clients on average: "
        f"{'; '.join(texts)} ([nobody attacks]({folder}/benign.md))."
    ]


def _proofs(contents: dict[str, Any], folder: str) -> list[str]:
    rows = contents.get("bounds", {}).get("rows", ())
    if not rows:
        return []
    vacuous = sum(row["theorem_1_lower"] <= 0 and row["theorem_1_upper"] >= 1 for row in rows)
    widths = [row["certificate_upper"] - row["certificate_lower"] for row in rows]
    return [
        f"**What is proved.** The paper's Theorem 1 says nothing in {vacuous} of {len(rows)} "
        "measured "
        "settings; few clients, two bins and many samples give it content (K = 6, one liar, H = "
        "2, "
        f"80,000 samples each: [0.868, 0.932]; [exactly where]({folder}/theorem.md)). Our "
        "certificate "
        f"is {min(widths):.3f} to {max(widths):.3f} wide in the same settings "
        f"([bounds]({folder}/bounds.md))."
    ]


def _standings(found: list[Standing]) -> str:
    lines = [
        "Distance from the honest clients' coverage.\n",
        "| method | mean | worst | in | over 0.02 in |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {LABELS[one.method]} | {one.mean:.4f} | {one.worst:+.3f} | {one.where} "
        f"| {one.off} of {one.total} |"
        for one in found
    ]
    return "\n".join(lines) + "\n"


def _links(contents: dict[str, Any], folder: str) -> str:
    lines = [f"- [{content['title']}]({folder}/{name}.md)" for name, content in contents.items()]
    lines += [
        f"- [Where a rival is ahead]({folder}/rivals.md)",
        f"- [Where the paper contradicts itself, or its code]({folder}/contradictions.md)",
        f"- [The shipped models and how their training differs]({folder}/models.md)",
    ]
    return "\n".join(lines) + "\n"


def _lead(one: tuple[float, str, PaperCell]) -> str:
    lead, rival, cell = one
    return f"{cell.setting}, {LABELS[rival]} by {lead:.3f}"


def _rivals_page(found: list[PaperCell]) -> str:
    """Every cell in which a rival is nearer to the honest clients than ours by more than AHEAD."""
    leads = list(beaten(found))
    lines = [
        "# Where a rival is ahead\n",
        "Cells in which the best rival's coverage is nearer to the honest clients' alone than ours "
        f"by more than {AHEAD}: {len(leads)} of {len(found)}. Columns are coverage minus that of "
        "the honest clients alone, and mean set size.\n",
        *_lead_table(leads),
    ]
    return "\n".join(lines) + "\n\n[All results](../results.md)\n"


def _lead_table(leads: list[tuple[float, str, PaperCell]]) -> list[str]:
    named = (FCP, TEXT, RELEASED, OURS)
    lines = [
        "| table | setting | ahead | by | " + " | ".join(LABELS[name] for name in named) + " |",
        "|---|---|---|---|" + "---|" * len(named),
    ]
    for lead, rival, cell in leads:
        texts = [
            f"{cell.error(name):+.3f} / {row['set_size']:.2f}"
            if (row := cell.rows.get(name))
            else ""
            for name in named
        ]
        front = [cell.experiment, cell.setting, LABELS[rival], f"{lead:.3f}"]
        lines.append("| " + " | ".join([*front, *texts]) + " |")
    return lines


def _population(contents: dict[str, Any]) -> str:
    rows = [
        row
        for content in contents.values()
        for row in content["rows"]
        if "everywhere" in row and row["split"] in ("iid", "beta=0.5") and row["model"] == "final"
    ]
    if not rows:
        return "It was not compared in these results."
    worst = max(rows, key=lambda row: abs(row["everywhere"] - row["coverage"]))
    gaps = [abs(row["everywhere"] - row["coverage"]) for row in rows]
    return (
        f"Over {len(rows)} rows (iid and Dirichlet(0.5), final models) the two differ by "
        f"{sum(gaps) / len(gaps):.4f} on average and by {max(gaps):.3f} at most "
        f"({worst['dataset']} {worst['split']} {worst['attack']} {worst['ratio']:.0%}, "
        f"{LABELS[worst['method']]})."
    )


def _seeds(contents: dict[str, Any]) -> int:
    found = {
        row["seeds"] for content in contents.values() for row in content["rows"] if "seeds" in row
    }
    return min(found) if found else 0
