//! The connections and calls of random operations.

use std::collections::VecDeque;

use rlock_core::{Extras, Renewal, Request, Wait};

use crate::core::{
    messages::Ask,
    operation::{Asked, CHANNELS, CONNECTIONS, OWNERS, USERS},
};

pub struct Clients {
    /// The connections with several requests.
    pub sessions: [u64; CONNECTIONS],
    last_session: u64,
    pub last_call: u64,
    /// The latest calls, each with its connection.
    pub calls: VecDeque<(u64, u64)>,
}

impl Default for Clients {
    fn default() -> Self {
        let mut clients = Self {
            sessions: [0; CONNECTIONS],
            last_session: 0,
            last_call: 0,
            calls: VecDeque::new(),
        };
        clients.connect_all();
        clients
    }
}

impl Clients {
    /// All have new connections, and no call from before.
    pub fn connect_all(&mut self) {
        self.calls.clear();
        for connection in 0..CONNECTIONS {
            self.connect(connection);
        }
    }

    /// Replaces a connection, and returns the earlier one.
    pub fn connect(&mut self, connection: usize) -> u64 {
        self.last_session += 1;
        std::mem::replace(&mut self.sessions[connection], self.last_session)
    }

    /// A renewal by one of the connections with several requests.
    pub fn renewal(
        &self,
        lease_ms: u32,
        connection: usize,
        channel: Option<usize>,
    ) -> Renewal<'static> {
        Renewal {
            lease_ms,
            fence: None,
            session: Some(self.sessions[connection]),
            channel: channel.map(|channel| CHANNELS[channel]),
            bind: None,
            extras: Extras::NONE,
        }
    }

    pub fn ask(&mut self, asked: Asked) -> Ask<'static> {
        let session = if let Some(connection) = asked.connection {
            self.sessions[connection]
        } else {
            self.last_session += 1;
            self.last_session
        };
        self.last_call += 1;
        let call = self.last_call;
        if asked.channel.is_none() && (asked.wait != Wait::No || asked.options.bind.is_some()) {
            self.calls.push_front((call, session));
            self.calls.truncate(6);
        }
        let request = Request {
            owner: OWNERS[asked.owner].as_bytes(),
            options: asked.options,
            wait: asked.wait,
            session: Some(session),
            user: Some(USERS[usize::from(session % 3 == 0)].as_bytes()),
            channel: asked.channel.map(|channel| CHANNELS[channel]),
            extras: asked.extras.map(str::as_bytes),
        };
        Ask { request, call }
    }
}
