//! The network: what is sent, arrives late, or not at all.

use crate::client::{Happening, Link};
use crate::engine::claims::Name;
use crate::engine::lane::Node;
use crate::engine::notices::{Notice, Word};
use crate::engine::request::Request;
use crate::engine::{Action, Event, Id};
use crate::error::Fault;
use crate::operation::Cut;
use crate::server::failure;
use crate::world::{MS, SECOND, World};

/// After how long a request without a reply is given up.
const RESPONSE_LIMIT: u64 = 5 * SECOND;

/// When a server sees by itself that the other end has vanished.
const KEEPALIVE: u64 = 30 * SECOND;

impl World {
    pub(crate) fn closes(&mut self, client: usize) {
        self.may_leave = true;
        self.clients[client].is_closed = true;
        if let Some(link) = self.clients[client].link.take() {
            let session = link.session;
            self.later(0, client, Happening::Closes { session });
        }
        self.tell(client, Event::Closed);
    }

    pub(crate) fn cut(&mut self, client: usize, how: Cut) {
        let soon = self.below(30 * MS);
        let Some(link) = self.clients[client]
            .link
            .as_mut()
            .filter(|link| !link.is_cut)
        else {
            return;
        };
        link.is_cut = true;
        let (session, link) = (link.session, link.number);
        let seen = match how {
            Cut::Plain => self.below(20 * MS),
            Cut::HalfOpen | Cut::Silent => KEEPALIVE,
        };
        self.later(seen, client, Happening::Closes { session });
        if how == Cut::Silent {
            let asked: Vec<Id> = self.clients[client].asked.keys().copied().collect();
            for id in asked {
                self.later(RESPONSE_LIMIT, client, Happening::Unanswered { id });
            }
        } else {
            self.later(soon, client, Happening::Breaks { link });
        }
    }

    pub(crate) fn connects(&mut self, client: usize) {
        let is_sole = self.below(4) > 0;
        self.last += 1;
        let session = self.last;
        let this = &mut self.clients[client];
        if this.is_closed {
            return;
        }
        this.links += 1;
        let number = this.links;
        this.link = Some(Link {
            number,
            session,
            is_cut: false,
            is_given_up: false,
            at_server: 0,
            at_client: 0,
        });
        self.server.set_time(self.now);
        let earlier = self.server.sessions.iter();
        let earlier = earlier.filter(|(_, of)| **of == client);
        let earlier: Vec<u64> = earlier.map(|(session, _)| *session).collect();
        let is_sole = is_sole || earlier.is_empty() && number == 1;
        self.may_leave |= !is_sole;
        self.clients[client].is_unsure |= !is_sole;
        self.server.open(session, client);
        if is_sole {
            for session in earlier {
                self.server.close(session);
            }
        }
        self.reconnects += u64::from(number > 1);
        self.server_has_acted();
        let up = Event::LinkUp {
            node: Node::default(),
            link: number,
            is_sole,
        };
        self.tell(client, up);
    }

    pub(crate) fn breaks(&mut self, client: usize, number: u64) {
        let link = self.clients[client].link.as_mut();
        let Some(link) = link.filter(|link| link.number == number && !link.is_given_up) else {
            return;
        };
        link.is_given_up = true;
        let session = link.session;
        if !std::mem::replace(&mut link.is_cut, true) {
            // The server may not see that the client has given it up.
            self.later(KEEPALIVE, client, Happening::Closes { session });
        }
        // Some callers see it first, others later.
        for id in self.asked_by(client, number) {
            if self.below(2) == 0 {
                self.unanswered(client, id);
            }
        }
        self.clients[client].link = None;
        self.delay_messages(client, number);
        let down = Event::LinkDown {
            node: Node::default(),
            is_left: false,
        };
        self.tell(client, down);
        for id in self.asked_by(client, number) {
            let soon = self.below(5 * MS);
            self.later(soon, client, Happening::Unanswered { id });
        }
        let pause = match self.below(4) {
            0 => self.below(3 * SECOND),
            _ => 5 * MS + self.below(50 * MS),
        };
        self.later(pause, client, Happening::Connects);
    }

    /// What has been said by a connection may be read long after its end.
    pub(crate) fn delay_messages(&mut self, client: usize, number: u64) {
        let is_late = |happening: &Happening| matches!(happening, Happening::Told { link, .. } if *link == number);
        let late = self.agenda.iter();
        let late = late.filter(|(_, (of, happening))| *of == client && is_late(happening));
        for at in late.map(|(at, _)| *at).collect::<Vec<_>>() {
            let more = self.below(2) * self.below(300 * MS);
            if let Some((_, happening)) = self.agenda.remove(&at) {
                self.later((at.0 + more).max(self.now) - self.now, client, happening);
            }
        }
    }

    pub(crate) fn asked_by(&self, client: usize, link: u64) -> Vec<Id> {
        let asked = self.clients[client].asked.iter();
        let asked = asked.filter(|(_, by)| **by == link);
        asked.map(|(id, _)| *id).collect()
    }

    pub(crate) fn unanswered(&mut self, client: usize, id: Id) {
        let Some(link) = self.clients[client].asked.remove(&id) else {
            return;
        };
        let result = Err(Fault::Broken(failure("broken")));
        let request = id;
        self.tell(client, Event::Reply { request, result });
        self.breaks(client, link);
    }

    /// Tells the engine of a client what happens, and does what it says.
    pub(crate) fn tell(&mut self, client: usize, event: Event) {
        let now = self.instant();
        if !matches!(event, Event::Tick) {
            self.tells(|| format!("  client {client}: {event:?}"));
        }
        self.clients[client].engine.handle(now, event);
        while let Some(action) = self.clients[client].engine.poll_action() {
            self.carry_out(client, action);
        }
    }

    pub(crate) fn carry_out(&mut self, client: usize, action: Action) {
        self.tells(|| format!("    client {client} does {action:?}"));
        match action {
            Action::Send { id, request, .. } => {
                let late = self.delay();
                let this = &mut self.clients[client];
                let Some(link) = this.link.as_mut() else {
                    panic!("there is no connection for {request:?}");
                };
                this.asked.insert(id, link.number);
                if link.is_cut {
                    return self.later(RESPONSE_LIMIT, client, Happening::Unanswered { id });
                }
                link.at_server = link.at_server.max(self.now + late) + 1;
                let (at, session) = (link.at_server, link.session);
                let happening = Happening::Asked {
                    session,
                    id,
                    request,
                };
                self.later(at - self.now, client, happening);
            }
            Action::Resolve { call, outcome } => self.resolved(client, call, outcome),
            Action::Retire { link } => self.later(0, client, Happening::Breaks { link }),
            // Every client is connected from its beginning.
            Action::Connect { .. } | Action::Over { .. } | Action::Flushed { .. } => {}
        }
    }

    pub(crate) fn next_happens(&mut self) {
        let Some(((_, number), (client, happening))) = self.agenda.pop_first() else {
            return;
        };
        if happening.is_at_client() && self.is_stopped(client) {
            let at = (self.clients[client].stopped_until, number);
            self.agenda.insert(at, (client, happening));
            return;
        }
        match happening {
            Happening::Asked {
                session,
                id,
                request,
            } => self.arrives(client, session, id, &request),
            Happening::Replied { id, result } => {
                if self.clients[client].asked.remove(&id).is_some() {
                    let request = id;
                    self.tell(client, Event::Reply { request, result });
                }
            }
            Happening::Told { link, message } => {
                let (word, fence) = (message.word, message.fence);
                let name = Name::new(&message.name);
                if word == Word::Lost {
                    self.clients[client].lost.insert((name.clone(), fence));
                }
                let notice = Notice {
                    word,
                    fence,
                    name,
                    link,
                };
                self.tell(client, Event::Notice(notice));
            }
            Happening::Unanswered { id } => self.unanswered(client, id),
            Happening::Breaks { link } => self.breaks(client, link),
            Happening::Connects => self.connects(client),
            Happening::Closes { session } => {
                self.tells(|| format!("  server: {session} is closed"));
                self.server.set_time(self.now);
                self.server.close(session);
                self.server_has_acted();
            }
        }
    }

    pub(crate) fn arrives(&mut self, client: usize, session: u64, id: Id, request: &Request) {
        if !self.server.sessions.contains_key(&session) {
            return;
        }
        self.server.set_time(self.now);
        let result = self.server.carry_out(self.now, session, request);
        self.tells(|| format!("  server: {request:?} by {session}: {result:?}"));
        // What a command tells its own connection may come before its reply.
        let first = self.below(2) == 0;
        if first {
            self.server_has_acted();
        }
        let (late, read) = (self.delay(), self.below(MS / 5));
        let link = self.clients[client].link.as_mut();
        if let Some(link) = link.filter(|link| link.session == session && !link.is_cut) {
            link.at_client = link.at_client.max(self.now + late) + 1;
            let at = link.at_client + read;
            self.later(at - self.now, client, Happening::Replied { id, result });
        }
        self.server_has_acted();
    }

    /// Sends on what the server tells.
    pub(crate) fn server_has_acted(&mut self) {
        self.server.core.turn();
        for message in self.server.messages() {
            let client = message.client;
            let late = self.delay();
            let link = self.clients[client].link.as_mut();
            let Some(link) = link.filter(|link| !link.is_cut) else {
                continue;
            };
            if !self.server.sessions.contains_key(&link.session) {
                continue;
            }
            link.at_client = link.at_client.max(self.now + late) + 1;
            let (at, link) = (link.at_client, link.number);
            self.later(at - self.now, client, Happening::Told { link, message });
        }
    }

    /// How long something is on its way: mostly short, at times long.
    pub(crate) fn delay(&mut self) -> u64 {
        match self.below(60) {
            0 => self.below(2 * SECOND),
            1..=5 => self.below(50 * MS),
            _ => self.below(MS),
        }
    }
}
