"""PositionHistory: where a source has been, thinned by age, saved with positions, in either store."""

from itertools import pairwise

from conduit_py.positions import BYTES_MAX, DAY, HOUR, MINUTE, STARTS_MAX, HistoryPoint, PositionHistory
from conduit_py.store.store import Store
from conduit_py.stream.settler import HistoryRecorder

NOW = 1_800_000_000.0


def walked(seconds: float, *, every: float = MINUTE, size: int = 1) -> PositionHistory:
    """The history of a source that committed so often for so long, until NOW."""
    now = NOW - seconds
    recorder = HistoryRecorder(PositionHistory(), None, lambda: now)
    history = PositionHistory()
    for number in range(int(seconds / every) + 1):
        now = NOW - seconds + number * every
        history = recorder.extend(b"%0*d" % (size, number)) or history
    return PositionHistory([point for point in history.points if not point.start])


def gaps(history: PositionHistory, oldest: float, newest: float) -> set[float]:
    """How far apart the points are whose ages are between these."""
    times = [point.at for point in history.points if newest <= NOW - point.at <= oldest]
    return {later - earlier for earlier, later in pairwise(times)}


def test_points_are_a_minute_apart_then_ten_then_an_hour_and_gone_after_a_week() -> None:
    history = walked(8 * DAY)

    assert gaps(history, 2 * HOUR, 0) == {MINUTE}
    assert gaps(history, 23 * HOUR, 3 * HOUR) == {10 * MINUTE}
    assert gaps(history, 7 * DAY, 26 * HOUR) == {HOUR}
    assert NOW - history.points[0].at <= 7 * DAY
    assert len(history.points) < 450


def test_commits_in_between_are_not_kept() -> None:
    history = walked(5 * MINUTE, every=0.5)

    assert [NOW - point.at for point in history.points] == [5 * MINUTE - n * MINUTE for n in range(6)]


def test_the_last_starts_are_kept_however_many_there_were() -> None:
    history = PositionHistory()
    for number in range(100):
        history = history.with_points(
            HistoryPoint(NOW + number, b"s%d" % number, start=True), HistoryPoint(NOW + number, b"p%d" % number)
        )

    assert [point.position for point in history.points if point.start] == [
        b"s%d" % n for n in range(100 - STARTS_MAX, 100)
    ]


def test_long_positions_leave_room_for_the_newest_only() -> None:
    history = walked(2 * HOUR, size=10_000)

    assert sum(len(point.position or b"") for point in history.points) <= BYTES_MAX
    assert history.points[-1].at == NOW
    assert len(PositionHistory().with_points(HistoryPoint(NOW, b"x" * 2 * BYTES_MAX)).points) == 1


def test_the_point_for_a_moment_is_the_last_that_is_not_after_it() -> None:
    history = PositionHistory([HistoryPoint(100, None, start=True), HistoryPoint(160, b"a"), HistoryPoint(220, b"b")])

    assert [history.at(moment) for moment in (99, 100, 159.9, 160, 1000)] == [
        None,
        HistoryPoint(100, None, start=True),
        HistoryPoint(100, None, start=True),
        HistoryPoint(160, b"a"),
        HistoryPoint(220, b"b"),
    ]


def test_a_clock_that_was_set_back_is_noticed() -> None:
    now = NOW
    recorder = HistoryRecorder(PositionHistory(), None, lambda: now)
    recorder.extend(b"a")

    now = NOW + 59
    assert recorder.extend(b"b") is None
    now = NOW - 3 * HOUR
    assert recorder.extend(b"c") is not None


async def test_a_trail_is_saved_with_the_position_and_forgotten_alone(store: Store) -> None:
    history = PositionHistory([HistoryPoint(1.0, None, start=True), HistoryPoint(2.0, b"\x00\xff")])
    await store.save_positions("orders", {"web": b"2"}, {"web": history})
    await store.save_positions("orders", {"web": b"3", "app": b"1"})

    assert await store.position_history("orders", "web") == history
    assert await store.position_history("orders", "app") == PositionHistory()
    await store.forget_positions("orders", "web")
    assert await store.position_history("orders", "web") == history
    await store.forget_position_history("orders", "web")
    assert await store.position_history("orders", "web") == PositionHistory()
    assert await store.positions("orders") == {"app": b"1"}


async def test_a_run_notes_where_it_began_and_then_once_a_minute(store: Store) -> None:
    now = [NOW]
    for first in (1, 5):
        began = (await store.positions("orders")).get("web")
        recorder = HistoryRecorder(await store.position_history("orders", "web"), began, clock=lambda: now[0])
        for number in range(first, first + 4):
            now[0] += 40
            position = b"%d" % number
            history = recorder.extend(position)
            await store.save_positions("orders", {"web": position}, {} if history is None else {"web": history})

    assert [
        (point.at - NOW, point.position, point.start)
        for point in (await store.position_history("orders", "web")).points
    ] == [
        (0, None, True),
        (40, b"1", False),
        (120, b"3", False),
        (160, b"4", True),
        (200, b"5", False),
        (280, b"7", False),
    ]
