"""Operations on all definitions at once: export and import of RabbitMQ's JSON document."""

from __future__ import annotations

from typing import Annotated, Any, Final

from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, ConfigError
from amqp10broker.metadata import definitions, definitions_export
from amqp10broker.metadata.catalog import Catalog
from amqp10broker.metadata.definitions import ImportDefinitions, ImportReport
from amqp10broker.metadata.plan import Plan
from amqp10broker.operations.caller import Caller, Steps
from amqp10broker.operations.operation import Command, operation

ENTRIES_AT_ONCE: Final = 200
"""Entries that are made in one step, which takes a millisecond or two."""


@operation(
    "export-definitions", "definitions", changes=False, command=Command("definitions export", "broker.json")
)
async def export_definitions(caller: Caller) -> dict[str, Any]:
    """Export all definitions as one document for `import_definitions`.

    It is consistent, although it is made in steps. Passwords are exported as hashes, or left out where no
    hashes can be made. Raises `PermissionDenied` if the caller is not an administrator.
    """
    passwords = caller.passwords
    conceal = passwords.exportable if passwords is not None else lambda record: None
    document: dict[str, Any] = {}
    for name, section in definitions_export.sections(caller.catalog, conceal).items():
        if not isinstance(section, definitions_export.ExportSection):
            document[name] = section
            continue
        made = document[name] = []
        for begin in range(0, len(section.things), ENTRIES_AT_ONCE):
            made += section.made(begin, begin + ENTRIES_AT_ONCE)
            await caller.node.cluster.pause(0)
    return document


@operation("import-definitions", "definitions", command=Command("definitions import", "broker.json"))
def import_definitions(
    caller: Caller, document: Annotated[Any, "as exported, parsed"]
) -> Steps[dict[str, Any]]:
    """Import a document, except for those exchanges, queues, bindings and policies that are refused.

    Returns ``{"loaded": {section: entries}, "skipped": [reasons], "unknown": [names]}``. Raises `BadRequest`
    if the document is refused; the text contains the place, and `PermissionDenied` if the caller is not an
    administrator.
    """
    passwords = caller.passwords
    try:
        request = definitions.importing(
            document,
            make_password=passwords.make if passwords is not None else None,
            vhost=caller.vhost.name,
            user=caller.access.user if caller.access is not None else None,
        )
    except ConfigError as error:
        raise BadRequest("definitions", str(error)) from error
    report = yield from caller.change(_Refusable(request))
    caller.node.definitions_imported(report.skipped)
    return {"loaded": report.loaded, "skipped": report.skipped, "unknown": report.unknown}


@dataclass(frozen=True, slots=True)
class _Refusable:
    """A document; its faults are those of the request."""

    document: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[ImportReport]:
        try:
            return self.document.plan(catalog)
        except ConfigError as error:
            raise BadRequest("definitions", str(error)) from error
