//! Connections: they begin, break or vanish, and what they carry arrives in pieces.

use rlock_embed::format::Data;
use rlock_embed::messages::{Event, Fault};
use rlock_engine::wire::resp::{Decoder, Frame};
use rlock_testkit::core::server::Session;

use crate::hosts::{NAMES, SENTINELS};
use crate::steps::Cut;
use crate::world::{Happening, MS, SECOND, World};

/// When an end notices that the connection is gone although nobody closed it.
const KEEPALIVE: u64 = 11 * SECOND;

/// A connection, by the server's ID.
pub(crate) struct Wire {
    pub(crate) client: usize,
    /// The number of the client's process.
    pub(crate) number: u8,
    pub(crate) connection: u64,
    /// A server, or a Sentinel.
    pub(crate) host: usize,
    pub(crate) decoder: Decoder,
    pub(crate) is_open: bool,
    /// Whether it listens to messages.
    pub(crate) is_main: bool,
    /// Nothing that is sent from now on arrives.
    pub(crate) is_cut: bool,
    /// Not even what was sent before arrives: at the server, at the client.
    is_lost: (bool, bool),
    /// When the last bytes arrive at each end: nothing overtakes.
    at_server: u64,
    at_client: u64,
    /// What was sent before arrives no sooner.
    is_late_until: u64,
}

impl World<'_> {
    pub(crate) fn connects(&mut self, client: usize, connection: u64, host: &str) {
        let session = self.next_number();
        self.seen.connections += 1;
        let this = &mut self.clients[client];
        if !this.connected.insert(connection) {
            return self.is_wrong(|| format!("connection {connection} was there before"));
        }
        let host = NAMES.iter().position(|it| *it == host).expect("a name");
        this.open.insert(connection, session);
        let unreachable = this.unreachable.get(&host).copied();
        let number = this.number;
        let wire = Wire {
            client,
            number,
            connection,
            host,
            decoder: Decoder::default(),
            is_open: false,
            is_main: false,
            is_cut: false,
            is_lost: (false, false),
            at_server: 0,
            at_client: 0,
            is_late_until: 0,
        };
        self.wires.insert(session, wire);
        let late = self.delay();
        let chance = match self.is_calm || self.is_scripted {
            true => u64::MAX,
            false => self.below(60),
        };
        match unreachable {
            Some((until, is_refused)) if self.now < until => {
                if is_refused {
                    self.later(late, Happening::Ends(session));
                }
            }
            // Sometimes nobody answers at all.
            _ if chance < 2 => {}
            _ => {
                if chance < 5 {
                    self.cut(session, Cut::Slow);
                }
                self.later(late, Happening::Opens(session));
            }
        }
    }

    /// A client ends a connection; the server sees that after all written bytes, which may be late.
    pub(crate) fn client_ends(&mut self, session: u64) {
        let late = self.below(20 * MS);
        let slow = match self.below(8) {
            0 if !self.is_calm => self.below(10 * SECOND),
            _ => 0,
        };
        let now = self.now;
        let wire = self.wires.get_mut(&session).expect("a connection");
        let late = match std::mem::replace(&mut wire.is_cut, true) {
            true => KEEPALIVE,
            false => {
                wire.is_late_until = wire.is_late_until.max(now + slow);
                wire.at_server.max(wire.is_late_until) - now + late
            }
        };
        // Until its next connection is open and used, nobody can tell it anything.
        self.clients[wire.client].is_disturbed(self.now);
        self.clients[wire.client].open.remove(&wire.connection);
        self.later(late, Happening::ServerSees(session));
    }

    /// A server ends a connection, and its client sees that soon after. What is under way to the server is lost.
    pub(crate) fn server_ends(&mut self, session: u64) {
        let soon = self.below(30 * MS);
        let Some(wire) = self.wires.get_mut(&session) else {
            return;
        };
        self.clients[wire.client].is_disturbed(self.now);
        wire.is_lost.0 = true;
        if !std::mem::replace(&mut wire.is_cut, true) {
            self.later(soon, Happening::Ends(session));
        }
        self.later(0, Happening::ServerSees(session));
    }

    /// The connections of a client that are not cut, or those to one server.
    pub(crate) fn open_wires(&self, client: usize, host: Option<usize>) -> Vec<u64> {
        let open = self.clients[client].open.values().copied();
        let open = open.filter(|it| {
            let wire = &self.wires[it];
            !wire.is_cut && host.is_none_or(|host| wire.host == host)
        });
        open.collect()
    }

    /// The connection for messages of the server that has a key.
    pub(crate) fn main_wire(&self, client: usize, key: &str) -> Option<u64> {
        let wires = self.open_wires(client, Some(self.home(key)));
        wires.into_iter().find(|it| self.wires[it].is_main)
    }

    /// Whether what was sent by a connection since then has arrived.
    pub(crate) fn is_reliable(&self, session: u64, since: u64) -> bool {
        let wire = &self.wires[&session];
        !wire.is_cut && wire.is_late_until < since
    }

    /// A connection breaks: both ends see it, one of them, or none.
    pub(crate) fn cut(&mut self, session: u64, how: Cut) {
        let (late, kind) = (self.below(10 * SECOND), self.below(4));
        let now = self.now;
        let Some(wire) = self.wires.get_mut(&session).filter(|it| !it.is_cut) else {
            return;
        };
        if how == Cut::Slow {
            wire.is_late_until = wire.is_late_until.max(now + late);
            self.clients[wire.client].is_disturbed(now + late);
            return;
        }
        wire.is_cut = true;
        self.clients[wire.client].is_disturbed(now);
        match how {
            Cut::Plain | Cut::Slow => {}
            // What was sent may be late, or lost.
            Cut::HalfOpen if kind > 0 => {
                wire.is_late_until = wire.is_late_until.max(now + late);
            }
            Cut::HalfOpen | Cut::Silent => wire.is_lost = (true, how == Cut::Silent),
            Cut::Unseen => wire.is_lost = (false, true),
        }
        if matches!(how, Cut::Plain | Cut::HalfOpen) {
            let soon = self.below(30 * MS);
            self.later(soon, Happening::Ends(session));
        }
        let late = match how {
            Cut::HalfOpen | Cut::Silent => KEEPALIVE,
            _ => self.below(30 * MS),
        };
        self.later(late, Happening::ServerSees(session));
    }

    pub(crate) fn reaches_client(&mut self, number: u64, happening: Happening) {
        let (Happening::Opens(session)
        | Happening::Ends(session)
        | Happening::ToClient(session, _)) = &happening
        else {
            return;
        };
        let session = *session;
        let wire = &self.wires[&session];
        let (client, connection, host) = (wire.client, wire.connection, wire.host);
        let this = &self.clients[client];
        if this.number != wire.number || self.session(client, connection) != Some(session) {
            return;
        }
        let late = match happening {
            Happening::ToClient(..) => wire.is_late_until,
            _ => 0,
        };
        let from = this.late_until().max(late);
        if from > self.now {
            return self.not_before(from, number, happening);
        }
        let is_down = self.hosts.get(host).is_some_and(|it| it.server.is_down);
        let (is_cut, is_lost) = (wire.is_cut, wire.is_lost.1);
        match happening {
            Happening::ToClient(_, bytes) => {
                if !is_lost {
                    let bytes = Data(&bytes);
                    self.tell(client, &Event::Received { connection, bytes });
                }
            }
            Happening::Opens(_) if !is_down => {
                if let Some(host) = self.hosts.get_mut(host)
                    && !is_cut
                {
                    host.server.sessions.insert(session, Session::default());
                }
                self.wires.get_mut(&session).unwrap().is_open = true;
                self.clients[client].is_disturbed(self.now);
                self.tell(client, &Event::Opened { connection });
            }
            _ => {
                self.clients[client].is_disturbed(self.now);
                self.clients[client].open.remove(&connection);
                let wire = self.wires.get_mut(&session).unwrap();
                if !std::mem::replace(&mut wire.is_cut, true) {
                    self.later(0, Happening::ServerSees(session));
                }
                let failure = [Fault::Io, Fault::Time][self.below(2) as usize];
                let text = "cut";
                self.tell(
                    client,
                    &Event::Ended {
                        connection,
                        failure,
                        text,
                    },
                );
            }
        }
    }

    pub(crate) fn reaches_server(&mut self, number: u64, happening: Happening) {
        let (Happening::ServerSees(session) | Happening::ToServer(session, _)) = &happening else {
            return;
        };
        let session = *session;
        let Some(wire) = self.wires.get_mut(&session) else {
            return;
        };
        let stalled_until = self.hosts.get(wire.host).map_or(0, |it| it.stalled_until);
        // What is lost is not late.
        let late_until = if wire.is_lost.0 {
            0
        } else {
            wire.is_late_until
        };
        let from = stalled_until.max(late_until);
        if from > self.now {
            return self.not_before(from, number, happening);
        }
        let host = wire.host;
        match happening {
            Happening::ToServer(_, bytes) => {
                if !wire.is_lost.0 {
                    self.arrives(session, &bytes);
                }
            }
            _ => {
                (wire.is_cut, wire.is_lost.0) = (true, true);
                if let Some(it) = self.hosts.get_mut(host) {
                    it.server.set_time(self.now);
                    it.server.close(session);
                    self.has_acted(host);
                }
            }
        }
    }

    /// Delivers the messages about a server's actions.
    pub(crate) fn has_acted(&mut self, host: usize) {
        for other in std::mem::take(&mut self.hosts[host].server.killed) {
            self.server_ends(other);
        }
        for (session, message) in self.hosts[host].server.messages() {
            self.passes(session, message.as_bytes(), false);
        }
    }

    fn arrives(&mut self, session: u64, bytes: &[u8]) {
        let Some(wire) = self.wires.get_mut(&session) else {
            return;
        };
        let host = wire.host;
        let is_there = |it: &crate::hosts::Host| it.server.sessions.contains_key(&session);
        if !self.hosts.get(host).is_none_or(is_there) {
            return;
        }
        wire.decoder.feed(bytes);
        let mut commands = Vec::new();
        while let Some(Frame::Array(words)) = wire.decoder.next().expect("a command") {
            let words = words.into_iter().map(Frame::into_text);
            commands.push(words.collect::<Option<Vec<_>>>().expect("words"));
        }
        for words in commands {
            let reply = match host.checked_sub(SENTINELS) {
                Some(sentinel) => self.sentinel_says(sentinel, &words),
                None => self.answer(host, session, &words),
            };
            self.says(|| {
                let (name, words) = (NAMES[host], words.join(" "));
                format!("{name}, by {session}: {words} -> {reply:?}")
            });
            if host < SENTINELS {
                self.has_acted(host);
            }
            self.passes(session, reply.as_bytes(), false);
        }
    }

    /// Delivers bytes, in pieces.
    pub(crate) fn passes(&mut self, session: u64, bytes: &[u8], is_up: bool) {
        let mut rest = bytes;
        while !rest.is_empty() {
            let most = rest.len() as u64;
            let length = match self.below(3) {
                0 => 1 + self.below(most),
                _ => most,
            };
            let (piece, left) = rest.split_at(length as usize);
            rest = left;
            let (late, now) = (self.delay(), self.now);
            let Some(wire) = self.wires.get_mut(&session).filter(|wire| !wire.is_cut) else {
                return;
            };
            let at = match is_up {
                true => &mut wire.at_server,
                false => &mut wire.at_client,
            };
            *at = (now + late).max(*at + 1);
            let (time, piece) = (*at - now, piece.to_vec());
            let arrives = match is_up {
                true => Happening::ToServer(session, piece),
                false => Happening::ToClient(session, piece),
            };
            self.later(time, arrives);
        }
    }

    /// The delay of a delivery: usually short, sometimes long.
    fn delay(&mut self) -> u64 {
        match self.below(60) {
            _ if self.is_calm => self.below(MS),
            0 => self.below(SECOND),
            1..=5 => self.below(50 * MS),
            _ => self.below(MS),
        }
    }
}
