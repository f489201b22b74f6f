"""The results of a run as the page and the tables need them: medians of rounds, and who is better where."""

import statistics

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
        values = self.values(contestant, workload, name)
        return statistics.median(values) if values else None

    def spread(self, contestant, workload, name):
        """The lowest and the highest of the rounds; None where there are not two."""
        values = self.values(contestant, workload, name)
        return (min(values), max(values)) if len(values) > 1 else None

    def values(self, contestant, workload, name):
        """One for each round that was measured."""
        figures = (run.get("figures", {}).get(name) for run in self.runs(contestant, workload))
        return [value for value in figures if value is not None]

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

    def is_shown(self, workload):
        """Whether it was measured with one of ours at least, if any of ours takes part in the whole run."""
        rows = self.rows(workload)
        ours = [each for each in self.contestants if each["is_client"]]
        return any(each in ours for each in rows) if ours else bool(rows)

    def not_reached(self, workload):
        """Those who should have taken part, had there been time."""
        return [self.by_id[who] for who in self.content["planned"].get(workload, []) if not self.runs(who, workload)]

    def ours_for(self, contestant):
        """Our client in the contestant's language, else the one in Rust; None if neither took part."""
        ours = {each["language"]: each for each in self.contestants if each["is_client"]}
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

    def failures(self):
        """What failed: contestant, workload, the first error, how many of how many runs."""
        for contestant in self.contestants:
            for workload in self.content["planned"]:
                runs = self.runs(contestant["id"], workload)
                failed = [run for run in runs if "error" in run]
                if failed:
                    yield contestant, workload, failed[0]["error"], len(failed), len(runs)
