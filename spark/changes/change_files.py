"""`FileMap`: whether a file is of a table, of TOAST, ignored or unknown; for many files at once."""

from __future__ import annotations

import numpy as np

from quorum_wal.spark.changes.catalog import Catalog, Table
from quorum_wal.walrecords.record_index import Array

#: codes of files; others are `2 * table`, or `2 * table + 1` for its TOAST
IGNORED, UNKNOWN, FOREIGN = -1, -2, -3

_FIRST_NORMAL_OID = 16384


class FileMap:
    """With `only`, the files of all other tables are ignored."""

    def __init__(self, catalog: Catalog, only: Table | None = None) -> None:
        self.tables = catalog.tables
        self._database = catalog.database_oid
        codes = dict.fromkeys(catalog.ignored, IGNORED)
        for number, table in enumerate(self.tables):
            is_wanted = only is None or table.oid == only.oid
            for file, code in (
                (table.relfilenode, 2 * number),
                (table.toast_relfilenode, 2 * number + 1),
            ):
                if file:
                    codes[file] = code if is_wanted else IGNORED
        files = sorted(codes)
        self._files = np.array(files or [0], np.int64)
        self._codes = np.array([codes[file] for file in files] or [IGNORED], np.int64)

    @property
    def followed(self) -> Array:
        """The files of tables and of their TOAST, sorted."""
        found: Array = self._files[self._codes >= 0]
        return found

    def codes_of(self, databases: Array, relfilenodes: Array) -> Array:
        """The code of each file. Shared catalogs, in database 0, are foreign too."""
        place = np.searchsorted(self._files, relfilenodes)
        place[place == len(self._files)] = 0
        codes = np.where(
            self._files[place] == relfilenodes,
            self._codes[place],
            np.where(relfilenodes < _FIRST_NORMAL_OID, IGNORED, UNKNOWN),
        )
        found: Array = np.where(databases == self._database, codes, FOREIGN)
        return found
