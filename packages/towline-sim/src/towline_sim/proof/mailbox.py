"""Wake-ups between nodes: lost, late or doubled, as a datagram may be."""

from __future__ import annotations

from towline_once.db.notify import LocalMailbox
from towline_sim.proof.fault_schedule import MESSAGES, Weather
from towline_sim.proof.loop import Node, SimLoop, on_node

_FLIGHT_SECONDS = 0.0002


class PostOffice:
    def __init__(self, loop: SimLoop, weather: Weather) -> None:
        self._loop = loop
        self._weather = weather
        self._boxes: dict[str, SimMailbox] = {}

    def box_for(self, node: Node) -> SimMailbox:
        box = SimMailbox(self, node)
        self._boxes[box.address] = box
        return box

    def others(self, address: str) -> list[str]:
        return [one for one, box in self._boxes.items() if one != address and box.node.alive]

    def send(self, sender: Node, address: str, topic: str) -> None:
        box = self._boxes.get(address)
        if box is None:
            return
        fault = self._weather.at(sender, "post", MESSAGES)
        if fault is not None and fault.kind == "request lost":
            return
        delay = _FLIGHT_SECONDS + (fault.seconds if fault is not None else 0.0)
        for _ in range(2 if fault is not None and fault.kind == "twice" else 1):
            on_node(box.node, self._loop.call_later, delay, box.deliver, topic)

    def close(self, address: str) -> None:
        self._boxes.pop(address, None)


class SimMailbox(LocalMailbox):
    def __init__(self, office: PostOffice, node: Node) -> None:
        super().__init__(f"box-{node}")
        self.node = node
        self._office = office

    async def _send(self, address: str, topic: str) -> None:
        self._office.send(self.node, address, topic)

    async def _send_to_all(self, topic: str) -> None:
        for address in self._office.others(self.address):
            self._office.send(self.node, address, topic)

    def close(self) -> None:
        self._office.close(self.address)
