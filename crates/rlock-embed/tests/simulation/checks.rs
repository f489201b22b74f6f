//! What must be true at every moment, and at the end.

use crate::calls::LIMIT;
use crate::world::{CLIENTS, MS, SECOND, World};

impl World<'_> {
    pub(crate) fn check(&mut self, told: usize) {
        let now = self.now;
        let mut valid = Vec::new();
        let mut wrong = None;
        for (number, client) in self.clients.iter_mut().enumerate() {
            let is_stopped = now < client.stopped_until;
            let late = client
                .calls
                .values()
                .find(|it| it.latest.is_some_and(|it| it < now));
            if let Some(late) = late.filter(|_| !is_stopped) {
                wrong = Some(format!("client {number}: no outcome in time for {late:?}"));
            }
            for (guard, it) in &mut client.guards {
                let left = client.machine.remaining(*guard, now);
                if number == told && left != client.twin.remaining(*guard, now) {
                    wrong = Some(format!(
                        "guard {guard} counts for {left} ns, not in its twin"
                    ));
                }
                if left > 0 {
                    it.dead_since = None;
                    valid.push(&*it);
                    continue;
                }
                let since = *it.dead_since.get_or_insert(now);
                // After a pause, it sends a heartbeat, and waits for half the
                // grace.
                let is_running = client.stopped_until + it.grace / 2;
                let is_late = now > since.max(is_running) + 50 * MS;
                if is_late && !(it.is_over || is_stopped || client.is_closing) {
                    wrong = Some(format!(
                        "client {number} was not told of the loss of {it:?}"
                    ));
                }
            }
        }
        for (at, one) in valid.iter().enumerate() {
            for (key, fence) in &one.fences {
                let doubtful = self.doubtful.get(key).copied().unwrap_or(0);
                let others = valid.iter().skip(at + 1).filter_map(|other| {
                    let with = other.fences.iter().find(|it| it.0 == *key)?;
                    let is_in_doubt = with.1.min(*fence) <= doubtful;
                    (other.owner != one.owner && !is_in_doubt).then_some(*other)
                });
                let mut permits = one.permits;
                let there = self.server.permits(key, &one.owner);
                if one.mode > 1 && *fence > doubtful && there < permits {
                    wrong = Some(format!("{there} permits are there for {one:?}"));
                }
                for other in others {
                    permits += other.permits;
                    let is_alone = one.mode == 0 || other.mode == 0;
                    if is_alone || (one.mode > 1 && permits > LIMIT) {
                        wrong = Some(format!("held by {one:?} and {other:?}"));
                    }
                }
            }
        }
        if let Some(wrong) = wrong {
            self.is_wrong(|| wrong);
        }
        self.check_kept();
    }

    /// A kept lock is there, unless somebody took it away.
    fn check_kept(&mut self) {
        let now = self.now;
        self.kept.retain(|kept| now < kept.2);
        let mut kept = self.kept.iter();
        if let Some(it) = kept.find(|(key, owner, _)| !self.server.holds(key, owner)) {
            let it = format!("{it:?} was not kept");
            self.is_wrong(|| it);
        }
    }

    /// A later exclusive holder of a key has a larger fence.
    pub(crate) fn check_fences(&mut self, client: usize, guard: u64) {
        let this = &self.clients[client];
        if this.machine.remaining(guard, self.now) == 0 {
            return;
        }
        let it = &this.guards[&guard];
        for (key, fence) in it.fences.clone() {
            let (doubtful, owner) = (self.doubtful.get(&key), it.owner.clone());
            if doubtful.is_some_and(|it| fence <= *it) {
                continue;
            }
            if let Some((last, of)) = self.fences.get(&key)
                && (*last > fence || *last == fence && *of != owner)
            {
                let text = format!("{it:?} comes after the fence {last} of {of}");
                return self.is_wrong(|| text);
            }
            if it.mode == 0 {
                self.fences.insert(key, (fence, owner));
            }
        }
    }

    /// Everything is released, and no more faults happen.
    pub(crate) fn end(&mut self) -> Result<(), String> {
        self.is_ending = true;
        let begun = self.now;
        for _ in 0..200 {
            for client in 0..CLIENTS {
                let guards: Vec<u64> = self.clients[client].guards.keys().copied().collect();
                if self.clients[client].stopped_until <= self.now {
                    self.looks_away(client);
                    guards
                        .into_iter()
                        .for_each(|guard| self.releases(client, guard, None));
                    self.wonders(client);
                }
            }
            self.run_for(SECOND)?;
            let is_idle = self
                .clients
                .iter()
                .all(|it| it.calls.is_empty() && it.guards.is_empty());
            if is_idle && self.now > begun + 30 * SECOND && self.now > self.left_until {
                break;
            }
        }
        self.run_for(20 * SECOND)?;
        for client in &self.clients {
            if !(client.calls.is_empty() && client.guards.is_empty()) {
                return Err(format!("not ended: {:?} {:?}", client.calls, client.guards));
            }
            if !client.machine.is_empty() {
                return Err("something is left in a machine".to_owned());
            }
        }
        if !self.server.is_unused() {
            return Err(format!("left on the server: {:?}", self.server.core.store));
        }
        for client in 0..CLIENTS {
            self.closes(client);
        }
        self.run_for(20 * SECOND)?;
        match self.server.sessions.is_empty() && self.clients.iter().all(|it| it.open.is_empty()) {
            true => Ok(()),
            false => Err("connections are left".to_owned()),
        }
    }
}
