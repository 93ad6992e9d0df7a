"""Find batches by the name and the metadata that their customers gave them."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement

from worker.store.rows.batches import BatchRow


@dataclass(frozen=True, slots=True)
class Labels:
    """The name and the entries of metadata that wanted batches have; by default any."""

    name: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)

    def conditions(self) -> list[ColumnElement[bool]]:
        """Return the conditions on a batch, each of which an index serves."""
        found: list[ColumnElement[bool]] = []
        if self.name is not None:
            found.append(BatchRow.name == self.name)
        if self.metadata:
            found.append(BatchRow.metadata_.contains(dict(self.metadata)))
        return found


ANY = Labels()
