//! The servers of a cluster: their addresses and their slots.

use std::collections::VecDeque;
use std::time::Duration;

use crate::endpoint::connection::{Purpose, ReplyKind};
use crate::endpoint::main_connection::Outage;
use crate::endpoint::{ConnectionId, Endpoint, Note, Source, Timer, silent};
use crate::engine;
use crate::engine::instant::{Instant, LateChecks};
use crate::engine::node::{Node, Routes, SLOTS};
use crate::engine::proof::NODES_MAX;
use crate::error::{Failure, ServerError};
use crate::servers::{Address, Tls};
use crate::wire::resp::Frame;
use crate::wire::topology::{self, Host, Range, Redirect, Reliability};

/// The time limit for a server's report of the slots, the shortest interval
/// between these reports, and the time limit for a server to which a slot is
/// moving.
pub(super) const ASKED_EVERY: Duration = Duration::from_secs(1);
/// The interval of these questions if nothing suggests a change, or if there are no
/// holds at a master without a connection: a client that waits at a master that was
/// cut off does not learn of its successor otherwise.
const REFRESH_INTERVAL: Duration = Duration::from_secs(5);
/// How many former masters a refresh asks if no server is connected.
const FORMER_MAX: usize = 4;
/// For how long no report of a smaller epoch counts: the servers that know the
/// larger one may be late.
const EPOCH_COUNTS: Duration = Duration::from_secs(10);

pub(super) struct Cluster {
    /// The first servers to ask.
    seeds: Vec<Address>,
    tls: Option<Tls>,
    /// The addresses of the servers, by number.
    addresses: Vec<(String, u16)>,
    refresh: Option<Refresh>,
    /// The number of refreshes so far.
    refreshes: u64,
    /// Whether answers in progress may already be outdated.
    is_stale: bool,
    /// The last epoch that a server in service has reported, and until when no
    /// smaller one counts.
    epoch: (u64, Instant),
    /// Which failed refreshes the user has seen.
    outage: Outage,
    /// When the next regular refresh is due, and the earliest moment for any
    /// refresh.
    next: Instant,
    earliest: Instant,
}

/// Finds out which server has which slots. It asks the connected servers. If
/// none of them is reliable, it asks the seeds and the servers with slots one after
/// the other, and some former masters if no server is connected. If they disagree,
/// the newest answer of a server in service counts, and of equally new ones the one
/// that changes nothing.
struct Refresh {
    number: u64,
    /// The servers that were asked, and their answers so far.
    asked: Vec<(ConnectionId, Vec<Frame>)>,
    /// How long to wait for the connected servers.
    until: Instant,
    late_checks: LateChecks,
    best: Option<(Reliability, Routes)>,
    failures: Vec<(String, Failure)>,
    /// Further servers to ask.
    rest: VecDeque<Address>,
}

impl Cluster {
    pub(super) fn new(seeds: Vec<Address>) -> Self {
        Self {
            tls: seeds.first().and_then(Address::tls),
            seeds,
            addresses: Vec::new(),
            refresh: None,
            refreshes: 0,
            is_stale: false,
            epoch: (0, Instant::from_nanos(0)),
            outage: Outage::default(),
            next: Instant::from_nanos(0),
            earliest: Instant::from_nanos(0),
        }
    }

    fn at(&self, (host, port): &(String, u16)) -> Address {
        Address::Tcp {
            host: host.clone(),
            port: *port,
            tls: self.tls,
        }
    }

    pub(super) fn server(&self, node: Node) -> Result<Address, Failure> {
        let address = self.addresses.get(usize::from(node.0));
        let unknown = || Failure::Io("the server has left the cluster".to_owned());
        address.map(|address| self.at(address)).ok_or_else(unknown)
    }

    pub(super) fn address_text(&self, node: Node) -> String {
        let address = self.addresses.get(usize::from(node.0));
        address.map_or_else(String::new, |address| self.at(address).to_string())
    }
}

impl Endpoint {
    pub(super) fn as_cluster(&mut self) -> Option<&mut Cluster> {
        match &mut self.source {
            Source::Cluster(cluster) => Some(cluster),
            Source::One(_) | Source::Sentinels(_) => None,
        }
    }

    /// The number of a server; none if too many are in use.
    fn node_at(&mut self, host: &str, port: u16) -> Option<Node> {
        let Source::Cluster(cluster) = &mut self.source else {
            return None;
        };
        let addresses = &mut cluster.addresses;
        let known = addresses.iter().position(|it| it.0 == host && it.1 == port);
        let number = known.unwrap_or(addresses.len());
        if let Ok(number) = u16::try_from(number)
            && number < NODES_MAX
        {
            if known.is_none() {
                addresses.push((host.to_owned(), port));
            }
            return Some(Node(number));
        }
        let free = (0..NODES_MAX).find(|number| !self.engine.is_in_use(Node(*number)))?;
        *addresses.get_mut(usize::from(free))? = (host.to_owned(), port);
        Some(Node(free))
    }

    /// Records that the routes may be wrong.
    pub(super) fn mark_routes_stale(&mut self, now: Instant) {
        let Some(cluster) = self.as_cluster() else {
            return;
        };
        if cluster.refresh.is_some() {
            cluster.is_stale = true;
            return;
        }
        let next = cluster.earliest.max(now);
        cluster.next = next;
        self.timers.insert((next, Timer::Cluster));
    }

    /// Handles a server's redirection to another server, or its refusal because
    /// it serves no slots: another server may have replaced it.
    pub(super) fn redirected(&mut self, now: Instant, error: &ServerError, asked: Option<Node>) {
        if !self.is_cluster() {
            return;
        }
        if error.code == "CLUSTERDOWN" {
            self.mark_routes_stale(now);
        }
        let Some(redirect) = topology::redirect(error).filter(|redirect| !redirect.is_once) else {
            return;
        };
        if let Some(node) = self.named(&redirect, asked) {
            let slot = redirect.slot;
            self.engine
                .handle(now, engine::Event::SlotMoved { slot, node });
            self.resume_questions(now);
            self.resume_watches(now);
        }
        self.mark_routes_stale(now);
    }

    /// The server that a redirection names.
    fn named(&mut self, redirect: &Redirect, asked: Option<Node>) -> Option<Node> {
        let addresses = &self.as_cluster()?.addresses;
        let asked = asked.and_then(|asked| addresses.get(usize::from(asked.0)));
        let from = asked.map_or(String::new(), |asked| asked.0.clone());
        let host = self.host_in(redirect, &from)?;
        self.node_at(&host, redirect.port)
    }

    /// The server to which a slot is moving.
    pub(super) fn going_to(&mut self, redirect: &Redirect, from: &str) -> Option<(Node, Address)> {
        let host = self.host_in(redirect, from)?;
        let node = self.node_at(&host, redirect.port)?;
        let address = self.as_cluster()?.at(&(host, redirect.port));
        Some((node, address))
    }

    /// The host in a redirection by the server at the host `from`. An unknown host
    /// is the one of the only server with slots at that port, if there is just
    /// one. Otherwise the next report of the slots tells the server.
    fn host_in(&self, redirect: &Redirect, from: &str) -> Option<String> {
        let Source::Cluster(cluster) = &self.source else {
            return None;
        };
        match &redirect.host {
            Host::Named(host) => Some(host.clone()),
            Host::Same => Some(from.to_owned()),
            Host::Unknown => {
                let nodes = self.engine.routes().nodes().into_iter();
                let servers = nodes.filter_map(|node| cluster.addresses.get(usize::from(node.0)));
                let mut hosts = servers.filter(|it| it.1 == redirect.port).map(|it| &it.0);
                let host = hosts.next()?;
                hosts.next().is_none().then(|| host.clone())
            }
        }
    }

    pub(super) fn refresh_slots(&mut self, now: Instant) {
        let mains = self.main_connections();
        let used = self.engine.routes().nodes();
        let Some(cluster) = self
            .as_cluster()
            .filter(|cluster| cluster.refresh.is_none())
        else {
            return;
        };
        // A server without slots may be gone, and each that is takes a second.
        let known = used.iter().filter_map(|it| cluster.server(*it).ok());
        let mut rest: VecDeque<_> = cluster.seeds.iter().cloned().chain(known).collect();
        if mains.is_empty() {
            // One that had slots before may be a master again.
            let former = cluster.addresses.iter().map(|it| cluster.at(it));
            let former: Vec<_> = former.filter(|it| !rest.contains(it)).collect();
            let turn = usize::try_from(cluster.refreshes).unwrap_or(0) * FORMER_MAX;
            let asked = former.iter().cycle().skip(turn % former.len().max(1));
            rest.extend(asked.take(former.len().min(FORMER_MAX)).cloned());
        }
        let until = now + ASKED_EVERY;
        let asked = mains.iter().map(|main| (*main, Vec::new())).collect();
        cluster.refreshes += 1;
        cluster.refresh = Some(Refresh {
            number: cluster.refreshes,
            asked,
            until,
            late_checks: LateChecks::default(),
            best: None,
            failures: Vec::new(),
            rest,
        });
        self.timers.insert((until, Timer::Cluster));
        if mains.is_empty() {
            return self.refresh_further(now);
        }
        for main in mains {
            self.ask_for_slots(now, main);
        }
    }

    pub(super) fn ask_for_slots(&mut self, now: Instant, id: ConnectionId) {
        let Some(number) = self.as_cluster().map(|cluster| cluster.refreshes) else {
            return;
        };
        if let Some(connection) = self.connections.get_mut(&id) {
            let was_empty = connection.output.is_empty();
            connection.write(now, &topology::slots(), ReplyKind::Slots(number));
            connection.write(now, &topology::info(), ReplyKind::Slots(number));
            self.has_output(now, id, was_empty);
        }
    }

    pub(super) fn slots_reply(
        &mut self,
        now: Instant,
        id: ConnectionId,
        number: u64,
        frame: Frame,
    ) {
        let Some(connection) = self.connections.get(&id) else {
            return;
        };
        let (host, address) = (connection.host().to_owned(), connection.address.to_string());
        let is_main = connection.purpose != Purpose::Slots;
        let refresh = self.as_cluster().and_then(|it| it.refresh.as_mut());
        // An earlier answer is older and may be incomplete.
        let Some(refresh) = refresh.filter(|refresh| refresh.number == number) else {
            return;
        };
        let mut asked = refresh.asked.iter_mut();
        let Some((_, frames)) = asked.find(|(asked, _)| *asked == id) else {
            return;
        };
        frames.push(frame);
        let [slots, info] = frames.as_slice() else {
            return;
        };
        let reliability = topology::reliability(info);
        let ranges = match slots {
            Frame::Error(error) => Err(Failure::Server(error.clone())),
            slots => Ok(topology::ranges(slots, &host)),
        };
        refresh.asked.retain(|(asked, _)| *asked != id);
        let routes = ranges.and_then(|ranges| {
            let unknown = || Failure::Io("its reply has no slots".to_owned());
            self.read_routes(&ranges).ok_or_else(unknown)
        });
        // Servers may write the addresses of the same servers differently.
        let is_in_use = routes.as_ref().is_ok_and(|routes| self.are_in_use(routes));
        if let Some(refresh) = self.as_cluster().and_then(|it| it.refresh.as_mut()) {
            match routes {
                Ok(routes) => {
                    let best = refresh.best.as_ref();
                    let is_better = |(known, _): &(Reliability, Routes)| {
                        reliability > *known || reliability == *known && is_in_use
                    };
                    if best.is_none_or(is_better) {
                        refresh.best = Some((reliability, routes));
                    }
                }
                Err(failure) if !is_main => refresh.failures.push((address, failure)),
                Err(_) => {}
            }
        }
        if !is_main {
            self.give_up(now, id, silent());
        }
        self.continue_refresh(now);
    }

    fn are_in_use(&self, routes: &Routes) -> bool {
        match (routes, self.engine.routes()) {
            (Routes::Slots(reported), Routes::Slots(used)) => reported == used,
            (Routes::One, _) | (_, Routes::One) => false,
        }
    }

    /// A server that was asked does not answer.
    pub(super) fn slots_failed(
        &mut self,
        now: Instant,
        id: ConnectionId,
        address: String,
        failure: Failure,
    ) {
        let Some(refresh) = self.as_cluster().and_then(|it| it.refresh.as_mut()) else {
            return;
        };
        let count = refresh.asked.len();
        refresh.asked.retain(|(asked, _)| *asked != id);
        if refresh.asked.len() < count {
            refresh.failures.push((address, failure));
            self.continue_refresh(now);
        }
    }

    fn continue_refresh(&mut self, now: Instant) {
        let refresh = self.as_cluster().and_then(|it| it.refresh.as_ref());
        if refresh.is_some_and(|refresh| refresh.asked.is_empty()) {
            self.refresh_further(now);
        }
    }

    /// Asks the next server, unless the answers suffice.
    fn refresh_further(&mut self, now: Instant) {
        let Some(refresh) = self.as_cluster().and_then(|it| it.refresh.as_mut()) else {
            return;
        };
        let is_known = refresh
            .best
            .as_ref()
            .is_some_and(|(reliability, _)| reliability.is_ok);
        let next = refresh.rest.pop_front().filter(|_| !is_known);
        let Some(address) = next else {
            return self.refresh_ends(now);
        };
        let id = self.new_connection(now, Purpose::Slots, address, ASKED_EVERY);
        if let Some(refresh) = self.as_cluster().and_then(|it| it.refresh.as_mut()) {
            refresh.asked.push((id, Vec::new()));
        }
    }

    fn refresh_ends(&mut self, now: Instant) {
        let is_cut_off = self.engine.is_cut_off(now);
        let Some(cluster) = self.as_cluster() else {
            return;
        };
        let Some(refresh) = cluster.refresh.take() else {
            return;
        };
        cluster.earliest = now + ASKED_EVERY;
        // Holds end before a promotion that is learned of too late.
        let is_urgent = std::mem::take(&mut cluster.is_stale) || is_cut_off;
        cluster.next = match is_urgent {
            true => cluster.earliest,
            false => now + REFRESH_INTERVAL,
        };
        let found = refresh.best.ok_or(Failure::NoneOf {
            what: "no server reports the slots",
            failures: refresh.failures,
        });
        let mut is_older = false;
        let is_news = match &found {
            Ok((reliability, _)) => {
                cluster.outage = Outage::default();
                let (epoch, until) = cluster.epoch;
                is_older = reliability.epoch < epoch && now < until;
                if is_older {
                    cluster.next = cluster.next.min(until.max(cluster.earliest));
                } else if reliability.is_ok {
                    cluster.epoch = (reliability.epoch, now + EPOCH_COUNTS);
                }
                false
            }
            Err(failure) => cluster.outage.is_news(failure),
        };
        let next = cluster.next;
        self.timers.insert((next, Timer::Cluster));
        match found {
            Ok((_, routes)) => {
                if !is_older {
                    self.engine.handle(now, engine::Event::Routes(routes));
                }
                self.resume_questions(now);
                self.resume_watches(now);
                self.start_at_nodes(now);
            }
            Err(failure) => {
                let ends_start = self.start_at_nobody(&failure);
                let is_news = is_news && !ends_start;
                self.note(Note::NoRoutes { failure, is_news });
            }
        }
    }

    pub(super) fn cluster_is_due(&mut self, now: Instant) {
        let Source::Cluster(cluster) = &mut self.source else {
            return;
        };
        let next = cluster.next;
        match &mut cluster.refresh {
            // The time limit of the connected servers is over.
            Some(refresh) if refresh.until <= now => {
                if let Some(again) = refresh.late_checks.again(refresh.until, now) {
                    refresh.until = again;
                    self.timers.insert((again, Timer::Cluster));
                    return;
                }
                let connections = &self.connections;
                refresh.asked.retain(|(id, _)| {
                    let asked = connections.get(id);
                    asked.is_some_and(|asked| asked.purpose == Purpose::Slots)
                });
                self.continue_refresh(now);
            }
            None if next <= now => self.refresh_slots(now),
            Some(_) | None => {}
        }
    }

    /// The routes; none if no server has any slot. A slot without a server stays
    /// where it was.
    fn read_routes(&mut self, ranges: &[Range]) -> Option<Routes> {
        let mut nodes = match self.engine.routes() {
            Routes::Slots(nodes) => nodes.to_vec(),
            Routes::One => Vec::new(),
        };
        let first = ranges.first()?;
        let default = self.node_at(&first.host, first.port)?;
        nodes.resize(usize::from(SLOTS), default);
        for range in ranges {
            let node = self.node_at(&range.host, range.port)?;
            let slots = nodes.get_mut(usize::from(range.first)..=usize::from(range.last));
            slots?.fill(node);
        }
        Some(Routes::Slots(nodes.into()))
    }
}
