//! What the clients' tasks do.

use std::sync::Arc;
use std::time::Duration;

use rlock_engine::engine::claims::{Claims, Owner};
use rlock_engine::engine::terms::{Ask, Queueing, Terms};
use rlock_engine::engine::{Event, Id, Outcome};

use crate::actor::{Actor, Calling, Guard, Kept, What};
use crate::client::{PATIENCE, REPLICATION};
use crate::cluster::Kind;
use crate::operation::{CLIENTS, KEYS, Operation};
use crate::world::{World, nanos};

/// The longest lease of all scripts.
const LEASE_MAX: Duration = Duration::from_secs(60);

impl World {
    pub(crate) fn operate(&mut self, operation: Operation) {
        match operation {
            Operation::Ask {
                actor,
                key,
                ask,
                queueing,
                terms,
                owner,
            } => self.asks(actor, key, ask, queueing, terms, owner),
            Operation::Drop { actor } => self.drops(actor % CLIENTS, actor),
            Operation::Release { actor, kept } => self.releases(actor % CLIENTS, actor, kept),
            Operation::Split { client, permits } => self.splits(client, permits),
            Operation::Merge { client } => self.merges(client),
            Operation::Upgrade { actor, queueing } => {
                self.upgrades(actor % CLIENTS, actor, queueing);
            }
            Operation::Downgrade { actor } => self.downgrades(actor % CLIENTS, actor),
            Operation::Extend { actor, lease } => self.extends(actor % CLIENTS, actor, lease),
            operation => self.interferes(operation),
        }
    }

    pub(crate) fn asks(
        &mut self,
        actor: usize,
        key: Option<usize>,
        ask: Ask,
        queueing: Queueing,
        terms: Terms,
        owner: Option<usize>,
    ) {
        let number = actor % CLIENTS;
        let client = &mut self.clients[number];
        let state = &client.actors[actor];
        if state.call.is_some() || state.guard.is_some() || self.now < client.stopped_until {
            return;
        }
        client.owners += 1;
        let owner = match owner {
            Some(kept) => format!("client{number}:kept{kept}"),
            None => format!("client{number}:{}", client.owners),
        };
        let owner = Owner::new(owner).expect("the name of an owner");
        let claims = match key {
            Some(key) => Claims::new(owner, KEYS[key].as_bytes(), &[]),
            None => {
                let keys = self.kind.together();
                let rest = keys[1..].iter().map(|it| it.as_bytes().into());
                let rest: Vec<Arc<[u8]>> = rest.collect();
                Claims::new(owner, keys[0].as_bytes(), &rest)
            }
        };
        let what = What::Lock(ask, terms.lease);
        self.calls(number, actor, claims.clone(), what, queueing, |call| {
            Event::Ask {
                call,
                claims,
                ask,
                value: None,
                terms,
                queueing,
            }
        });
    }

    fn splits(&mut self, client: usize, permits: u32) {
        let is_stopped = self.is_stopped(client);
        let actors = &mut self.clients[client].actors;
        let is_idle = |it: &Actor| it.call.is_none() && it.guard.is_none();
        let of_client = (0..actors.len()).filter(|actor| actor % CLIENTS == client);
        let idle = of_client.clone().find(|actor| is_idle(&actors[*actor]));
        let mut split = of_client.filter_map(|actor| {
            let guard = free_guard(&actors[actor])?;
            Some((actor, guard.ask.split(permits)?, guard))
        });
        if let (Some(idle), Some((actor, (rest, ask), guard)), false) =
            (idle, split.next(), is_stopped)
        {
            let hold = guard.proof.hold;
            let (rest, part) = (
                Guard {
                    ask: rest,
                    ..guard.clone()
                },
                Guard { ask, ..guard },
            );
            (actors[actor].guard, actors[idle].guard) = (Some(rest), Some(part));
            self.split += 1;
            self.send_event(client, Event::Split { hold });
        }
    }

    fn merges(&mut self, client: usize) {
        let is_stopped = self.is_stopped(client);
        let actors = &mut self.clients[client].actors;
        let free = |actor: usize| Some((actor, free_guard(&actors[actor])?));
        let free: Vec<_> = (0..actors.len()).filter_map(free).collect();
        let mut pairs = free
            .iter()
            .flat_map(|one| free.iter().map(move |other| (one, other)));
        let pair = pairs.find(|((actor, guard), (other, part))| {
            actor < other && guard.proof.hold == part.proof.hold
        });
        if let Some(((actor, guard), (other, part))) = pair
            && let Some(ask) = guard.ask.merge(part.ask)
            && !is_stopped
        {
            let hold = guard.proof.hold;
            actors[*other].guard = None;
            actors[*actor].guard = Some(Guard {
                ask,
                ..guard.clone()
            });
            self.send_event(client, Event::Merge { hold });
        }
    }

    pub(crate) fn upgrades(&mut self, client: usize, actor: usize, queueing: Queueing) {
        let state = &self.clients[client].actors[actor];
        let Some(guard) = state.guard.clone().filter(|_| state.call.is_none()) else {
            return;
        };
        if guard.ask != Ask::Shared || self.is_stopped(client) || !self.is_live(&guard.proof) {
            return;
        }
        let (claims, ask, terms) = (guard.proof.claims.clone(), Ask::Exclusive, Terms::default());
        let queueing = match queueing {
            Queueing::AtMost(Duration::ZERO) => Queueing::Try,
            queueing => queueing,
        };
        let what = What::Upgrade;
        self.calls(client, actor, claims.clone(), what, queueing, |call| {
            Event::Ask {
                call,
                claims,
                ask,
                value: None,
                terms,
                queueing,
            }
        });
    }

    pub(crate) fn downgrades(&mut self, client: usize, actor: usize) {
        let is_stopped = self.is_stopped(client);
        let state = &mut self.clients[client].actors[actor];
        let is_free = state.call.is_none();
        let Some(guard) = state.guard.as_mut().filter(|_| is_free) else {
            return;
        };
        let is_single = guard.proof.claims.is_single();
        if guard.ask != Ask::Exclusive || !is_single || is_stopped {
            return;
        }
        guard.ask = Ask::Shared;
        let (hold, claims) = (guard.proof.hold, guard.proof.claims.clone());
        self.calls(
            client,
            actor,
            claims,
            What::Downgrade,
            Queueing::Try,
            |call| Event::Downgrade { call, hold },
        );
    }

    pub(crate) fn extends(&mut self, client: usize, actor: usize, lease: Duration) {
        let state = &self.clients[client].actors[actor];
        let Some(guard) = state.guard.clone().filter(|_| state.call.is_none()) else {
            return;
        };
        if self.is_stopped(client) {
            return;
        }
        let (hold, claims) = (guard.proof.hold, guard.proof.claims.clone());
        let (what, queueing) = (What::Extend(lease), Queueing::Try);
        self.calls(client, actor, claims, what, queueing, |call| {
            Event::Extend { call, hold, lease }
        });
    }

    pub(crate) fn releases(&mut self, client: usize, actor: usize, kept: Option<Duration>) {
        let stopped = self.is_stopped(client);
        let state = &mut self.clients[client].actors[actor];
        if state.call.is_some() || stopped {
            return;
        }
        let Some(Guard { proof, ask, .. }) = state.guard.take() else {
            return;
        };
        let (hold, claims) = (proof.hold, proof.claims.clone());
        let until = kept.map(|kept| self.instant() + kept);
        if let Some(until) = until {
            let owner = claims.owner().as_str();
            let keys = claims.keys().map(|key| (key.to_vec(), owner.to_owned()));
            self.left.extend(keys);
            self.send_event(client, Event::Keep { hold, until });
        }
        // While other parts hold it, it may end like any hold.
        let mut others = self.clients[client]
            .actors
            .iter()
            .filter_map(|it| it.guard.as_ref());
        let is_last = !others.any(|it| it.proof.hold == hold);
        let until = until.filter(|_| is_last);
        self.calls(
            client,
            actor,
            claims,
            What::Release(until),
            Queueing::Try,
            |call| Event::Release { call, hold, ask },
        );
    }

    pub(crate) fn calls(
        &mut self,
        client: usize,
        actor: usize,
        claims: Claims,
        what: What,
        queueing: Queueing,
        event: impl FnOnce(Id) -> Event,
    ) {
        let bound = match queueing {
            // Replicas may have to answer after the server's last message.
            Queueing::Try => Some(PATIENCE + Duration::from_secs(1) + REPLICATION),
            Queueing::AtMost(wait) => Some(wait + Duration::from_secs(1) + REPLICATION),
            Queueing::Unlimited => None,
        };
        let owner = claims.owner().as_str().to_owned();
        let is_first = matches!(what, What::Lock(..)) && !owner.contains("kept");
        let quick = self.quick(client, &claims);
        let quick = quick.filter(|_| is_first && queueing == Queueing::Try && claims.is_single());
        let place = self.place_of(&claims);
        let call = self.clients[client].engine.next_id();
        self.clients[client].actors[actor].call = Some(Calling {
            call,
            what,
            begun: self.now,
            latest: bound.map(|bound| self.now + nanos(bound)),
            quick,
            place,
            owner,
            claims,
        });
        self.send_event(client, event(call));
    }

    pub(crate) fn drops(&mut self, client: usize, actor: usize) {
        if self.is_stopped(client) {
            return;
        }
        if let Some(calling) = self.clients[client].actors[actor].call.take() {
            let call = calling.call;
            self.send_event(client, Event::Abandon { call });
        }
        self.drop_guard(client, actor);
    }

    pub(crate) fn drop_guard(&mut self, client: usize, actor: usize) {
        if let Some(Guard { proof, ask, .. }) = self.clients[client].actors[actor].guard.take() {
            let hold = proof.hold;
            self.send_event(client, Event::Leave { hold, ask });
        }
    }

    pub(crate) fn resolved(&mut self, client: usize, call: Id, outcome: Outcome) {
        let is_of = |calling: &Calling| calling.call == call;
        let mut actors = self.clients[client].actors.iter();
        let actor = actors.position(|actor| actor.call.as_ref().is_some_and(is_of));
        let Some(actor) = actor else {
            self.wrong = Some(format!("no call waits for {outcome:?}"));
            return;
        };
        let is_unsure = self.clients[client].is_unsure;
        let state = &mut self.clients[client].actors[actor];
        let Some(calling) = state.call.take() else {
            return;
        };
        if matches!(outcome, Outcome::Refused) && calling.latest.is_none() {
            self.wrong = Some(format!("a wait without limit has ended: {calling:?}"));
        }
        if let (What::Extend(lease), Some(guard)) = (calling.what, &mut state.guard) {
            guard.lease = guard.lease.max(lease);
        }
        // Another task with the same owner may have ended it since, and a request
        // of an earlier connection may set its lease again.
        if let (What::Release(Some(until)), Outcome::Done) = (calling.what, &outcome)
            && self.kind == Kind::One
            && !is_unsure
            && calling.begun > self.disturbed
            && !calling.owner.contains("kept")
        {
            let claims = calling.claims.clone();
            self.kept.push(Kept { claims, until });
        }
        if let Outcome::Granted(proof, _) = outcome {
            self.granted += 1;
            let before = state.guard.as_ref().map(|guard| guard.lease);
            let (ask, lease) = match calling.what {
                // The owner may already hold it, with a longer lease.
                What::Lock(ask, lease) if !calling.owner.contains("kept") => (ask, lease),
                What::Lock(ask, _) => (ask, LEASE_MAX),
                _ => (Ask::Exclusive, before.unwrap_or(LEASE_MAX)),
            };
            let is_ended_by_operator = calling.begun <= self.interfered;
            let guard = Guard {
                proof,
                ask,
                is_ended_by_operator,
                lease,
                watched: self.now,
            };
            let before = state.guard.replace(guard);
            if let Some(Guard { proof, ask, .. }) = before {
                let hold = proof.hold;
                self.send_event(client, Event::Leave { hold, ask });
            }
        }
        if self.is_ending {
            self.drop_guard(client, actor);
        } else if self.below(2) == 0 {
            self.splits(client, 1);
        }
    }
}

/// The guard of a task that is in no call.
fn free_guard(actor: &Actor) -> Option<Guard> {
    actor.guard.clone().filter(|_| actor.call.is_none())
}
