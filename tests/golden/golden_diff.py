"""Compare every byte of the golden cases at two commits: `golden_diff.py BASE [NAME ...]`.

With `--old-names` the answers of BASE are translated by `golden_old_names` first: keys and values
that were renamed since then are no difference.

The cases of this tree run twice: with the package and adapter of a worktree of BASE, and with those
of this tree. Nothing is stored. Names choose the cases whose name contains one of them. Texts that
differ are shown line by line, JSON one value a line, and kept in the folder build/golden.
"""

import argparse
import difflib
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import golden_old_names

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MAX_LINES = 40  # shown of each part that differs
N_PROCESSES = 2  # that share the cases of a tree


def write_answers(folder, names, process):
    """Run one of N_PROCESSES parts of the cases and write each part of their answers to a file."""
    import golden_cases

    folder.mkdir(parents=True, exist_ok=True)
    chosen = [
        name for name in golden_cases.CASES if not names or any(wanted in name for wanted in names)
    ]
    for name in chosen[process::N_PROCESSES]:
        started = time.process_time()
        parts = golden_cases.run_case(name)
        place = folder / name.replace("/", "__")
        place.mkdir()
        for part, text in parts.items():
            (place / part).write_bytes(text)
        if os.environ.get("GOLDEN_TIMES"):
            print(f"{time.process_time() - started:6.2f} s  {name}", flush=True)


def run_in(tree, folder, names):
    """Write the answers of a tree, whose tests the adapter may use, by this tree's cases."""
    with tempfile.TemporaryDirectory() as place:
        shutil.copy(HERE / "golden_cases.py", place)
        shutil.copy(HERE / "golden_diff.py", place)
        shutil.copy(HERE / "golden_old_names.py", place)
        shutil.copy(tree / "tests" / "golden" / "golden_adapter.py", place)
        paths = [place, str(tree), str(tree / "tests")]
        paths += [str(tree / "tests" / name) for name in ("flower", "nvflare")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        program = [sys.executable, "-P", str(Path(place) / "golden_diff.py"), str(folder), *names]
        processes = [
            subprocess.Popen([*program, "--write", str(number)], env=environment, cwd=tree)
            for number in range(N_PROCESSES)
        ]
        exit_codes = [process.wait() for process in processes]
        if any(exit_codes):
            raise SystemExit(f"the golden cases of {tree} could not be run")


def readable_lines(data):
    """A text as lines; JSON with one value a line, where it is JSON."""
    lines = []
    for line in data.decode(errors="backslashreplace").split("\n"):
        try:
            lines += json.dumps(json.loads(line), indent=1, ensure_ascii=False).split("\n")
        except ValueError:
            lines.append(line)
    return lines


def differences(before, after, names, *, old_names=False):
    """(case, part, lines that differ) of every part whose bytes differ, of the named cases."""
    differing = []
    folders = {place.name for folder in (before, after) for place in folder.iterdir()}
    cases = sorted(
        folder
        for folder in folders
        if not names or any(wanted in folder.replace("__", "/") for wanted in names)
    )
    for case in cases:
        folders = before / case, after / case
        parts = {place.name for folder in folders if folder.exists() for place in folder.iterdir()}
        for part in sorted(parts):
            texts = [
                (folder / part).read_bytes() if (folder / part).exists() else b""
                for folder in folders
            ]
            if old_names:
                texts = [
                    golden_old_names.translate(texts[0]),
                    golden_old_names.normalized(texts[1]),
                ]
            if texts[0] != texts[1]:
                lines = difflib.unified_diff(*map(readable_lines, texts), n=1, lineterm="")
                differing.append((case.replace("__", "/"), part, list(lines)[2:]))
    return differing


def kept_answers(commit, names):
    """The folder that keeps the answers of a commit to the named cases, or to all of them."""
    cases = (HERE / "golden_cases.py").read_bytes()
    key = hashlib.sha256(cases + repr((commit, sorted(names))).encode()).hexdigest()[:16]
    return ROOT / "build" / "golden" / f"before-{key}"


def answers_of_commit(commit, names):
    """The folder with the answers of a commit by this tree's cases; kept for the next time."""
    all_answers = kept_answers(commit, [])
    if all_answers.exists():
        return all_answers
    answers = kept_answers(commit, names)
    if answers.exists():
        return answers
    with tempfile.TemporaryDirectory() as place:
        tree = Path(place) / "base"
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "--detach", "--quiet", str(tree), commit], check=True)
        try:
            run_in(tree, Path(place) / "answers", names)
            shutil.copytree(Path(place) / "answers", answers)
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)
    return answers


def compare(base, names, *, old_names=False):
    """Run both trees and print what differs; the number of cases with a difference."""
    parse = ["git", "-C", str(ROOT), "rev-parse", f"{base}^{{commit}}"]
    commit = subprocess.run(parse, check=True, capture_output=True, text=True).stdout.strip()
    after = ROOT / "build" / "golden" / "after"
    shutil.rmtree(after, ignore_errors=True)

    # Both trees at once: each takes one processor.
    with ThreadPoolExecutor(2) as pool:
        earlier = pool.submit(answers_of_commit, commit, names)
        pool.submit(run_in, ROOT, after, names).result()
        before = earlier.result()

    differing = differences(before, after, names, old_names=old_names)
    for case, part, lines in differing:
        print(f"\n{case}: {part}")
        print("\n".join(lines[:MAX_LINES]))
        if len(lines) > MAX_LINES:
            print(f"... and {len(lines) - MAX_LINES} more lines")
    n_cases = len(list(after.iterdir()))
    n_different = len({case for case, _, _ in differing})
    print(f"\n{n_cases} golden cases against {base}: {n_different} differ")
    return n_different


def main():
    """Compare with a commit, or write the answers of one tree."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("base", help="the commit to compare with")
    parser.add_argument("names", nargs="*", help="cases whose name contains one of these")
    parser.add_argument("--write", type=int, help="write a part of the answers to the folder BASE")
    parser.add_argument("--old-names", action="store_true", help="translate names of BASE first")
    options = parser.parse_args()
    if options.write is not None:
        write_answers(Path(options.base), options.names, options.write)
    elif compare(options.base, options.names, old_names=options.old_names):
        sys.exit(1)


if __name__ == "__main__":
    main()
