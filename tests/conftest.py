"""Files whose tests a mark leaves out are not imported: torch alone takes over a second."""

MARKED = {
    "test_training.py": "train",
    "flower": "flower",
    "nvflare": "nvflare",
    "browser": "browser",
}


def pytest_ignore_collect(collection_path, config):
    """Whether the mark of this file or folder is left out."""
    mark = MARKED.get(collection_path.name)
    return True if mark and f"not {mark}" in config.option.markexpr else None
