"""The readers for types of extensions: extension and type name -> reader.

The oid of such a type differs from database to database, so the catalog has its extension.
"""

from __future__ import annotations

from collections.abc import Mapping

from quorum_wal.spark.changes.datum_geometry import cube_text
from quorum_wal.spark.changes.datum_hstore import hstore_json, hstore_text
from quorum_wal.spark.changes.datum_ltree import ltree_text
from quorum_wal.spark.changes.datum_reader import Reader, string_reader
from quorum_wal.spark.changes.datum_vector import halfvec_text, sparsevec_text, vector_text

EXTENSION_READERS: Mapping[tuple[str, str], Reader] = {
    ("citext", "citext"): string_reader(bytes.decode),
    ("cube", "cube"): string_reader(cube_text),
    ("hstore", "hstore"): Reader(hstore_text, hstore_json, is_json=True),
    ("ltree", "ltree"): string_reader(ltree_text),
    ("vector", "vector"): string_reader(vector_text),
    ("vector", "halfvec"): string_reader(halfvec_text),
    ("vector", "sparsevec"): string_reader(sparsevec_text),
}
