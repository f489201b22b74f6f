//! What happens to calls, guards and connections, for a listener.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::time::Duration;

use crate::endpoint::Note;
use crate::engine::Id;
use crate::engine::claims::{Claims, Owner};
use crate::engine::instant::Instant;
use crate::engine::proof::NODES_MAX;
use crate::error::{Error, Loss};
use crate::rights;
use crate::session::{Action, Call, Outcome};

/// What has happened.
#[derive(Clone)]
#[non_exhaustive]
pub struct Occurrence {
    /// What it is.
    pub kind: OccurrenceKind,
    /// How a wait or a hold ended; else empty. For a wait `granted`, `refused`,
    /// `abandoned`, and for a hold `released`, `lease_ended`, `ended_by_server`,
    /// `closed`. For either also the [code](Error::code) of an error.
    pub outcome: &'static str,
    /// The time that belongs to it; see [`OccurrenceKind`].
    pub duration: Duration,
    claims: Option<Claims>,
    /// A server's address, or its error.
    pub text: String,
}

/// Without the keys, which may be secrets.
impl fmt::Debug for Occurrence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Occurrence")
            .field("kind", &self.kind)
            .field("outcome", &self.outcome)
            .field("duration", &self.duration)
            .field("text", &self.text)
            .finish_non_exhaustive()
    }
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OccurrenceKind {
    /// A call for locks has ended, after this time.
    Wait,
    /// A guard has ended, this time after its grant.
    Hold,
    /// No renewal of a guard has been confirmed for half of its lease; once until a
    /// renewal succeeds. It is lost after this time, unless a renewal succeeds.
    AtRisk,
    /// The server refused to renew a hold; once until a renewal succeeds.
    NotRenewed,
    /// The server refused to release a hold that nobody releases by a call.
    NotReleased,
    /// A server is connected. It was not, after an earlier connection, for this
    /// time; zero for the first connection.
    Connected,
    /// A connection to a server failed, or no server of a cluster reports its slots;
    /// once per outage.
    NotConnected,
    /// A server is no longer connected, after this time.
    Disconnected,
}

impl OccurrenceKind {
    /// Its name, the same in every language.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Hold => "hold",
            Self::AtRisk => "at_risk",
            Self::NotRenewed => "not_renewed",
            Self::NotReleased => "not_released",
            Self::Connected => "connected",
            Self::NotConnected => "not_connected",
            Self::Disconnected => "disconnected",
        }
    }
}

impl Occurrence {
    /// The keys that it concerns; none for connections.
    pub fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.claims.iter().flat_map(Claims::keys)
    }

    /// Their owner.
    #[must_use]
    pub fn owner(&self) -> Option<&Owner> {
        self.claims.as_ref().map(Claims::owner)
    }

    fn new(kind: OccurrenceKind, outcome: &'static str, duration: Duration) -> Self {
        let (claims, text) = (None, String::new());
        Self {
            kind,
            outcome,
            duration,
            claims,
            text,
        }
    }

    /// For a guard that is lost after `left`, unless a renewal succeeds.
    pub(super) fn at_risk(guard: Id, claims: &Claims, left: Duration) -> Action {
        let occurrence = Self::new(OccurrenceKind::AtRisk, "", left);
        occurrence.of(Some(guard), claims)
    }

    fn of(mut self, guard: Option<Id>, claims: &Claims) -> Action {
        self.claims = Some(claims.clone());
        Action::Occurred {
            guard,
            occurrence: self,
        }
    }
}

/// How a hold ends on purpose.
pub(super) const RELEASED: &str = "released";

/// What is watched, from the calls to a machine and from its actions.
#[derive(Default)]
pub(super) struct Telemetry {
    /// The moment of the last input.
    pub(super) now: Instant,
    /// The calls for locks that have not ended: since when, and for what.
    waits: BTreeMap<Id, (Instant, Claims)>,
    /// The guards: since when, and of what.
    guards: BTreeMap<Id, (Instant, Claims)>,
    /// The guards that calls end, by call.
    releases: BTreeMap<Id, (Id, Duration, Claims)>,
    /// The servers: since when each is connected, or is not any more.
    servers: BTreeMap<String, Instant>,
    occurred: VecDeque<Action>,
}

impl Telemetry {
    /// What has happened since the last time.
    pub(super) fn next(&mut self) -> Option<Action> {
        self.occurred.pop_front()
    }

    /// A call begins.
    pub(super) fn begin(&mut self, call: Id, begun: &Call) {
        let claims = match begun {
            Call::Lock(lock) => Some(lock.claims.clone()),
            Call::Upgrade { guard, .. } => self.guards.get(guard).map(|(_, it)| it.clone()),
            _ => None,
        };
        if let Some(claims) = claims {
            self.waits.insert(call, (self.now, claims));
        }
    }

    /// This call ends that guard.
    pub(super) fn release(&mut self, call: Id, guard: Id) {
        if let Some((since, claims)) = self.guards.remove(&guard) {
            let ended = (guard, self.now - since, claims);
            self.releases.insert(call, ended);
        }
    }

    /// Nobody waits for a call any more.
    pub(super) fn abandon(&mut self, call: Id) {
        self.waited(call, "abandoned");
        self.released(call, RELEASED);
    }

    /// A guard has ended.
    pub(super) fn end(&mut self, guard: Id, outcome: &'static str) {
        if let Some((since, claims)) = self.guards.remove(&guard) {
            self.held(guard, self.now - since, &claims, outcome);
        }
    }

    /// The client ends, and all guards with it.
    pub(super) fn end_all(&mut self) {
        for (guard, (since, claims)) in std::mem::take(&mut self.guards) {
            self.held(guard, self.now - since, &claims, "closed");
        }
    }

    /// A guard has some permits of another.
    pub(super) fn split(&mut self, guard: Id, part: Id) {
        if let Some(known) = self.guards.get(&guard).cloned() {
            self.guards.insert(part, known);
        }
    }

    /// Another guard has the permits of this one.
    pub(super) fn merge(&mut self, part: Id) {
        self.guards.remove(&part);
    }

    fn waited(&mut self, call: Id, outcome: &'static str) {
        if let Some((since, claims)) = self.waits.remove(&call) {
            let waited = Occurrence::new(OccurrenceKind::Wait, outcome, self.now - since);
            self.occurred.push_back(waited.of(None, &claims));
        }
    }

    fn released(&mut self, call: Id, outcome: &'static str) {
        if let Some((guard, held, claims)) = self.releases.remove(&call) {
            self.held(guard, held, &claims, outcome);
        }
    }

    fn held(&mut self, guard: Id, held: Duration, claims: &Claims, outcome: &'static str) {
        let held = Occurrence::new(OccurrenceKind::Hold, outcome, held);
        self.occurred.push_back(held.of(Some(guard), claims));
    }

    /// Looks at an action, which is carried out before what it tells is.
    pub(super) fn watch(&mut self, action: &Action) {
        match action {
            Action::Resolve { call, outcome } => self.resolved(*call, outcome),
            Action::Over { guard, why } => self.end(*guard, word(*why)),
            Action::Note(note) => self.noted(note),
            _ => {}
        }
    }

    fn resolved(&mut self, call: Id, outcome: &Outcome) {
        let error = match outcome {
            Outcome::Failed(error) => Some(error),
            _ => None,
        };
        self.released(
            call,
            match error {
                Some(Error::Lost(loss)) => word(*loss),
                other => other.map_or(RELEASED, Error::code),
            },
        );
        if let Outcome::Granted { guard, .. } = outcome
            && let Some((_, claims)) = self.waits.get(&call)
        {
            let granted = (self.now, claims.clone());
            self.guards.entry(*guard).or_insert(granted);
        }
        // What is wrong with a call keeps it from waiting.
        if let Some(Error::OutOfRange { .. }) = error {
            self.waits.remove(&call);
        }
        self.waited(
            call,
            match (outcome, error) {
                (Outcome::Granted { .. }, _) => "granted",
                (_, Some(error)) => error.code(),
                _ => "refused",
            },
        );
    }

    fn noted(&mut self, note: &Note) {
        use OccurrenceKind as Kind;
        let of_server = |kind, duration, text| Occurrence {
            text,
            ..Occurrence::new(kind, "", duration)
        };
        // The rule that the user lacks may name a key.
        let refused = |kind, claims: &Claims, reason: &str| Occurrence {
            text: rights::unexplained(reason).to_owned(),
            claims: Some(claims.clone()),
            ..Occurrence::new(kind, "", Duration::ZERO)
        };
        let occurrence = match note {
            Note::Connected { address } => {
                of_server(Kind::Connected, self.turned(address), address.clone())
            }
            Note::Lost { address } => {
                of_server(Kind::Disconnected, self.turned(address), address.clone())
            }
            Note::NotConnected {
                address,
                failure,
                is_news: true,
            } => {
                let text = format!("{address}: {}", failure.reason(address));
                of_server(Kind::NotConnected, Duration::ZERO, text)
            }
            Note::NoRoutes {
                failure,
                is_news: true,
            } => of_server(Kind::NotConnected, Duration::ZERO, failure.to_string()),
            Note::NotRenewed { claims, reason } => refused(Kind::NotRenewed, claims, reason),
            Note::NotReleased { claims, reason } => refused(Kind::NotReleased, claims, reason),
            _ => return,
        };
        let guard = None;
        self.occurred
            .push_back(Action::Occurred { guard, occurrence });
    }

    /// A server is connected, or is not any more; how long it was the other way.
    fn turned(&mut self, address: &str) -> Duration {
        // In clouds new servers have new addresses, without end.
        let is_full = self.servers.len() >= usize::from(NODES_MAX);
        if is_full && !self.servers.contains_key(address) {
            let oldest = self.servers.iter().min_by_key(|(_, since)| **since);
            if let Some(oldest) = oldest.map(|(address, _)| address.clone()) {
                self.servers.remove(&oldest);
            }
        }
        let since = self.servers.insert(address.to_owned(), self.now);
        since.map_or(Duration::ZERO, |since| self.now - since)
    }
}

fn word(loss: Loss) -> &'static str {
    match loss {
        Loss::LeaseEnded => "lease_ended",
        Loss::EndedByServer => "ended_by_server",
        Loss::Released => RELEASED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_servers_are_remembered() {
        let mut telemetry = Telemetry::default();
        for at in 0..3 * u64::from(NODES_MAX) {
            telemetry.now = Instant::from_nanos(at);
            let address = format!("h:{at}");
            telemetry.noted(&Note::Connected { address });
        }
        assert_eq!(telemetry.servers.len(), usize::from(NODES_MAX));
        let last = format!("h:{}", 3 * u64::from(NODES_MAX) - 1);
        assert!(telemetry.servers.contains_key(&last));
    }
}
