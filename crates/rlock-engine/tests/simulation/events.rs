//! The next events, and their consequences.

use std::collections::HashMap;
use std::mem::discriminant;

use rlock_engine::engine::claims::Name;
use rlock_engine::engine::request::{Notice, NoticeKind, Reply, Request};
use rlock_engine::engine::{Action, Event, Id};
use rlock_engine::error::Fault;

use crate::client::{Via, WorldEvent};
use crate::cluster::Answer;
use crate::links::RESPONSE_LIMIT;
use crate::operation::KEYS;
use crate::server::moved;
use crate::world::{MS, SECOND, World};

/// How often a client may send the same kind of request for the same owner and
/// keys in a second: every way to repeat a request has a pause.
const REPEATED_MAX: u64 = 40;

impl World {
    /// Passes an event to a client's engine, and carries out the actions.
    pub(crate) fn send_event(&mut self, client: usize, event: Event) {
        let now = self.instant();
        if !matches!(event, Event::Tick) {
            self.log(|| format!("  client {client}: {event:?}"));
        }
        self.clients[client].engine.handle(now, event);
        while let Some(action) = self.clients[client].engine.poll_action() {
            self.carry_out(client, action);
        }
    }

    fn carry_out(&mut self, client: usize, action: Action) {
        self.log(|| format!("    client {client} does {action:?}"));
        match action {
            Action::Send {
                id,
                connection,
                request,
                ..
            } => {
                self.sends(client, id, connection, request);
            }
            Action::Resolve { call, outcome } => self.resolved(client, call, outcome),
            Action::Retire { connection: link } => {
                self.later(0, client, WorldEvent::Breaks { link });
            }
            Action::Connect { node } => {
                let soon = self.delay();
                self.later(soon, client, WorldEvent::Connects { node });
            }
            Action::Over { .. }
            | Action::NotRenewed { .. }
            | Action::AtRisk { .. }
            | Action::NotReleased { .. }
            | Action::Flushed { .. } => {}
        }
    }

    fn sends(&mut self, client: usize, id: Id, number: u64, request: Request) {
        let late = self.delay();
        let now = self.now;
        let this = &mut self.clients[client];
        let (second, sent) = &mut this.sent;
        if *second != now / SECOND {
            (*second, *sent) = (now / SECOND, HashMap::new());
        }
        let name = request.claims().and_then(|it| it.names().next()).cloned();
        let times = sent.entry((discriminant(&request), name)).or_default();
        *times += 1;
        if *times > REPEATED_MAX {
            self.wrong = Some(format!("{times} times in a second: {request:?}"));
            return;
        }
        let named = request
            .claims()
            .map(|it| this.engine.routes().node(it.slot()));
        let Some(link) = this.link(number) else {
            self.wrong = Some(format!("there is no connection for {request:?}"));
            return;
        };
        let (server, session) = (link.server, link.session);
        let is_cut = link.is_cut;
        link.at_server = link.at_server.max(now + late) + 1;
        let at = link.at_server;
        this.asked.insert(id, number);
        this.has_undone |= matches!(
            request,
            Request::CleanUp { .. }
                | Request::Downgrade { .. }
                | Request::Release { fence: None, .. }
                | Request::ReleaseEach { fence: None, .. }
        );
        if named.is_some_and(|named| named != self.kind.node(server)) {
            self.wrong = Some(format!("{server} is asked, not {named:?}: {request:?}"));
        }
        if request.replicas() > 0 {
            return self.asks_separately(client, server, id, request);
        }
        if is_cut {
            return self.later(RESPONSE_LIMIT, client, WorldEvent::Unanswered { id });
        }
        let event = WorldEvent::Asked {
            server,
            session,
            via: Via::Link,
            id,
            request,
        };
        self.later(at - now, client, event);
    }

    pub(crate) fn next_happens(&mut self) {
        let Some(((_, number), (client, event))) = self.schedule.pop_first() else {
            return;
        };
        if event.is_at_client() && self.is_stopped(client) {
            let at = (self.clients[client].stopped_until, number);
            self.schedule.insert(at, (client, event));
            return;
        }
        match event {
            WorldEvent::Asked {
                server,
                session,
                via,
                id,
                request,
            } => self.arrives(client, server, (session, via), id, request),
            WorldEvent::Replied {
                id, moved, result, ..
            } => self.replied(client, id, moved, result),
            WorldEvent::Sent { link, message } => {
                let (kind, fence) = (message.word, message.fence);
                let name = Name::new(&message.name);
                if kind == NoticeKind::Lost {
                    self.clients[client].lost.insert((name.clone(), fence));
                }
                let notice = Notice {
                    kind,
                    fence,
                    name,
                    connection: link,
                };
                self.send_event(client, Event::Notice(notice));
            }
            WorldEvent::Unanswered { id } => self.unanswered(client, id),
            WorldEvent::Strays {
                server,
                session,
                id,
            } => self.strays(client, (server, session), id),
            WorldEvent::Breaks { link } => self.breaks(client, link),
            WorldEvent::Connects { node } => self.connects(client, node),
            WorldEvent::AsksForRoutes => self.asks_for_routes(client),
            WorldEvent::LearnsRoutes { view } => {
                let routes = self.kind.routes(view);
                self.send_event(client, Event::Routes(routes));
            }
            WorldEvent::MayAsk => self.may_ask_again(client),
            WorldEvent::Named => self.is_named(client),
            WorldEvent::Closes { session } => self.is_closed(session),
            WorldEvent::KeyMoves { key } => self.key_moves(KEYS[key]),
            WorldEvent::HasMoved { place } => self.has_moved(place),
            WorldEvent::Agree { place } => self.agree(place),
            WorldEvent::Learns { server } => self.learns(server),
            WorldEvent::Fails {
                shard,
                outage,
                back,
                copy,
            } => self.fails(shard, outage, back, copy),
            WorldEvent::Promoted { shard, copy } => self.is_promoted(shard, copy),
            WorldEvent::Returns { server } => self.returns(server),
        }
    }

    fn replied(
        &mut self,
        client: usize,
        id: Id,
        moved: Option<(u16, usize)>,
        result: Result<Reply, Fault>,
    ) {
        let Some(link) = self.clients[client].asked.get(&id).copied() else {
            return;
        };
        if let Some((slot, server)) = moved {
            self.redirected(client, slot, server);
        }
        self.clients[client].asked.remove(&id);
        self.clients[client].separately.remove(&id);
        let is_over =
            matches!(&result, Err(Fault::Transient(why)) if why.to_string().contains("READONLY"));
        let request = id;
        self.send_event(client, Event::Reply { request, result });
        if is_over {
            // It is a replica, and another server is the master.
            self.breaks(client, link);
        }
    }

    fn is_closed(&mut self, session: u64) {
        let now = self.now;
        let mut servers = self.servers.iter();
        let server = servers.position(|it| it.sessions.contains_key(&session));
        let Some(server) = server else {
            return;
        };
        if self.servers[server].is_down(now) {
            // The client sees that when it runs again.
            let time = self.servers[server].down_until - now;
            return self.later(time, 0, WorldEvent::Closes { session });
        }
        self.log(|| format!("  server {server}: {session} is closed"));
        self.servers[server].set_time(now);
        self.servers[server].close(session);
        self.has_acted(server);
    }

    fn arrives(
        &mut self,
        client: usize,
        server: usize,
        (session, via): (u64, Via),
        id: Id,
        request: Request,
    ) {
        let this = &mut self.servers[server];
        if !this.sessions.contains_key(&session) {
            if via != Via::Link {
                self.later(
                    MS,
                    client,
                    WorldEvent::Strays {
                        server,
                        session,
                        id,
                    },
                );
            }
            return;
        }
        if this.is_down(self.now) {
            let time = this.down_until - self.now;
            match via {
                Via::Link => self.later(RESPONSE_LIMIT, client, WorldEvent::Unanswered { id }),
                Via::Asking | Via::Separate => self.is_silent(client, (server, session), id, via),
            }
            let asked = WorldEvent::Asked {
                server,
                session,
                via,
                id,
                request,
            };
            return self.later(time, client, asked);
        }
        this.set_time(self.now);
        let is_asking = via == Via::Asking;
        let (moved, result) = match self.answer(server, session, &request, is_asking) {
            Answer::Reply(result) => (None, result),
            Answer::Moved(slot, to) => (Some((slot, to)), Err(Fault::Moved(moved("MOVED")))),
            Answer::Ask(to) if request.is_of_a_hold() && via == Via::Link => {
                return self.asks_there(client, to, id, request);
            }
            Answer::Ask(_) => (None, Err(Fault::Moved(moved("ASK")))),
        };
        self.log(|| format!("  server {server}: {request:?} by {session}: {result:?}"));
        if let (Ok(Reply::Fence(fence)), Some(claims)) = (&result, request.claims()) {
            self.is_replicated(claims, *fence);
        }
        // A command's messages to its own connection may come before its reply.
        let first = self.below(2) == 0;
        if first {
            self.has_acted(server);
        }
        let late = self.delay();
        let now = self.now;
        let slow_until = self.clients[client].slow_until;
        let replied = |here| WorldEvent::Replied {
            id,
            here,
            moved,
            result,
        };
        if via == Via::Asking {
            self.later(late, client, WorldEvent::Closes { session });
        }
        let links = self.clients[client].links.values_mut();
        let mut links = links.filter(|link| link.session == session && !link.is_cut);
        if via != Via::Link {
            self.later(late, client, replied(now + late));
        } else if let Some(link) = links.next() {
            link.at_client = link.at_client.max(now + late) + 1;
            let here = link.at_client;
            self.later(here.max(slow_until) - now, client, replied(here));
        }
        self.has_acted(server);
    }

    /// A request about a hold goes to the server that already has it.
    fn asks_there(&mut self, client: usize, server: usize, id: Id, request: Request) {
        let by = self.clients[client].asked.insert(id, 0);
        if let Some(claims) = request.claims() {
            let (request, claims) = (id, claims.clone());
            self.send_event(client, Event::SentSeparately { request, claims });
        }
        self.clients[client].separately.insert(id);
        if self.servers[server].is_down(self.now) {
            return self.is_not_there(client, id);
        }
        self.closes_strays(client, server, by.unwrap_or(0));
        self.last += 1;
        let session = self.last;
        self.servers[server].open_to_ask(session, client);
        self.clients[client].asking.insert(session);
        let is_silent = self.now < self.clients[client].silent_until;
        let late = match is_silent {
            true => {
                self.is_silent(client, (server, session), id, Via::Asking);
                self.below(20 * SECOND)
            }
            false => self.delay(),
        };
        let asked = WorldEvent::Asked {
            server,
            session,
            via: Via::Asking,
            id,
            request,
        };
        self.later(late, client, asked);
    }

    /// A request for replicas uses a separate connection, whose state says
    /// nothing about the client's main one.
    fn asks_separately(&mut self, client: usize, server: usize, id: Id, request: Request) {
        let this = &self.clients[client];
        let is_silent = self.now < this.silent_until;
        let is_refused = self.now < this.refused_until || self.servers[server].is_down(self.now);
        let known = this.separate.get(&server).copied();
        let known = known.filter(|it| self.servers[server].sessions.contains_key(it));
        self.clients[client].separately.insert(id);
        if is_silent && known.is_none() {
            return self.is_not_there(client, id);
        }
        if known.is_none() && is_refused {
            return self.is_not_there(client, id);
        }
        let session = known.unwrap_or_else(|| {
            self.last += 1;
            self.servers[server].open_to_ask(self.last, client);
            self.last
        });
        self.clients[client].separate.insert(server, session);
        let late = match is_silent {
            true => {
                self.is_silent(client, (server, session), id, Via::Separate);
                self.below(20 * SECOND)
            }
            false => self.delay(),
        };
        let asked = WorldEvent::Asked {
            server,
            session,
            via: Via::Separate,
            id,
            request,
        };
        self.later(late, client, asked);
    }

    /// Delivers a server's messages.
    pub(crate) fn has_acted(&mut self, server: usize) {
        self.servers[server].core.turn();
        let node = self.kind.node(server).0;
        for message in self.servers[server].messages() {
            let client = message.client;
            let late = self.delay();
            let slow_until = self.clients[client].slow_until;
            let link = self.clients[client].links.get_mut(&node);
            let Some(link) = link.filter(|link| !link.is_cut && link.server == server) else {
                continue;
            };
            if !self.servers[server].sessions.contains_key(&link.session) {
                continue;
            }
            link.at_client = link.at_client.max(self.now + late) + 1;
            let (at, link) = (link.at_client.max(slow_until), link.number);
            self.later(at - self.now, client, WorldEvent::Sent { link, message });
        }
    }
}
