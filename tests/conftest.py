"""Files whose tests a mark excludes are not imported: torch alone takes over a second."""

MARK_OF_PATH = {
    "test_training.py": "train",
    "flower": "flower",
    "nvflare": "nvflare",
    "browser": "browser",
}


def pytest_ignore_collect(collection_path, config):
    """Return whether the mark of a file or folder is excluded."""
    mark = MARK_OF_PATH.get(collection_path.name)
    return True if mark and f"not {mark}" in config.option.markexpr else None
