"""Frame scripts: scenarios in prose and commands, with the whole trace they must give.

A script is a text file. Lines that begin with ``#`` or are empty are prose. A command is any other
line that is not output; output lines begin with ``B>`` (a frame of the broker), ``Q<`` and ``Q>`` (a
letter to and from a queue, after ``letters on``) or ``=`` (what a command found). ``B>D`` is a frame to
client D. Running a script gives its text again, with the output that really came, so that comparing
the two texts compares everything.

=============================================  ====================================================
``C> FLOW h=1 dc=0 cr=10 echo=true``           frames of client C, in one read; `` ; `` between several;
                                               session fields that are not given are filled in correctly
``C> TRANSFER h=0 did=0..84``                  85 frames in one read; bodies are m0, m1, ...
``C> TRANSFER h=0 part=1/3 body=big size=900`` the first third of a message of 900 body bytes
``queue q``  ``delete q``                      declare, delete
``publish q 300 [size=N] [body=x]``            messages from elsewhere: m0, m1, ...
``stall q`` / ``go q``                         letters to the queue wait / go on
``mute q`` / ``speak q``                       the queue's answers wait / go on
``withhold q`` / ``confirm q 86``              published messages wait / the first 86 are confirmed
``confirm q #0,1,3``                           those at these places among the waiting
``alarm memory on`` / ``alarm memory off``
``set max_link_credit 50``                     as the running broker's command
``config max_message_size_bytes 1000``         a setting, before the client connects
``override address=/queues/x* max_link_credit=5``
``connect D [container=x] [max-frame-size=N]`` a client; C with defaults is there from the start unless
                                               a ``connect C`` comes first
``lose C``                                     the connection breaks
``pass 60``                                    seconds, for links that are suspended
``block C`` / ``unblock C``                    the client does not read its socket / reads again
``sleep C`` / ``wake C``                       its sessions get no turn / handle all that waits in one
``count q``                                    ready and unsettled messages
``received C [ch]``                            bodies that arrived since the last ``received``
``status C [ch]``                              each link's line of the status
``letters on``                                 show letters to and from queues
=============================================  ====================================================
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.notation import collapse, show_bodies
from tests.support.session_harness import Harness

OUTPUT = ("B>", "Q>", "Q<", "=")


class ScriptRunner:
    """Runs the commands of one script on one world."""

    def __init__(self, *, chunk: int = 0) -> None:
        self.world = Harness(chunk=chunk)
        self._commands: dict[str, Callable[..., None]] = {
            "queue": self._queue,
            "delete": self.world.delete,
            "publish": self._publish,
            "stall": lambda name: self._switch(name, "stalled", True),
            "go": lambda name: self._switch(name, "stalled", False),
            "mute": lambda name: self._switch(name, "muted", True),
            "speak": lambda name: self._switch(name, "muted", False),
            "withhold": lambda name: self._switch(name, "withholding", True),
            "confirm": self._confirm,
            "alarm": lambda name, on: self.world.alarm(name, on=on == "on"),
            "set": lambda name, value: self.world.set_flow(name, value if value == "auto" else int(value)),
            "config": self._config,
            "override": self._override,
            "connect": self._connect,
            "lose": self.world.lose,
            "pass": lambda seconds: self.world.pass_time(int(seconds)),
            "block": self._block,
            "unblock": self.world.unblock,
            "sleep": lambda label: setattr(self.world.clients[label], "asleep", True),
            "wake": lambda label: setattr(self.world.clients[label], "asleep", False),
            "count": self._count,
            "received": self._received,
            "status": self._status,
            "letters": self._letters,
        }

    def run(self, text: str) -> str:
        """Execute a script; return its text with the current output."""
        result: list[str] = []
        for line in text.splitlines():
            if line.startswith(OUTPUT):
                continue
            result.append(line)
            if line and not line.startswith("#"):
                result += self.do(line)
        return "\n".join(result) + "\n"

    def do(self, line: str) -> list[str]:
        """Execute one command; return its output, with a long run of transfers in one line."""
        return collapse(self.do_plainly(line))

    def do_plainly(self, line: str) -> list[str]:
        """Execute one command; return its output, frame by frame."""
        command, _, rest = line.partition(" ")
        if command.endswith(">"):
            self._client(command[:-1])
            self.world.clients[command[:-1]].send(rest)
        else:
            self._commands[command](*rest.split())
        self.world.settle()
        return self.world.take_trace()

    # --- commands ---------------------------------------------------------------------------------

    def _client(self, label: str) -> None:
        if label not in self.world.clients:
            self.world.connect(label)

    def _connect(self, label: str, *fields: str) -> None:
        self.world.connect(label, dict(field.split("=", 1) for field in fields))

    def _queue(self, name: str) -> None:
        self.world.declare(name)

    def _publish(self, name: str, count: str, *options: str) -> None:
        given = dict(option.split("=") for option in options)
        size = int(given["size"]) if "size" in given else None
        self.world.publish(name, int(count), body=given.get("body", "m"), size=size)

    def _switch(self, name: str, switch: str, on: bool) -> None:
        setattr(self.world.queues[name], switch, on)

    def _confirm(self, name: str, which: str) -> None:
        numbers = [int(place) for place in which[1:].split(",")] if which[0] == "#" else range(int(which))
        self.world.queues[name].confirm(numbers)

    def _config(self, name: str, value: str) -> None:
        changes: dict[str, Any] = {name: value == "true" if value in ("true", "false") else int(value)}
        self.world.config = replace(self.world.config, **changes)

    def _override(self, *fields: str) -> None:
        given = dict(field.split("=", 1) for field in fields)
        self.world.override(
            **{key: value if key in ("address", "container") else int(value) for key, value in given.items()}
        )

    def _block(self, label: str) -> None:
        self._client(label)
        self.world.clients[label].blocked = True

    def _count(self, name: str) -> None:
        queue = self.world.queues[name].queue
        self.world.trace.append(f"= ready={queue.ready} unsettled={queue.unsettled}")

    def _received(self, label: str, channel: str = "0") -> None:
        session = self.world.clients[label].mine[int(channel)]
        bodies, session.received = session.received, []
        self.world.trace.append(f"= {show_bodies(bodies)}")

    def _status(self, label: str, channel: str = "0") -> None:
        status = self.world.status(label, int(channel))
        self.world.trace.append(
            f"= session iw={status['incoming_window']} remote-iw={status['remote_incoming_window']} "
            f"nii={status['next_incoming_id']} noi={status['next_outgoing_id']}"
        )
        for link in status["links"]:
            words = [f"= link h={link['handle']} {link['role']}"]
            for key in (
                "credit",
                "delivery_count",
                "unsettled",
                "available",
                "queue_credit",
                "pending",
                "properties",
            ):
                if link[key] is not None:
                    words.append(f"{key.replace('_', '-')}={json.dumps(link[key], separators=(',', ':'))}")
            words.append(f"waits: {link['waits'] or 'no'}")
            self.world.trace.append(" ".join(words))

    def _letters(self, on: str) -> None:
        self.world.letters_shown = on == "on"


def again(script: ScriptRunner, attach: str, label: str = "C") -> str:
    """Attach again; return the answer to the attach."""
    script.do(f"connect {label} container=client-C")
    script.do(f"{label}> BEGIN")
    return script.do(f"{label}> ATTACH h=1 {attach}")[0]


def reattached(script: ScriptRunner, attach: str) -> str:
    """Lose the connection, connect and attach again; return the answer to the attach."""
    script.do("lose C")
    return again(script, attach)
