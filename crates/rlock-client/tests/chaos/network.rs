//! The network between clients and servers. Every server is reached through a
//! proxy, and each group of clients has proxies of its own, so that a server
//! can be cut off from some clients and not from others.
//!
//! A Sentinel or a cluster tells the addresses of servers. On the way to the
//! client these are replaced by those of its group's proxies.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use rlock_testkit::asynchronous::url;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Weather {
    Fair,
    /// Connections end, and none is made.
    Cut,
    /// Nothing arrives, and no connection ends.
    Silent,
    /// Requests arrive, replies do not.
    NoReplies,
    /// Replies and messages arrive, requests do not.
    NoRequests,
    /// All arrives, in either direction later by so much.
    Slow(Duration),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    ToServer,
    ToClient,
}

impl Weather {
    fn swallows(self, direction: Direction) -> bool {
        match self {
            Self::Silent => true,
            Self::NoReplies => direction == Direction::ToClient,
            Self::NoRequests => direction == Direction::ToServer,
            Self::Fair | Self::Cut | Self::Slow(_) => false,
        }
    }
}

/// `(server's port, proxy's port)` of a group.
type Ports = Vec<(u16, u16)>;

/// The proxies of one group of clients, one for each server.
struct Group {
    ports: Ports,
    weather: Vec<watch::Sender<Weather>>,
}

pub(crate) struct Network {
    groups: Vec<Group>,
}

impl Network {
    /// Proxies for servers at these ports.
    pub(crate) async fn of(groups: usize, servers: &[u16]) -> Self {
        let mut network = Self { groups: Vec::new() };
        for _ in 0..groups {
            network.groups.push(Group::of(servers).await);
        }
        network
    }

    /// Where a group finds the server that is at this port.
    pub(crate) fn url(&self, group: usize, server: u16) -> String {
        let ports = &self.groups[group].ports;
        let known = ports.iter().find(|(real, _)| *real == server);
        url(known.expect("a server that is known").1)
    }

    /// Between the groups for which it `applies` and this server.
    pub(crate) fn set(&self, server: u16, weather: Weather, applies: impl Fn(usize) -> bool) {
        let groups = self.groups.iter().enumerate();
        for (_, group) in groups.filter(|(number, _)| applies(*number)) {
            for ((real, _), sender) in group.ports.iter().zip(&group.weather) {
                if *real == server {
                    sender.send_replace(weather);
                }
            }
        }
    }
}

impl Group {
    async fn of(servers: &[u16]) -> Self {
        let (mut ports, mut listeners) = (Ports::new(), Vec::new());
        for server in servers {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            ports.push((*server, listener.local_addr().unwrap().port()));
            listeners.push(listener);
        }
        let mut weather = Vec::new();
        for (listener, (server, _)) in listeners.into_iter().zip(&ports) {
            let sender = watch::Sender::new(Weather::Fair);
            tokio::spawn(accept(listener, *server, ports.clone(), sender.subscribe()));
            weather.push(sender);
        }
        Self { ports, weather }
    }
}

async fn accept(
    listener: TcpListener,
    server: u16,
    ports: Ports,
    weather: watch::Receiver<Weather>,
) {
    while let Ok((client, _)) = listener.accept().await {
        if *weather.borrow() != Weather::Cut {
            tokio::spawn(forward(client, server, ports.clone(), weather.clone()));
        }
    }
}

/// Ends when one side does, which ends the other.
async fn forward(
    client: TcpStream,
    server: u16,
    ports: Ports,
    mut weather: watch::Receiver<Weather>,
) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let requests = Pipe {
        from: from_client,
        to: to_server,
        direction: Direction::ToServer,
        weather: weather.clone(),
        ports: Ports::new(),
    };
    let replies = Pipe {
        from: from_server,
        to: to_client,
        direction: Direction::ToClient,
        weather: weather.clone(),
        ports,
    };
    tokio::select! {
        _ = requests.run() => {}
        _ = replies.run() => {}
        _ = weather.wait_for(|weather| *weather == Weather::Cut) => {}
    }
}

struct Pipe {
    from: OwnedReadHalf,
    to: OwnedWriteHalf,
    direction: Direction,
    weather: watch::Receiver<Weather>,
    ports: Ports,
}

impl Pipe {
    async fn run(mut self) -> Option<()> {
        let (mut buffer, mut has_lost) = (vec![0; 65_536], false);
        loop {
            let length = self.from.read(&mut buffer).await.ok()?;
            let bytes = buffer.get_mut(..length).filter(|bytes| !bytes.is_empty())?;
            let weather = *self.weather.borrow();
            if weather.swallows(self.direction) {
                has_lost = true;
                continue;
            }
            // What follows a gap would be taken for what was lost.
            if has_lost {
                return None;
            }
            if let Weather::Slow(delay) = weather {
                tokio::time::sleep(delay).await;
            }
            for (server, proxy) in &self.ports {
                replace_port(bytes, *server, *proxy);
            }
            self.to.write_all(bytes).await.ok()?;
        }
    }
}

/// Replaces a port as `CLUSTER SLOTS`, `MOVED` and a Sentinel write it. All have five digits.
fn replace_port(bytes: &mut [u8], server: u16, proxy: u16) {
    let (server, proxy) = (server.to_string(), proxy.to_string());
    let (from, to) = (server.as_bytes(), proxy.as_bytes());
    assert_eq!(from.len(), to.len(), "ports of five digits");
    for start in 1..bytes.len().saturating_sub(from.len() + 1) {
        let end = start + from.len();
        let is_whole = matches!(bytes[start - 1], b':' | b'\n') && bytes[end] == b'\r';
        if is_whole && &bytes[start..end] == from {
            bytes[start..end].copy_from_slice(to);
        }
    }
}
