//! Random operations in turns that are too small for their work, amid demotions. A turn leaves work to later ones. After
//! these nobody waits for a lock that it could have, no hold has ended before its time, and each loss has one message.
//! The naive model has no turns, so nothing is compared with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use rlock_core::{Fence, Holder, Renewal, Timestamp};
use rlock_testkit::{
    core::{
        clients::Clients,
        driver::Driver,
        foreign::{name, names},
        messages::{MessageKind, Reply, Sent},
        operation::{CHANNELS, KEYS, OWNERS, Operation, Pass, Raise, SETS, Under},
        pair::Setup,
        store::Stored,
    },
    seeds,
};

use crate::walk::Steps;

/// Seeds that failed at some time.
const FAILED: [u64; 4] = [
    809_160_294_137,
    370_617_040_425,
    290_731_606_297,
    1_072_398_055_718,
];
const STEPS: usize = 2000;
/// The number of turns before all that is due is done, and looked at.
const BEFORE_LOOK: usize = 8;

/// The server becomes a replica, and a master again. Nothing restarts here.
const DEMOTION: Operation = Operation::Restart { ms: 0 };

/// Holders of a lock whose leases have not ended.
type Live = BTreeMap<String, Holder>;

struct Server {
    driver: Driver,
    clients: Clients,
    /// The blocked calls without an answer, and their connections.
    open_calls: BTreeMap<u64, u64>,
    /// The holds with a message of their loss, by key, owner and fence.
    lost: BTreeSet<(String, String, Fence)>,
}

impl Server {
    fn new(setup: Setup) -> Self {
        let mut server = Self {
            driver: setup.driver(),
            clients: Clients::default(),
            open_calls: BTreeMap::new(),
            lost: BTreeSet::new(),
        };
        (0..CHANNELS.len()).for_each(|channel| server.driver.listen(channel, true));
        server
    }

    /// An operation, and what is due then, unless the timer is late.
    fn turn(&mut self, operation: Operation, size: usize, is_late: bool) -> Result<(), String> {
        self.driver.locks.begin_turn(size);
        let before: Vec<Live> = (0..KEYS.len())
            .map(|key| self.going_on(key, operation))
            .collect();
        let reply = self.apply(operation);
        if reply == Reply::Blocked {
            let (call, session) = self.clients.calls[0];
            self.open_calls.insert(call, session);
        }
        if !is_late {
            self.driver.turn();
        }
        self.hear()?;
        for (key, live) in before.iter().enumerate() {
            let now = self.driver.now;
            let left = self.live(key);
            let ended = live
                .iter()
                .find(|(owner, it)| !it.deadline.has_passed(now) && !left.contains_key(*owner));
            if let Some((owner, holder)) = ended {
                return Err(format!(
                    "{owner} has lost {} before its time: {holder:?}",
                    KEYS[key].1
                ));
            }
        }
        Ok(())
    }

    /// Does all that is due, and checks that nothing is left.
    fn look(&mut self) -> Result<(), String> {
        self.driver.locks.begin_turn(usize::MAX);
        self.driver.turn();
        self.hear()?;
        self.driver.locks.check_indices()?;
        let now = self.driver.now;
        for key in 0..KEYS.len() {
            let hold = self.driver.store.peek(now, name(key), None);
            self.driver.locks.check_settled(now, name(key), &hold)?;
        }
        let waiting = (0..KEYS.len()).flat_map(|key| self.driver.locks.waiters(now, name(key)));
        let waiting: BTreeSet<_> = waiting.filter_map(|it| it.session).collect();
        let forgotten = self
            .open_calls
            .iter()
            .find(|(_, session)| !waiting.contains(session));
        forgotten.map_or(Ok(()), |it| Err(format!("the call {it:?} is forgotten")))
    }

    fn live(&self, key: usize) -> Live {
        let now = self.driver.now;
        let stored = self.driver.store.get(now, name(key)).and_then(Stored::held);
        let live = stored.into_iter().flat_map(|held| held.live_holders(now));
        live.map(|(owner, it)| (owner.clone(), it)).collect()
    }

    /// The holds that the operation does not end. A bound hold ends with its connection, and the hold of an owner that
    /// waits for an upgrade ends if nobody hears of the grant.
    fn going_on(&self, key: usize, operation: Operation) -> Live {
        let (now, name) = (self.driver.now, name(key));
        let ends = |owner: &str| match operation {
            Operation::Force { key: of, .. } => of == key,
            Operation::Foreign { .. } | Operation::Undeliver { .. } => true,
            Operation::Release { owner: of, .. } | Operation::ReleaseAll { owner: of, .. } => {
                OWNERS[of] == owner
            }
            // An upgrade may be granted in the same turn.
            Operation::Acquire { asked, .. } => {
                OWNERS[asked.owner] == owner && asked.channel.is_some()
            }
            _ => false,
        };
        let mut live = self.live(key);
        live.retain(|owner, _| {
            let waits = || {
                self.driver
                    .locks
                    .waiters(now, name)
                    .any(|it| *it.owner == *owner.as_bytes())
            };
            !ends(owner) && !self.driver.locks.is_bound(name, owner.as_bytes()) && !waits()
        });
        live
    }

    /// Checks what was sent to others.
    fn hear(&mut self) -> Result<(), String> {
        for sent in std::mem::take(&mut self.driver.sent) {
            match sent {
                Sent::Answer { handle, .. } if self.open_calls.remove(&handle).is_none() => {
                    return Err(format!("the call {handle} is answered twice"));
                }
                Sent::Message {
                    key,
                    word,
                    owner,
                    fence: Some(fence),
                    ..
                } => {
                    let hold = (key, owner, fence);
                    if self.lost.contains(&hold) {
                        return Err(format!("{word:?} after the loss of {hold:?}"));
                    }
                    if word == MessageKind::Lost {
                        self.lost.insert(hold);
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn apply(&mut self, operation: Operation) -> Reply<Fence> {
        let (driver, sessions) = (&mut self.driver, self.clients.sessions);
        match operation {
            Operation::Acquire { key, asked } => {
                driver.acquire(name(key), &self.clients.ask(asked))
            }
            Operation::AcquireAll { set, asked } => {
                driver.acquire_all(&names(set), &self.clients.ask(asked.for_several()))
            }
            Operation::Renew {
                key,
                owner,
                lease_ms,
                raise,
                connection,
                channel,
                bind,
                extras,
            } => {
                let fence = raise.map(|it| self.raise_to(it, key));
                let renewal = Renewal {
                    fence,
                    bind,
                    extras: extras.map(str::as_bytes),
                    ..self.clients.renewal(lease_ms, connection, channel)
                };
                self.driver.renew(name(key), OWNERS[owner], &renewal)
            }
            Operation::RenewAll {
                set,
                owner,
                lease_ms,
                under,
                connection,
                channel,
            } => {
                let fence = under.map(|it| self.under(it, SETS[set][0], owner));
                let renewal = self.clients.renewal(lease_ms, connection, channel);
                self.driver
                    .renew_all(&names(set), (OWNERS[owner], fence), &renewal)
            }
            Operation::Release {
                key,
                owner,
                all,
                permits,
                under,
            } => {
                let fence = under.map(|it| self.under(it, key, owner));
                let (driver, owner) = (&mut self.driver, OWNERS[owner]);
                match permits {
                    Some(permits) => driver.release_permits(name(key), owner, permits, fence),
                    None => driver.release(name(key), owner, all, fence),
                }
            }
            Operation::ReleaseAll {
                set,
                owner,
                all,
                under,
            } => {
                let fence = under.map(|it| self.under(it, SETS[set][0], owner));
                self.driver
                    .release_all(&names(set), OWNERS[owner], all, fence)
            }
            Operation::Downgrade { key, owner } => driver.downgrade(name(key), OWNERS[owner]),
            Operation::Cancel {
                key,
                owner,
                connection,
            } => driver.cancel(name(key), OWNERS[owner], sessions[connection]),
            Operation::Force { key, queue, under } => {
                let fence = under.map(|(owner, under)| self.under(under, key, owner));
                self.driver.force(name(key), queue, fence)
            }
            _ => {
                self.happens(operation);
                Reply::Nil
            }
        }
    }

    /// What is no command of a client.
    fn happens(&mut self, operation: Operation) {
        match operation {
            Operation::Restart { .. } => self.driver.locks.demote(),
            Operation::Undeliver { recent } => self.undeliver(recent),
            Operation::HangUp { recent } => {
                if let Some((call, session)) = self.clients.calls.get(recent).copied() {
                    self.open_calls.remove(&call);
                    self.driver.hang_up(call);
                    if !self.clients.sessions.contains(&session) {
                        self.driver.close(session);
                    }
                }
            }
            Operation::Close { connection } => {
                let session = self.clients.connect(connection);
                let driver = &mut self.driver;
                self.open_calls.retain(|call, of| {
                    if *of == session {
                        driver.hang_up(*call);
                    }
                    *of != session
                });
                self.driver.close(session);
            }
            Operation::Listen { channel, on } => self.driver.listen(channel, on),
            Operation::Follow { key } => self.driver.follow(name(key)),
            Operation::ListenToUnlocks { on } => self.driver.has_listeners = on,
            Operation::Foreign { change, .. } => {
                self.driver.change(change);
                // A hold that had ended may be there again, under this or another key.
                self.lost.clear();
            }
            Operation::Pass { time, .. } => {
                let now = self.driver.now;
                let next = self.driver.locks.next_deadline(now).unwrap_or(now);
                self.driver.now = match time {
                    Pass::Millis(ms) => now.plus_millis(ms),
                    Pass::ToNextEnd => Timestamp::from_millis(next.millis() - 1).max(now),
                    Pass::PastNextEnd => next,
                };
            }
            _ => unreachable!("{operation:?} is a command"),
        }
    }

    /// The reply of the grant of some hold, or of several, could not be written.
    fn undeliver(&mut self, which: usize) {
        let holds = (0..KEYS.len()).flat_map(|key| {
            let fences = self
                .live(key)
                .into_iter()
                .filter_map(|(owner, it)| Some((owner, it.fence?)));
            fences
                .map(move |(owner, fence)| (KEYS[key].0, owner, fence))
                .collect::<Vec<_>>()
        });
        let Some((db, owner, fence)) = holds.collect::<BTreeSet<_>>().into_iter().nth(which) else {
            return;
        };
        let is_its = |key: &usize| {
            self.live(*key)
                .get(&owner)
                .is_some_and(|it| it.fence == Some(fence))
        };
        let keys = (0..KEYS.len())
            .filter(|key| KEYS[*key].0 == db)
            .filter(is_its);
        let names: Vec<_> = keys.map(name).collect();
        self.driver.undeliver(&names, &owner, fence);
    }

    fn under(&self, under: Under, key: usize, owner: usize) -> Fence {
        let live = self.live(key);
        let held = match under {
            Under::Its => live.get(OWNERS[owner]),
            Under::Recent(at) => live.values().nth(at),
            Under::NoHold => None,
        };
        held.and_then(|it| it.fence).unwrap_or_else(|| fence(3))
    }

    fn raise_to(&self, raise: Raise, key: usize) -> Fence {
        let clock = self.driver.now.micros();
        let hour = 3_600_000_000;
        match raise {
            Raise::Least => fence(1),
            Raise::OfAnother => self.under(Under::Recent(0), key, 0),
            Raise::Ahead => fence(clock + 20_000_567),
            Raise::Most => fence(clock + hour - 1000),
            Raise::TooFar => fence(clock + hour + 2000),
        }
    }
}

fn fence(number: u64) -> Fence {
    Fence::new(number).expect("it is in range")
}

#[test]
fn small_turns_forget_nobody_and_end_no_hold_early() {
    let name = "small turns";
    seeds::each(name, &FAILED, Duration::from_secs(10), |seed| {
        let setups = [Setup::WIDE, Setup::NARROW, Setup::NO_DEADLOCK_DETECTION];
        let mut server = Server::new(setups[seed as usize % 3]);
        let (mut turns, mut done) = (Steps(!seed), Vec::new());
        for (at, bytes) in Steps(seed).take(STEPS).enumerate() {
            let [size, timer, event, ..] = turns.next().expect("it has no end");
            let operation = match event {
                ..6 => DEMOTION,
                _ => Operation::decode(bytes),
            };
            let (size, is_late) = (1 + usize::from(size % 4), timer % 4 == 0);
            done.push((operation, size, is_late));
            let mut checked = server.turn(operation, size, is_late);
            if at % BEFORE_LOOK == 0 {
                checked = checked.and_then(|()| server.look());
            }
            if let Err(what) = checked {
                let tail = done[done.len().saturating_sub(24)..].iter();
                let tail: Vec<_> = tail.map(|it| format!("{it:?}")).collect();
                panic!("SEED={seed}, step {at}: {what}\nafter\n{}", tail.join("\n"));
            }
        }
    });
}
