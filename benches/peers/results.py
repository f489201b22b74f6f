"""The results of a run as the page and the tables need them: medians of rounds, and who is better where."""

import statistics

from contestant import OURS

LANGUAGES = ("Rust", "Go", "Node", "Java", "Python")
# A difference smaller than this is noise, not a difference.
NOISE = 1.05


class Results:
    """Everything that was measured. `runs` are dictionaries: contestant, workload, round, and figures or an error."""

    def __init__(self, content):
        self.content = content
        order = {name: place for place, name in enumerate(LANGUAGES)}
        self.contestants = sorted(
            content["contestants"],
            key=lambda each: (order.get(each["language"], 9), ("ours", "yardstick", "peer").index(each["kind"])),
        )
        self.by_id = {each["id"]: each for each in self.contestants}

    def figure(self, contestant, workload, name):
        """The median of all rounds that were measured; None where there is none."""
        values = [
            run["figures"][name]
            for run in self.runs(contestant, workload)
            if "figures" in run and run["figures"].get(name) is not None
        ]
        return statistics.median(values) if values else None

    def runs(self, contestant, workload):
        return [
            run for run in self.content["runs"] if run["contestant"] == contestant and run["workload"] == workload
        ]

    def trouble(self, contestant, workload):
        """The first error of the contestant's runs, if none of them succeeded."""
        runs = self.runs(contestant, workload)
        return runs[0].get("error") if runs and not any("figures" in run for run in runs) else None

    def rows(self, workload):
        """The contestants that took part, in their order."""
        return [each for each in self.contestants if self.runs(each["id"], workload)]

    def ours_for(self, contestant):
        """Our client in the contestant's language, else the one in Rust; None if neither took part."""
        ours = {
            each["language"]: each
            for each in reversed(self.contestants)
            if each["kind"] == "ours" and not each["name"].startswith(f"{OURS}raw") and "-bind" not in each["name"]
        }
        return ours.get(contestant["language"]) or ours.get("Rust")

    def better_than_ours(self, workload, name, smaller_is_better, of_sharers=False):
        """Peers with a better figure than our client in their language, as (peer, its figure, ours, our figure).

        `of_sharers`: without those that give most grants back to the same caller."""
        found = []
        for peer in self.rows(workload):
            ours = self.ours_for(peer)
            if peer["kind"] != "peer" or not ours:
                continue
            if of_sharers and (self.figure(peer["id"], workload, "to_others_share") or 0) < 0.5:
                continue
            theirs, mine = (self.figure(each["id"], workload, name) for each in (peer, ours))
            if theirs is None or mine is None:
                continue
            low, high = (theirs, mine) if smaller_is_better else (mine, theirs)
            if low * NOISE < high:
                found.append((peer, theirs, ours, mine))
        return found

    def violations(self):
        """How often two callers held one lock at a time, by contestant."""
        found = {}
        for run in self.content["runs"]:
            count = run.get("figures", {}).get("two_at_a_time", 0)
            if count:
                found[run["contestant"]] = found.get(run["contestant"], 0) + count
        return found

    def errors(self):
        """What failed, one line for each contestant and workload."""
        lines = []
        for contestant in self.contestants:
            for workload in self.content["workloads"]:
                failed = [run for run in self.runs(contestant["id"], workload) if "error" in run]
                if failed:
                    lines.append(f"{contestant['id']}, {workload}: {len(failed)} × {failed[0]['error']}")
        return lines
