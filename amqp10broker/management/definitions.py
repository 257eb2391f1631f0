"""Operations on all definitions at once: export and import of RabbitMQ's JSON document."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from amqp10broker.catalog import definitions
from amqp10broker.catalog.catalog import Catalog
from amqp10broker.catalog.definitions import ImportDefinitions, Report
from amqp10broker.catalog.plan import Plan
from amqp10broker.errors import BadRequest, ConfigError
from amqp10broker.management.caller import Caller, Proposal


def export_definitions(caller: Caller) -> dict[str, Any]:
    """Everything that is declared, as one document that `import_definitions` reads again.

    Passwords are in it as hashes, where there is somebody to make them, and are left out otherwise.

    Raises:
        PermissionDenied: the caller is no administrator.
    """
    caller.may_administer("export-definitions")
    passwords = caller.passwords
    return definitions.export(
        caller.catalog, conceal=passwords.exportable if passwords is not None else lambda record: None
    )


def import_definitions(caller: Caller, document: object, skip_unsupported: bool) -> Proposal:
    """Declare what a document says; all of it, or nothing if any of it is refused.

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
            skip_unsupported=skip_unsupported,
        )
    except ConfigError as error:
        raise BadRequest("definitions", str(error)) from error

    def then(report: Report) -> dict[str, Any]:
        node.definitions_imported()
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
