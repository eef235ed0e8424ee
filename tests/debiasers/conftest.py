from tests.remembering import scenes_once

__all__ = ["scenes_once"]
