//! What must be true at every moment.

use rlock_engine::engine::claims::Claims;
use rlock_engine::engine::proof::Proof;
use rlock_engine::engine::terms::Ask;

use crate::actor::{Calling, Guard, Kept};
use crate::cluster::{SLOTS, place};
use crate::server::name;
use crate::world::{MS, SECOND, World, all_actors, nanos};

/// A call that waits for no other owner has its outcome after this time: its
/// request and the reply travel for at most two seconds each.
const QUICK: u64 = 4_100 * MS;
/// How often the watches of all holds are checked.
const CHECK_INTERVAL: u64 = 20 * MS;

impl World {
    pub(crate) fn check(&mut self) -> Result<(), String> {
        if let Some(wrong) = self.wrong.take() {
            return Err(wrong);
        }
        self.check_calls()?;
        self.check_losses()?;
        self.check_kept()?;
        self.check_permits()?;
        self.check_guards()
    }

    /// The server never has fewer permits for a hold than its valid guards have.
    fn check_permits(&self) -> Result<(), String> {
        let mut all = self.permits().into_iter();
        match all.find(|(_, used, has)| has < used) {
            Some((proof, used, has)) => Err(format!("{has} permits for {used} of {proof:?}")),
            None => Ok(()),
        }
    }

    /// Whether the server has exactly the permits that are in use, unless it does
    /// not let the client close its earlier connections.
    pub(crate) fn has_permits_in_use(&self) -> bool {
        let is_unsure = self.clients.iter().any(|client| client.is_unsure);
        let all = self.permits();
        is_unsure || all.iter().all(|(_, used, has)| has == used)
    }

    /// For each hold the permits of all its valid guards, and those at the server;
    /// without the holds that the server does not know.
    fn permits(&self) -> Vec<(&Proof, u32, u32)> {
        let now = self.instant();
        let mut all = Vec::new();
        for client in &self.clients {
            let guards = client.actors.iter().filter_map(|it| it.guard.as_ref());
            let is_limited = |it: &&Guard| matches!(it.ask, Ask::Permits { .. });
            for Guard { proof, .. } in guards.clone().filter(is_limited) {
                let there = &self.servers[self.home(&proof.claims)];
                let has = there.permits(&proof.claims, proof.fence());
                let of_same = guards.clone().filter(|it| it.proof.hold == proof.hold);
                let used = of_same.map(|it| it.ask.permits()).sum();
                all.extend(
                    has.filter(|_| proof.is_live(now))
                        .map(|has| (&**proof, used, has)),
                );
            }
        }
        all
    }

    fn check_calls(&self) -> Result<(), String> {
        for (number, client) in self.clients.iter().enumerate() {
            if self.now < client.stopped_until {
                continue;
            }
            for calling in client.actors.iter().filter_map(|actor| actor.call.as_ref()) {
                let is_late = calling.latest.is_some_and(|latest| self.now > latest + MS);
                if is_late {
                    return Err(format!("no outcome in time for {calling:?}"));
                }
                if self.now > calling.begun + QUICK && self.is_undisturbed(number, calling) {
                    return Err(format!("others have delayed {calling:?}"));
                }
            }
        }
        Ok(())
    }

    /// Whether a call had nothing to wait for, and no fault has affected the
    /// connection, the server and the slot that it needs.
    fn is_undisturbed(&self, client: usize, calling: &Calling) -> bool {
        let Some((server, number)) = calling.quick else {
            return false;
        };
        let (client, there) = (&self.clients[client], &self.servers[server]);
        let mut links = client.links.values();
        let is_linked = links.any(|link| link.number == number && !link.is_cut);
        let place = &self.places[calling.place];
        let is_settled =
            place.moving.is_none() && place.since.max(place.disputed_until) < calling.begun;
        let is_there = !there.is_down(self.now) && there.refuses_until < calling.begun;
        // It may need replicas, which the client asks on a separate connection.
        let is_separate_up = client.silent_until.max(client.refused_until) < calling.begun;
        is_linked
            && is_settled
            && is_there
            && is_separate_up
            && client.stopped_until < calling.begun
    }

    fn check_losses(&self) -> Result<(), String> {
        let now = self.instant();
        for client in &self.clients {
            for Guard { proof, .. } in client.actors.iter().filter_map(|it| it.guard.as_ref()) {
                let mut names = proof.claims.names();
                let fence = proof.fence();
                if proof.is_live(now)
                    && let Some(name) =
                        names.find(|name| client.lost.contains(&((*name).clone(), fence)))
                {
                    return Err(format!("{proof:?} counts, though {name:?} was lost"));
                }
            }
        }
        Ok(())
    }

    /// A kept lock is still held, unless an operator has ended it.
    fn check_kept(&mut self) -> Result<(), String> {
        let now = self.instant();
        self.kept.retain(|kept| now < kept.until);
        for Kept { claims, until } in &self.kept {
            let there = &self.servers[self.home(claims)];
            let is_held = claims.keys().all(|key| {
                let name = rlock_core::Name { db: 0, key };
                let fields = there.core.store.fields(there.time(self.now), name);
                fields.contains_key(claims.owner().as_str())
            });
            if !is_held {
                return Err(format!("{claims:?} was not kept until {until:?}"));
            }
        }
        Ok(())
    }

    /// No two valid guards exclude each other, and fences grow. There is one
    /// exception: a replica that became the master may not have known a grant.
    /// That grant may stay valid until its lease ends, while a grant with a
    /// larger fence is valid too.
    fn check_guards(&mut self) -> Result<(), String> {
        let now = self.instant();
        let mut held: Vec<&Guard> = Vec::new();
        for client in &self.clients {
            for guard in client
                .actors
                .iter()
                .filter_map(|actor| actor.guard.as_ref())
            {
                let is_uncertain = client.is_unsure && client.has_undone && is_kept(&guard.proof);
                if !guard.is_ended_by_operator && !is_uncertain && guard.proof.is_live(now) {
                    held.push(guard);
                }
            }
        }
        let mut seen = Vec::new();
        for guard in &held {
            if guard.ask != Ask::Exclusive {
                continue;
            }
            let (claims, fence) = (&guard.proof.claims, guard.proof.fence());
            for other in &held {
                let (others, later) = (&other.proof.claims, other.proof.fence());
                if others.owner() != claims.owner()
                    && let Some(key) = shared_key(claims, others)
                    && !(fence < later && self.is_unreplicated(claims, fence, key))
                    && !(later < fence && self.is_unreplicated(others, later, key))
                {
                    return Err(format!("held by {guard:?} and {other:?}"));
                }
            }
            for key in claims.keys() {
                if !self.is_unreplicated(claims, fence, key) {
                    seen.push((key.to_vec(), fence, claims.owner().as_str().to_owned()));
                }
            }
        }
        for (key, fence, owner) in seen {
            match self.fences.get_mut(&key) {
                Some((last, by)) if fence < *last && *by != owner => {
                    return Err(format!(
                        "fence {last} of {by} was before {fence} of {owner}"
                    ));
                }
                Some((last, _)) if fence == *last => {}
                _ => drop(self.fences.insert(key, (fence, owner))),
            }
        }
        Ok(())
    }

    /// A hold is watched at its server after its next renewal. The renewal
    /// comes within five twelfths of its lease, unless its client is prevented
    /// from sending it.
    ///
    /// Call it before the next event: then the current state is at most as old
    /// as the last check.
    pub(crate) fn check_watches(&mut self) -> Result<(), String> {
        if self.now < self.checked_at + CHECK_INTERVAL {
            return Ok(());
        }
        for (client, actor) in all_actors() {
            let Some(guard) = &self.clients[client].actors[actor].guard else {
                continue;
            };
            if self.is_watched(client, guard) {
                let now = self.now;
                if let Some(guard) = &mut self.clients[client].actors[actor].guard {
                    guard.watched = now;
                }
            } else if self.now > guard.watched + nanos(guard.lease) / 12 * 5 + 2 * CHECK_INTERVAL {
                return Err(format!("client {client} does not watch {guard:?}"));
            }
        }
        self.checked_at = self.now;
        Ok(())
    }

    /// Whether the server will report the loss of a hold to its client; or it
    /// cannot now, or the client has something else to do first.
    fn is_watched(&self, client: usize, guard: &Guard) -> bool {
        let claims = &guard.proof.claims;
        let this = &self.clients[client];
        let server = self.home(claims);
        let there = &self.servers[server];
        let node = self.kind.node(server);
        let Some(link) = this.links.get(&node.0).filter(|link| link.server == server) else {
            return true;
        };
        let is_out = guard.is_ended_by_operator
            || !guard.proof.is_live(self.instant())
            || (this.is_unsure && is_kept(&guard.proof));
        // A request of an earlier connection may move the watch there.
        let is_prevented = link.is_cut
            || !link.is_predecessor_gone
            || there.is_down(self.checked_at)
            || self.checked_at < there.refuses_until
            || self.checked_at < this.stopped_until
            || self.checked_at < this.silent_until.max(this.refused_until)
            || this.engine.routes().node(claims.slot()) != node
            || self.is_cluster() && self.is_disputed(place(claims.slot()));
        let is_of = |calling: &Calling| calling.owner == claims.owner().as_str();
        let mut calls = this.actors.iter().filter_map(|it| it.call.as_ref());
        let is_busy = this.asked.values().any(|by| *by == link.number) || calls.any(is_of);
        let is_notified = there.watcher(&name(claims)) == Some(link.session);
        is_out || is_prevented || is_busy || is_notified
    }

    /// Whether a slot is moving, or its masters have just disagreed. A renewal may
    /// pause for a second after that.
    fn is_disputed(&self, place: usize) -> bool {
        let place = &self.places[place];
        place.moving.is_some() || self.checked_at < place.disputed_until + SECOND
    }

    /// What a call for a lock needs for a quick answer: the server and the
    /// connection exist.
    pub(crate) fn quick(&self, client: usize, claims: &Claims) -> Option<(usize, u64)> {
        let server = self.home(claims);
        let (this, node) = (&self.clients[client], self.kind.node(server));
        let link = this.links.get(&node.0)?;
        let is_there = link.server == server
            && !link.is_cut
            && this.engine.routes().node(claims.slot()) == node;
        is_there.then_some((server, link.number))
    }

    /// The slot of a call.
    pub(crate) fn place_of(&self, claims: &Claims) -> usize {
        match self.is_cluster() {
            true => place(claims.slot()),
            false => SLOTS.len() - 1,
        }
    }
}

/// Whether its owner may have made requests before it took this lock.
fn is_kept(proof: &Proof) -> bool {
    proof.claims.owner().as_str().contains("kept")
}

fn shared_key<'a>(one: &'a Claims, other: &Claims) -> Option<&'a [u8]> {
    let mut keys = one.keys();
    keys.find(|key| other.keys().any(|it| it == *key))
}
