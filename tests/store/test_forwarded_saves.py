"""How saves of many pipelines go from their process to the server: together, and none of a run that has ended."""

import msgspec
import trio
import trio.testing

from conduit_py.child.link import TO_CHILD, TO_SERVER, StoreCall, StoreReply
from conduit_py.child.store import ChildStore
from conduit_py.owned_process import ChildLink


async def test_saves_that_wait_together_are_one_call_without_those_that_were_cancelled() -> None:
    here, there = trio.socket.socketpair()
    server, child = ChildLink(trio.SocketStream(here), TO_SERVER), ChildLink(trio.SocketStream(there), TO_CHILD)
    store, given_up, saved = ChildStore(child), trio.CancelScope(), list[str]()

    async def listen() -> None:
        while isinstance(message := await child.receive(), StoreReply):
            store.answer(message)

    async def save(node: str, scope: trio.CancelScope) -> None:
        with scope:
            await store.save_positions("p", {node: b"1"})
            saved.append(node)

    async def take() -> list[str]:
        """Take a call, answer it, and return the nodes whose positions are in it."""
        call = await server.receive()
        assert isinstance(call, StoreCall)
        await trio.testing.wait_all_tasks_blocked()
        given_up.cancel()
        await trio.testing.wait_all_tasks_blocked()
        await server.send(StoreReply(call.number, msgspec.msgpack.encode(None)))
        return [node for _, _, node, _ in msgspec.msgpack.decode(call.arguments)[0]]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(store.forward_saves)
        nursery.start_soon(listen)
        nursery.start_soon(save, "first", trio.CancelScope())
        await trio.testing.wait_all_tasks_blocked()
        for node in ("second", "third"):
            nursery.start_soon(save, node, trio.CancelScope())
        nursery.start_soon(save, "gone", given_up)
        calls = [await take(), sorted(await take())]
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()

    assert calls == [["first"], ["second", "third"]]
    assert sorted(saved) == ["first", "second", "third"]
