"""What a result says: one HTML page that works offline, pictures for a README, a table for the terminal.

Everything is made from the result file alone, so an old one can be reported again.
"""

from __future__ import annotations

from .page import write_page
from .pictures import write_pictures
from .table import headline_table

__all__ = ["headline_table", "write_page", "write_pictures"]
