"""Operations on all definitions at once: export and import of RabbitMQ's JSON document."""

from __future__ import annotations

from typing import Any, Final

from amqp10broker.catalog import definitions, definitions_export
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definitions import ImportDefinitions, Report
from amqp10broker.catalog.plan import Plan
from amqp10broker.dataclass import dataclass
from amqp10broker.errors import BadRequest, ConfigError
from amqp10broker.management.caller import Caller, Job, Proposal

ENTRIES_AT_ONCE: Final = 200
"""That are made before others have their turn: a millisecond or two."""


def export_definitions(caller: Caller) -> dict[str, Any] | Job:
    """Everything that is declared, as one document that `import_definitions` reads again.

    It is what was declared when it was asked for, although it is made bit by bit. Passwords are in it as
    hashes, where there is somebody to make them, and are left out otherwise.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("export-definitions")
    passwords, node = caller.passwords, caller.node
    conceal = passwords.exportable if passwords is not None else lambda record: None
    if node is None:
        return definitions.export(caller.catalog, conceal=conceal)
    cluster, sections = node.cluster, definitions_export.sections(caller.catalog, conceal)

    async def gather() -> dict[str, Any]:
        document: dict[str, Any] = {}
        for name, section in sections.items():
            if not isinstance(section, definitions_export.Section):
                document[name] = section
                continue
            made = document[name] = []
            for begin in range(0, len(section.things), ENTRIES_AT_ONCE):
                made += section.made(begin, begin + ENTRIES_AT_ONCE)
                await cluster.pause(0)
        return document

    return Job(gather)


def import_definitions(caller: Caller, document: object) -> Proposal:
    """Declare what a document says, but for what is refused of its exchanges, queues, bindings and policies.

    Returns:
        ``{"loaded": {section: entries}, "skipped": [reasons], "unknown": [names]}``.

    Raises:
        BadRequest: the document is refused; the text names the place.
        PermissionDenied: the caller is no administrator.
    """
    node = caller.administered("import-definitions")
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

    def then(report: Report) -> dict[str, Any]:
        node.definitions_imported(report.skipped)
        return {"loaded": report.loaded, "skipped": report.skipped, "unknown": report.unknown}

    return Proposal(_Refusable(request), then)


@dataclass(frozen=True, slots=True)
class _Refusable:
    """A document whose faults are those of the request."""

    document: ImportDefinitions

    def plan(self, catalog: Catalog) -> Plan[Report]:
        """See `catalog.plan`.

        Raises:
            BadRequest: the document is refused; the text names the place.
        """
        try:
            return self.document.plan(catalog)
        except ConfigError as error:
            raise BadRequest("definitions", str(error)) from error
