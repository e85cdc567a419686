"""The page in a real browser, beside a real coordinator."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.support.coordinator import Up
from tests.support.page import Messages, PageProcess, Relay
from tests.support.viewer import Viewer

Open = Callable[..., Viewer]
ODD = "<script>document.title='mine'</script> \x07\x1b[31m\u202egnp.exe <img src=x onerror=alert(1)>"


def axe(viewer: Viewer) -> None:
    """Check that there is no serious or critical finding about accessibility."""
    module = pytest.importorskip("axe_playwright_python.sync_playwright")
    found = module.Axe().run(viewer.tab).response["violations"]
    serious = [
        (one["id"], [node["html"][:200] for node in one["nodes"]])
        for one in found
        if one["impact"] in ("serious", "critical")
    ]
    assert not serious, serious


def test_times_in_sentences_are_the_viewers(up: Up, view: Open) -> None:
    """Nepal is at no whole hour from any coordinator."""
    begin_s = time.time() + 3 * 86_400
    up.client.submit(["true"], name="later", begin_s=begin_s)
    viewer = view(timezone_id="Asia/Kathmandu")
    words = viewer.row("later").locator(".what")
    there = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(begin_s + 5.75 * 3600))
    words.filter(has_text=f"begins at {there}").wait_for()


def test_the_queue_is_live_and_acts(up: Up, view: Open) -> None:
    running = up.client.submit(["sleep", "600"], name="first", cores=2, expect_s={"": 900})
    waiting = up.client.submit(["sleep", "600"], name="second", time_s=60)
    up.client.submit_all([{"command": ["true"], "folder": "/", "name": "many"}], arrays={0: [1, 2, 3]})
    viewer, other = view(color_scheme="dark"), view()
    for one in (viewer, other):
        one.row("first").get_by_text("▶ running").wait_for()
    viewer.row("first").get_by_role("progressbar").wait_for()
    why = viewer.row("second").locator(".what")
    why.filter(has_text="starts about").wait_for()
    assert waiting.info()["why"] in why.inner_text()
    viewer.row("many").get_by_text("waiting 3").wait_for()
    axe(viewer)
    axe(other)
    began = time.monotonic()
    up.client.submit(["true"], name="late")
    viewer.row("late").wait_for()
    print(f"a new job is shown after {time.monotonic() - began:.2f} s")
    tab = viewer.tab
    tab.keyboard.press("/")  # all by keyboard: search, choose, suspend
    tab.keyboard.type("second")
    viewer.row("first").wait_for(state="detached")
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Space")
    tab.get_by_text("1 selected").wait_for()
    tab.get_by_role("button", name="Suspend", exact=True).press("Enter")
    tab.get_by_text("1 job suspended.").wait_for()
    viewer.row("second").get_by_text("‖ suspended").wait_for()
    other.row("second").get_by_text("‖ suspended").wait_for()
    tab.get_by_role("button", name="Undo: resume").press("Enter")
    viewer.row("second").get_by_text("… waiting").wait_for()
    tab.get_by_role("searchbox").fill("")
    viewer.row("many").get_by_role("checkbox").click()
    tab.get_by_role("button", name="Priority", exact=True).click()
    axe(viewer)
    tab.get_by_role("dialog").get_by_label("Priority").fill("7")
    tab.get_by_role("dialog").get_by_role("button", name="Set").click()
    tab.get_by_text("1 job in the new order.").wait_for()
    up.until(lambda: up.client.job(4).info()["priority"] == 7)
    order = "rows => rows.map(row => row.querySelector('.c-name').textContent)"
    up.until(lambda: tab.locator("tr[data-job]").evaluate_all(order)[:3] == ["first", "many", "second"])
    tab.get_by_role("button", name="Undo: priority as before").click()
    tab.get_by_text("The priorities are as before.").wait_for()
    assert up.client.job(4).info()["priority"] == 0
    viewer.row("first").get_by_role("checkbox").click()
    tab.get_by_role("button", name="Cancel", exact=True).click()
    tab.get_by_role("dialog").get_by_role("button", name="Leave as it is").click()
    assert not running.done()
    tab.get_by_role("button", name="Cancel", exact=True).click()
    axe(viewer)
    tab.keyboard.press("Enter")
    viewer.row("first").get_by_text("⊘ cancelled").wait_for()
    up.until(running.cancelled)
    viewer.row("second").get_by_text("▶ running").wait_for()
    tab.get_by_role("link", name="3", exact=True).click()
    tab.get_by_text("Members of array 3").wait_for()
    up.until(lambda: up.client.call("GET", "/jobs/count")["count"] == 1)  # else one may end as it is killed


@pytest.mark.slow
def test_what_would_start_a_job_sooner(up: Up, view: Open) -> None:
    """In queue and job view, in the coordinator's words; and so it is."""
    up.client.submit(["sleep", "600"], name="first", time_s=3600)
    wide = up.client.submit(["sleep", "600"], name="wide", cores=2, time_s=1800)
    viewer = view()
    words = "with 1 core in place of 2: at once"
    viewer.row("wide").locator(".what").filter(has_text=f"sooner {words}").wait_for()
    viewer.go(f"job/{wide.id}")
    told = viewer.tab.get_by_role("list", name="What would start it sooner")
    told.get_by_text(f"sooner, if submitted again {words}").wait_for()
    axe(viewer)
    (said,) = wide.info(sooner=True)["sooner"]
    narrow = up.client.submit(["sleep", "600"], time_s=1800, name="narrow", **said["fields"])
    wide.cancel()
    up.until(narrow.running)
    told.wait_for(state="hidden")


def test_a_job_that_begins_by_a_clock_that_is_ahead(view: Open) -> None:
    """Of a run time of 0 s it has run for 0 s, all of it."""
    job = "{ served_s: 0, since_s: 100, expected: { run_s: 0, low_s: null, high_s: null } }"
    asked = f"import('/static/words.js').then((module) => module.progress({job}, 99.5))"
    assert view().tab.evaluate(asked) == {"share": 1, "words": "runs for 0 s; 0 s were expected"}


def test_it_stays_live_when_the_coordinator_or_the_connection_is_lost(
    up: Up, page: PageProcess, view: Open
) -> None:
    up.client.submit(["sleep", "600"], name="before")
    relay = Relay(page)
    viewer = view(url=relay.url)
    viewer.row("before").wait_for()
    up.kill()
    viewer.tab.get_by_text("no coordinator runs").wait_for()
    viewer.row("before").get_by_text("▶ running").wait_for()
    up.start("--cores", "2")
    viewer.tab.get_by_text("live: 1 running").wait_for()
    relay.cut()
    viewer.tab.get_by_text("the connection is lost").wait_for()
    up.client.submit(["true"], name="meanwhile").result(30)
    assert viewer.row("meanwhile").count() == 0
    relay.mend()
    viewer.row("meanwhile").get_by_text("✓ done").wait_for()
    viewer.tab.get_by_text("live: 1 running").wait_for()
    gaps = "import('/static/live.js').then((module) => [module.live.gaps, module.live.to])"
    assert viewer.tab.evaluate(gaps) == [0, up_to(page)]
    relay.close()


def up_to(page: PageProcess) -> int:
    """Return the number of the journal's last event."""
    page.cookie = ""
    page.address = page.addresses(1)[-1]
    page.enter()
    return int(Messages(page).next("changes")["to"])


def test_what_users_write_is_text(up: Up, view: Open) -> None:
    script = f"import sys; print({ODD!r}); print({ODD!r}, file=sys.stderr); print('y' * 1_000_000)"
    job = up.client.submit(["python3", "-c", script], name=ODD)
    assert job.result(30) == 0
    viewer = view(color_scheme="dark")
    tab = viewer.tab
    row = viewer.row("gnp.exe")
    row.wait_for()
    assert "<script>document.title='mine'</script> ␇␛[31m⟨U+202E⟩gnp.exe <img" in row.inner_text()
    row.get_by_role("link").first.press("Enter")
    tab.get_by_role("heading", name="Job 1: <script>").wait_for()
    tab.locator("pre.output").filter(has_text="yyyy").wait_for()
    assert len(tab.locator("pre.output").inner_text()) <= 64 << 10
    tab.get_by_role("button", name="stderr").click()
    tab.locator("pre.output").filter(has_text="␇␛[31m⟨U+202E⟩gnp.exe").wait_for()
    assert tab.title() == "tenbin: job 1" and tab.locator("main img, main script").count() == 0
    axe(viewer)


def test_a_job_is_followed(up: Up, view: Open) -> None:
    script = "import time\nfor n in range(1000): print('line', n, flush=True); time.sleep(0.2)"
    for _ in range(2):
        up.client.submit(["python3", "-c", "import time; time.sleep(0.3)"], name="same").result(30)
    job = up.client.submit(["python3", "-c", script], name="same")
    viewer = view()
    viewer.go("job/3")
    tab = viewer.tab
    tab.locator("pre.output").filter(has_text="line 1").wait_for()
    tab.locator("pre.output").filter(has_text="line 9").wait_for()
    tab.get_by_role("img", name="Cores in use").wait_for()
    tab.get_by_text("Memory as a table").press("Enter")
    tab.get_by_role("table", name="Memory over time").wait_for()
    axe(viewer)
    tab.get_by_role("button", name="Cancel").press("Enter")
    tab.get_by_role("dialog").get_by_role("button", name="Cancel").press("Enter")
    tab.get_by_text("⊘ cancelled").wait_for()
    up.until(job.done)
    tab.get_by_role("table", name="What happened").get_by_text("cancelled").first.wait_for()
    told: list[dict[str, Any]] = job.info()["forecasts"]
    assert (
        tab.get_by_role("table", name="Predicted beside measured").locator("tbody tr").count()
        == len(told)
        > 0
    )


@pytest.mark.slow
def test_other_browsers_are_let_in_by_the_next_address_only(
    page: PageProcess, view: Open, browser: Any
) -> None:
    view()
    tab = browser.new_context().new_page()
    tab.goto(page.url)
    tab.get_by_text("open the address that tenbin page has printed").wait_for()
    tab.context.close()
    viewer = view()
    viewer.tab.get_by_text("live: 0 running").wait_for()
    assert "token" not in viewer.tab.url and viewer.tab.evaluate("history.length") <= 2
    assert viewer.tab.evaluate("document.cookie") == "" and viewer.tab.evaluate("document.referrer") == ""


TELEPHONE: dict[str, Any] = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
CUT = """() => [...document.querySelectorAll("header *, main *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .filter((one) => !one.closest("div.wide, .scroller, pre"))
  .map((one) => one.outerHTML.slice(0, 80))"""


def whole(viewer: Viewer) -> None:
    """Check that nothing lies beside the window, and that nothing scrolls sideways but tables."""
    sides = "[document.documentElement.scrollWidth, document.querySelector('main').scrollWidth, innerWidth]"
    page, main, window = viewer.tab.evaluate(sides)
    assert page <= window and main <= window and not viewer.tab.evaluate(CUT)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_telephone(up: Up, view: Open, scheme: str) -> None:
    """Stage and reason first, controls behind one button, a failure with its stderr; what to type first."""
    viewer = view(color_scheme=scheme, **TELEPHONE)
    tab = viewer.tab
    tab.get_by_text("tenbin submit -- echo hello").wait_for()
    whole(viewer)
    axe(viewer)
    up.client.submit(["sleep", "600"], name="first-of-a-rather-long-name-" * 3, cores=2, time_s=900)
    up.client.submit(["sleep", "600"], name="second", time_s=60)
    row = viewer.row("second")
    row.locator(".what").filter(
        has_text=re.compile(r"starts about .*; waits for 1 core \(0 of 2 free\); first in the queue")
    ).wait_for()
    places = row.evaluate(
        "row => ['.c-stage', '.c-what'].map(one => row.querySelector(one).getBoundingClientRect())"
    )
    name = row.evaluate("row => row.querySelector('.c-name').getBoundingClientRect()")
    assert places[0]["left"] < name["left"] and places[0]["top"] < places[1]["top"]
    assert (
        places[1]["right"] <= 390
        and places[1]["bottom"] <= row.bounding_box()["y"] + row.bounding_box()["height"]
    )
    whole(viewer)
    cancel = tab.get_by_role("button", name="Cancel", exact=True)
    assert not cancel.is_visible() and not tab.get_by_role("searchbox").is_visible()
    tab.get_by_role("button", name="Filter, sort, act").click()
    assert cancel.is_visible() and tab.get_by_role("searchbox").is_visible()
    whole(viewer)
    axe(viewer)
    tab.get_by_role("searchbox").fill("none of this name")
    tab.get_by_text("No job is like this.").wait_for()
    tab.get_by_role("link", name="Show all jobs").click()
    row.wait_for()
    up.run("cancel", "all")
    script = "echo said; echo 'no such file: input' >&2; exit 3"
    failed = up.client.submit(["sh", "-c", script], name="failing")
    up.until(failed.done)
    viewer.go(f"job/{failed.id}")
    tab.locator("pre.output").filter(has_text="no such file: input").wait_for()
    tab.get_by_text("exit code 3").first.wait_for()
    whole(viewer)
    axe(viewer)
    quiet = up.client.submit(["sh", "-c", "echo nothing else; exit 1"], name="quiet")
    up.until(quiet.done)
    viewer.go(f"job/{quiet.id}")
    tab.locator("pre.output").filter(has_text="nothing else").wait_for()
    for name, text in (
        ("gantt", "Choose the time"),
        ("nodes", "2 of 2 cores"),
        ("truth", "Intervals"),
        ("measured", "Choose"),
    ):
        viewer.go(name)
        tab.get_by_text(text).first.wait_for()
        whole(viewer)
        axe(viewer)


def test_nodes_say_that_they_are_loading(view: Open) -> None:
    viewer = view()
    held: list[Any] = []

    def hold(route: Any) -> None:
        held.append(route)

    viewer.tab.route("**/api/nodes", hold)
    viewer.go("nodes")
    viewer.tab.get_by_text("Loading the nodes").wait_for()
    for route in held:
        route.continue_()
    viewer.tab.unroute("**/api/nodes")
    viewer.tab.get_by_text("of 2 cores").wait_for()


BODIES_CUT_OFF = """async () => {
  const { get } = await import("/static/api.js");
  const before = window.fetch, said = [];
  for (const givenUp of [true, false]) {
    const control = new AbortController();
    const body = new ReadableStream({
      start: (stream) => {
        if (givenUp) control.abort();
        stream.error(new TypeError("network error"));
      },
    });
    window.fetch = async () => new Response(body);
    const answer = get("/api/session", {}, control.signal);
    said.push(await answer.then(() => ["an answer"], (why) => [why.name, why.message]));
  }
  window.fetch = before;
  return said;
}"""


def test_an_answer_of_which_the_end_is_missing_is_none(view: Open) -> None:
    """Such as that to a list which another one has replaced."""
    given_up, cut_off = view().tab.evaluate(BODIES_CUT_OFF)
    assert given_up[0] == "AbortError"
    assert cut_off[1] == "the answer of the page's process was cut off; load the page again"
