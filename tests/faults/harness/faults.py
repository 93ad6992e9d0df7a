"""The faults: each function does one and returns how many seconds later work had resumed."""

import resource
import signal
import time
from collections.abc import Callable

from celery import Celery

from tests.faults.harness.cluster import GPUS, WEBHOOK_SECONDS, Member
from tests.faults.harness.receiver import MOODS
from tests.faults.harness.scene import Scene
from worker.contract.messages import CALLBACKS_QUEUE, DELIVER_EVENT, GPU_QUEUE, RUN_SHARD

Fault = Callable[[Scene], float]
FAULTS: dict[str, Fault] = {}
NOTICE_SECONDS = 0.8  # a drain takes half a second
HOSTS = (("gpu1", "dispatcher1"), ("gpu2", "dispatcher2", "callbacks"))  # what runs where, if there were two
# Held by a process, or put off by one that failed.
FILES_AT_WORK = "SELECT batch_id, fence FROM batch_files WHERE due_at > now() AND stage <> 'done'"
PAST_SECONDS = 3.0  # how long a victim that others have taken over from stays away yet


def _fault(inject: Fault) -> Fault:
    FAULTS[inject.__name__.strip("_")] = inject
    return inject


def _a_worker_in_a_shard(scene: Scene) -> tuple[Member, list[tuple[int, int]]]:
    """Stop a gpu worker at a moment when it holds shards, so that what the rows say of it stays true."""
    found: list[tuple[Member, list[tuple[int, int]]]] = []

    def holds_one() -> bool:
        member = scene.cluster.members[scene.rng.choice(GPUS)]
        member.send(signal.SIGSTOP)
        if held := scene.held_by(member.worker):
            found.append((member, held))
            return True
        member.send(signal.SIGCONT)
        return False

    scene.wait(holds_one, "a gpu worker with a shard")
    return found[0]


@_fault
def kill_gpu(scene: Scene) -> float:
    """SIGKILL a gpu worker that holds shards: they go on elsewhere."""
    member, held = _a_worker_in_a_shard(scene)
    member.send(signal.SIGKILL)
    return scene.wait(lambda: scene.taken_over(held), "the shards of a dead worker went on")


@_fault
def term_gpu(scene: Scene) -> float:
    """SIGTERM a gpu worker that holds shards: it hands them back."""
    member, held = _a_worker_in_a_shard(scene)
    member.send(signal.SIGTERM)
    member.send(signal.SIGCONT)
    return scene.wait(lambda: scene.taken_over(held), "the shards of a worker that was told to end went on")


@_fault
def spot_notice(scene: Scene) -> float:
    """SIGTERM a gpu worker, and SIGKILL it soon after, in the middle of its drain perhaps."""
    member, held = _a_worker_in_a_shard(scene)
    member.send(signal.SIGTERM)
    member.send(signal.SIGCONT)
    notice = scene.rng.uniform(0, NOTICE_SECONDS)
    time.sleep(notice)
    member.send(signal.SIGKILL)
    return notice + scene.wait(
        lambda: scene.taken_over(held), "the shards of a worker that was taken away went on"
    )


@_fault
def stop_gpu(scene: Scene) -> float:
    """SIGSTOP a gpu worker past its lease, then let it go on: its late writes must come to nothing."""
    member, held = _a_worker_in_a_shard(scene)
    try:
        seconds = scene.wait(lambda: scene.taken_over(held), "the shards of a stopped worker went on")
        time.sleep(scene.rng.uniform(0, PAST_SECONDS))
    finally:
        member.send(signal.SIGCONT)
    return seconds


@_fault
def kill_web(scene: Scene) -> float:
    """SIGKILL the API: clients come back with the same keys."""
    scene.cluster.members["web"].send(signal.SIGKILL)
    time.sleep(0.2)
    return 0.2 + scene.wait(scene.cluster.is_healthy, "the API answered")


@_fault
def kill_callbacks(scene: Scene) -> float:
    """SIGKILL the callbacks worker while it sends: what it was sending is sent again."""
    scene.receiver.delay = WEBHOOK_SECONDS / 2
    sending = "SELECT id, fence FROM deliveries WHERE state = 'sending'"
    held: list[tuple[str, int]] = []
    try:
        scene.wait(lambda: held.extend(scene.query(sending)) or held, "a delivery under way")
        scene.cluster.members["callbacks"].send(signal.SIGKILL)
    finally:
        scene.receiver.delay = 0.0
    still = "SELECT count(*) FROM deliveries WHERE state <> 'delivered' AND id = ANY(%s)"
    return scene.wait(
        lambda: scene.query(still, [delivery_id for delivery_id, _ in held]) == [(0,)],
        "what a dead worker was sending was delivered",
    )


@_fault
def kill_dispatcher(scene: Scene) -> float:
    """SIGKILL one dispatcher: the other does the same work."""
    scene.cluster.members[scene.rng.choice(("dispatcher1", "dispatcher2"))].send(signal.SIGKILL)
    return scene.next_claim()


@_fault
def stop_dispatcher(scene: Scene) -> float:
    """SIGSTOP one dispatcher for a while, in a transaction perhaps."""
    member = scene.cluster.members[scene.rng.choice(("dispatcher1", "dispatcher2"))]
    member.send(signal.SIGSTOP)
    try:
        seconds = scene.next_claim()
        time.sleep(scene.rng.uniform(0, PAST_SECONDS))
    finally:
        member.send(signal.SIGCONT)
    return seconds


@_fault
def kill_files(scene: Scene) -> float:
    """SIGKILL the files process: what it read or wrote goes on where it was."""
    held: list[tuple[str, int]] = []
    scene.wait(lambda: held.extend(scene.query(FILES_AT_WORK)) or held, "a batch's files at work")
    scene.cluster.members["files"].send(signal.SIGKILL)
    return scene.wait(
        lambda: _is_claimed_again(scene, held), "what a dead process worked on was claimed again"
    )


def _is_claimed_again(scene: Scene, held: list[tuple[str, int]]) -> bool:
    """Whether the files of batches were claimed after that, or are done."""
    still = """
        SELECT count(*) FROM batch_files
        WHERE (batch_id, fence) IN (SELECT * FROM unnest(%s::text[], %s::int[])) AND stage <> 'done'
    """
    ids, fences = [batch_id for batch_id, _ in held], [fence for _, fence in held]
    return scene.query(still, ids, fences) == [(0,)]


@_fault
def files_disk_full(scene: Scene) -> float:
    """Let the API and the files process write no byte into a file: uploads are refused whole."""
    victims = [one.process for name in ("web", "files") if (one := scene.cluster.members[name]).process]
    for process in victims:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    time.sleep(scene.rng.uniform(2, 6))
    for process in victims:
        if process.poll() is None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    held = scene.query(FILES_AT_WORK)

    def is_well() -> bool:
        file = {"file": ("input.jsonl", b"{}\n")}
        kept = scene.cluster.client.post("/v1/files", data={"purpose": "user_data"}, files=file)
        return kept.is_success and _is_claimed_again(scene, held)

    return scene.wait(is_well, "a file was kept, and work on others was claimed again")


@_fault
def redis_flushall(scene: Scene) -> float:
    """Empty Redis: tickets are issued again."""
    with scene.cluster.redis.client() as redis:
        redis.flushall()
    return scene.next_claim()


@_fault
def redis_kill(scene: Scene) -> float:
    """SIGKILL Redis, which keeps nothing, and start it again after a while."""
    scene.cluster.redis.stop(signal.SIGKILL)
    time.sleep(scene.rng.uniform(0, 4))
    scene.cluster.redis.start()
    return scene.next_claim()


@_fault
def redis_stall(scene: Scene) -> float:
    """SIGSTOP Redis: it accepts connections and says nothing."""
    scene.cluster.redis.send(signal.SIGSTOP)
    time.sleep(scene.rng.uniform(2, 8))
    scene.cluster.redis.send(signal.SIGCONT)
    return scene.next_claim()


@_fault
def redis_reset(scene: Scene) -> float:
    """Reset every connection to Redis."""
    for member in scene.cluster.members.values():
        member.redis.reset()
    return scene.next_claim()


@_fault
def postgres_fast_restart(scene: Scene) -> float:
    """Restart Postgres: sessions are ended, what was committed is written."""
    return _restart_postgres(scene, signal.SIGINT)


@_fault
def postgres_immediate_restart(scene: Scene) -> float:
    """Stop Postgres at once and have it recover from its log."""
    return _restart_postgres(scene, signal.SIGQUIT)


def _restart_postgres(scene: Scene, signum: signal.Signals) -> float:
    scene.cluster.postgres.stop(signum)
    time.sleep(scene.rng.uniform(0, 3))
    scene.cluster.postgres.start()
    return scene.next_result()


@_fault
def postgres_backends_ended(scene: Scene) -> float:
    """End every session of the deployment, in the middle of what it is doing."""
    for _ in range(scene.rng.randrange(1, 5)):
        scene.query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name <> 'harness'"
            " AND backend_type = 'client backend'"
        )
        time.sleep(scene.rng.uniform(0, 0.5))
    return scene.next_result()


@_fault
def postgres_reset(scene: Scene) -> float:
    """Reset every connection to Postgres: whether the last commit was done, nobody has heard."""
    for _ in range(scene.rng.randrange(1, 5)):
        for member in scene.cluster.members.values():
            member.postgres.reset()
        time.sleep(scene.rng.uniform(0, 0.5))
    return scene.next_result()


@_fault
def lost_commits(scene: Scene) -> float:
    """Cut the gpu workers off right after a commit, again and again: was it done? Nobody has heard."""
    links = [scene.cluster.members[name].postgres for name in GPUS]
    for link in links:
        link.cut_commits(scene.rng.randrange(3, 10))
    scene.wait(lambda: not any(link.is_cutting for link in links), "commits that were cut off")
    return scene.next_result()


@_fault
def partition_gpu(scene: Scene) -> float:
    """Forward nothing between a gpu worker and Postgres past its lease; then go on, or reset."""
    member = scene.cluster.members[scene.rng.choice(GPUS)]
    scene.wait(lambda: scene.held_by(member.worker), "a gpu worker with a shard")
    member.postgres.stall()
    try:
        time.sleep(0.5)  # what was on its way has arrived
        held = scene.held_by(member.worker)
        seconds = 0.5 + scene.wait(lambda: scene.taken_over(held), "the shards of a lost worker went on")
        time.sleep(scene.rng.uniform(0, PAST_SECONDS))
    finally:
        if scene.rng.random() < 0.5:
            member.postgres.reset()
        member.postgres.heal()
    return seconds


@_fault
def host_cut(scene: Scene) -> float:
    """Forward nothing between the processes of one host and both stores; then go on, or reset."""
    host = scene.rng.choice(HOSTS)
    scene.wait(lambda: scene.held_by(scene.cluster.members[host[0]].worker), "a gpu worker with a shard")
    links = [link for name in host for link in scene.cluster.members[name].links]
    for link in links:
        link.stall()
    try:
        time.sleep(0.5)  # what was on its way has arrived
        held = scene.held_by(scene.cluster.members[host[0]].worker)
        seconds = 0.5 + scene.wait(lambda: scene.taken_over(held), "the shards of a lost host went on")
        time.sleep(scene.rng.uniform(0, PAST_SECONDS))
    finally:
        is_reset = scene.rng.random() < 0.5
        for link in links:
            if is_reset:
                link.reset()
            link.heal()
    return seconds


@_fault
def doubled_tickets(scene: Scene) -> float:
    """Publish tickets for all sorts of rows, each twice and in any order."""
    shards = scene.query("SELECT id FROM shards ORDER BY random() LIMIT 20")
    deliveries = scene.query("SELECT id FROM deliveries ORDER BY random() LIMIT 20")
    tickets = [(RUN_SHARD, GPU_QUEUE, row) for (row,) in shards]
    tickets += [(DELIVER_EVENT, CALLBACKS_QUEUE, row) for (row,) in deliveries]
    tickets *= 2
    scene.rng.shuffle(tickets)
    with Celery(
        "faults", broker=f"redis://127.0.0.1:{scene.cluster.redis.port}/0", set_as_current=False
    ) as app:
        for task, queue, row_id in tickets:
            app.send_task(task, args=[row_id], queue=queue, ignore_result=True)
    return scene.next_claim()


@_fault
def clock_jump(scene: Scene) -> float:
    """Have a gpu worker's clock jump by up to a day, to the future or back."""
    member = scene.cluster.members[scene.rng.choice(GPUS)]
    shift = scene.rng.uniform(-86_400, 86_400)
    (scene.cluster.directory / "facts" / f"clock.{member.name}").write_text(str(shift))
    return scene.next_result()


def _bad_receiver(mood: str) -> Fault:
    def inject(scene: Scene) -> float:
        """Have the receiver misbehave for what its senders take for hours, then behave."""
        scene.receiver.mood = mood
        try:
            refused = scene.receiver.num_refused
            scene.wait(lambda: scene.receiver.num_refused > refused, "a delivery that is refused")
            for _ in range(scene.rng.randrange(3)):
                time.sleep(WEBHOOK_SECONDS)
                scene.skip_hours()
            time.sleep(WEBHOOK_SECONDS)
        finally:
            scene.receiver.mood = "well"
        waiting = scene.undelivered()
        return scene.wait(
            lambda: not waiting & scene.undelivered(),
            "what was refused was delivered",
            # An attempt that was under way when the receiver recovered fails yet, and waits again.
            now_and_then=scene.skip_hours,
        )

    return inject


for _mood in MOODS:
    FAULTS[f"receiver_{_mood}"] = _bad_receiver(_mood)
