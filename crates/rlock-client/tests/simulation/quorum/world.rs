//! Three servers and two contenders, as small as they can be. All that can
//! happen next in a state is an action; those that nobody wants are faults.

mod contender;

use std::collections::VecDeque;

use crate::plan::{Event, Plan, Seat, majority};

pub(crate) const SERVERS: usize = 3;
pub(crate) const CLIENTS: usize = 2;
/// How far a fence may be ahead of the clock of a server.
const HOUR: u64 = 300;

/// What the world leaves out, to show that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Without {
    Nothing,
    /// Fences are not raised.
    Commit,
    /// A server that has lost its memory grants at once.
    Grace,
    /// A hold is extended beyond the grace of the servers.
    Bound,
}

/// Which world is looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    /// Whether contenders want the lock only if it is free.
    pub(crate) tries: bool,
    /// How far the clocks of the servers are apart.
    pub(crate) clocks: [u64; SERVERS],
    /// Whether the first of them holds it already.
    pub(crate) is_held: bool,
    /// How often each of them asks, in spite of retreats.
    pub(crate) attempts: u8,
    pub(crate) faults: u8,
    /// Those that happen.
    pub(crate) is_meant: fn(Action) -> bool,
    pub(crate) without: Without,
}

/// Contenders that wait, and servers without faults.
pub(crate) const CALM: Setting = Setting {
    tries: false,
    clocks: [200, 100, 0],
    is_held: false,
    attempts: 1,
    faults: 0,
    // The clients are alike.
    is_meant: |action| !matches!(action, Action::Cut(1, _) | Action::Lapse(1, _)),
    without: Without::Nothing,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Ask {
    Try,
    Wait,
    Raise(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Granted(u64),
    Refused,
    Raised,
    Behind,
    Gone,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Server {
    holder: Option<(usize, u64)>,
    /// Who waits.
    queue: VecDeque<usize>,
    last: u64,
    in_grace: bool,
}

/// Between one client and one server. To leave takes no time, and takes back
/// what was asked.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Link {
    is_cut: bool,
    asked: Option<Ask>,
    answered: Option<Answer>,
    /// What the background has to do once the link is back.
    owes_leave: bool,
    /// Whether the client counts on the lease there.
    is_valid: bool,
    /// Whether the server has confirmed the fence.
    is_raised: bool,
    /// Whether it counts for longer than the grace of the server.
    is_extended: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Client {
    plan: Option<Plan>,
    links: [Link; SERVERS],
    holds: Option<u64>,
    /// How often it still wants the lock.
    rounds: u8,
    /// How often it tries for that, in spite of retreats.
    attempts: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    servers: [Server; SERVERS],
    clients: [Client; CLIENTS],
    pub(crate) faults: u8,
    /// The largest fence that anybody has held under.
    top: u64,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Action {
    Begin(usize),
    Release(usize),
    /// A holder has its hold last for longer than the grace of the servers.
    Extend(usize),
    /// A server carries out what it was asked.
    Serve(usize, usize),
    Deliver(usize, usize),
    /// A client sees that its link has broken.
    Notice(usize, usize),
    Repair(usize, usize),
    /// A renewal shows that a hold is gone.
    Learn(usize, usize),
    /// A holder asks for a part that it has lost, or never had.
    Retake(usize, usize),
    /// A lease on which nobody counts ends.
    Expire(usize),
    EndGrace(usize),
    /// Faults: a lease ends for its holder, who may stall.
    Lapse(usize, usize),
    Cut(usize, usize),
    CrashKeeping(usize),
    CrashLosing(usize),
}

impl Action {
    fn is_fault(self) -> bool {
        use Action::{CrashKeeping, CrashLosing, Cut, Lapse};
        matches!(self, Lapse(..) | Cut(..) | CrashKeeping(_) | CrashLosing(_))
    }
}

impl World {
    pub(crate) fn new(setting: &Setting) -> Self {
        let server = |last| Server {
            holder: None,
            queue: VecDeque::new(),
            last,
            in_grace: false,
        };
        let client = Client {
            plan: None,
            links: Default::default(),
            holds: None,
            rounds: 1,
            attempts: setting.attempts,
        };
        let mut world = Self {
            servers: setting.clocks.map(server),
            clients: [client.clone(), client],
            faults: setting.faults,
            top: 0,
        };
        if setting.is_held {
            use Action::{Begin, Deliver, Serve};
            let is_his = |it: &Action| matches!(it, Begin(0) | Serve(0, _) | Deliver(0, _));
            while let Some(action) = world.actions(setting).into_iter().find(is_his) {
                world.act(action, setting).expect("nothing is wrong so far");
            }
        }
        world
    }

    /// Whether all who wait were served, or one of those who tried, in a world
    /// that is done.
    pub(crate) fn is_served(&self, setting: &Setting) -> bool {
        let mut served = self.clients.iter().map(|client| client.rounds == 0);
        match setting.tries {
            true => served.any(|it| it),
            false => served.all(|it| it),
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        let wants = |client: &Client| client.rounds > 0 && client.attempts > 0;
        let is_busy = |client: &Client| client.plan.is_some() || client.holds.is_some();
        !self.clients.iter().any(|it| wants(it) || is_busy(it))
    }

    /// All that can happen next.
    pub(crate) fn actions(&self, setting: &Setting) -> Vec<Action> {
        use Action::*;
        let mut all = Vec::new();
        for (c, client) in self.clients.iter().enumerate() {
            let is_quiet = client.links.iter().all(Link::is_idle);
            if client.plan.is_none() && client.rounds > 0 && client.attempts > 0 && is_quiet {
                all.push(Begin(c));
            }
            if client.holds.is_some() {
                all.push(Release(c));
                if setting.without == Without::Bound {
                    all.push(Extend(c));
                }
            }
            for (s, link) in client.links.iter().enumerate() {
                let holds = self.servers[s]
                    .holder
                    .is_some_and(|(holder, _)| holder == c);
                let is_idle = link.is_idle();
                let is_free = self.servers[s].holder.is_none_or(|(holder, _)| holder == c);
                if link.asked.is_some() {
                    all.push(Serve(c, s));
                }
                if link.answered.is_some() {
                    all.push(Deliver(c, s));
                }
                if link.is_cut && self.awaits(c, s) {
                    all.push(Notice(c, s));
                } else if link.is_cut {
                    all.push(Repair(c, s));
                }
                if link.is_valid && !holds && !link.is_cut {
                    all.push(Learn(c, s));
                }
                if client.holds.is_some() && !link.is_raised && is_idle && !link.is_cut && is_free {
                    all.push(Retake(c, s));
                }
                if link.is_valid {
                    all.push(Lapse(c, s));
                }
                if !link.is_cut {
                    all.push(Cut(c, s));
                }
            }
        }
        for (s, server) in self.servers.iter().enumerate() {
            if let Some((c, _)) = server.holder {
                let link = &self.clients[c].links[s];
                if !link.is_valid && link.is_idle() {
                    all.push(Expire(s));
                }
            }
            let counts = |c: &Client| c.links[s].is_valid && !c.links[s].is_extended;
            let is_counted = self.clients.iter().any(counts);
            if server.in_grace && (setting.without == Without::Grace || !is_counted) {
                all.push(EndGrace(s));
            }
            all.extend([CrashKeeping(s), CrashLosing(s)]);
        }
        let may_fail = |action: &Action| self.faults > 0 && (setting.is_meant)(*action);
        all.retain(|action| !action.is_fault() || may_fail(action));
        all
    }

    /// Whether the plan of a client waits for a server.
    fn awaits(&self, c: usize, s: usize) -> bool {
        let plan = self.clients[c].plan.as_ref();
        plan.is_some_and(|plan| {
            let seat = plan.seats()[s];
            matches!(seat, Seat::Asking | Seat::Queued | Seat::Raising(_))
        })
    }

    /// What comes of an action; the rule that it breaks.
    pub(crate) fn act(&mut self, action: Action, setting: &Setting) -> Result<(), String> {
        if action.is_fault() {
            self.faults -= 1;
        }
        match action {
            Action::Begin(c) => {
                self.clients[c].attempts -= 1;
                let reached: Vec<_> = self.clients[c].links.iter().map(|it| !it.is_cut).collect();
                let (plan, steps) = Plan::begin(&reached, !setting.tries);
                self.clients[c].plan = Some(plan);
                self.carry_out(c, steps, setting)?;
            }
            Action::Release(c) => {
                self.clients[c].holds = None;
                self.clients[c].rounds -= 1;
                self.clients[c].plan = None;
                self.clients[c].attempts = self.clients[c].rounds;
                (0..SERVERS).rev().for_each(|s| self.leave(c, s));
            }
            Action::Extend(c) => {
                for link in &mut self.clients[c].links {
                    link.is_extended = link.is_valid && link.is_raised;
                }
            }
            Action::Serve(c, s) => self.serve(c, s, setting),
            Action::Deliver(c, s) => self.deliver(c, s, setting)?,
            Action::Notice(c, s) => self.tell(c, Event::Gone(s), setting)?,
            Action::Repair(c, s) => {
                let link = &mut self.clients[c].links[s];
                link.is_cut = false;
                if std::mem::take(&mut link.owes_leave) {
                    self.left(c, s);
                }
            }
            Action::Learn(c, s) | Action::Lapse(c, s) => self.clients[c].links[s].forget(),
            Action::Retake(c, s) => {
                // Lost: it is left first.
                self.leave(c, s);
                self.ask(c, s, Ask::Try, setting);
            }
            Action::Expire(s) => self.free(s),
            Action::EndGrace(s) => {
                self.servers[s].in_grace = false;
                // It is longer than the clocks are apart.
                self.servers[s].last = self.servers[s].last.max(self.top + 10);
                self.hand_on(s);
            }
            Action::Cut(c, s) => self.cut(c, s),
            Action::CrashKeeping(s) => self.crash(s),
            Action::CrashLosing(s) => {
                self.crash(s);
                self.servers[s].holder = None;
                (self.servers[s].last, self.servers[s].in_grace) = (setting.clocks[s], true);
            }
        }
        self.check()
    }

    fn check(&mut self) -> Result<(), String> {
        for client in &mut self.clients {
            let counts = |link: &&Link| link.is_valid && link.is_raised;
            let held = client.links.iter().filter(counts).count();
            if client.holds.is_some() && held < majority(SERVERS) {
                // It knows: nothing is done under it from here.
                client.holds = Some(0);
            }
        }
        let hold = self
            .clients
            .iter()
            .filter(|it| it.holds.is_some_and(|fence| fence > 0));
        match hold.count() {
            0 | 1 => Ok(()),
            _ => Err("two hold it at once".to_owned()),
        }
    }

    fn cut(&mut self, c: usize, s: usize) {
        let link = &mut self.clients[c].links[s];
        (link.asked, link.answered, link.is_cut) = (None, None, true);
        self.servers[s].queue.retain(|waiter| *waiter != c);
    }

    fn crash(&mut self, s: usize) {
        (0..CLIENTS).for_each(|c| self.cut(c, s));
        self.servers[s].queue.clear();
    }

    fn serve(&mut self, c: usize, s: usize, setting: &Setting) {
        let Some(ask) = self.clients[c].links[s].asked.take() else {
            return;
        };
        let server = &mut self.servers[s];
        let held = server.holder.filter(|(holder, _)| *holder == c);
        let is_free = server.holder.is_none() && server.queue.is_empty() && !server.in_grace;
        let answer = match (ask, held) {
            (Ask::Try | Ask::Wait, Some((_, fence))) => Some(Answer::Granted(fence)),
            (Ask::Try | Ask::Wait, None) if is_free => {
                server.last += 1;
                server.holder = Some((c, server.last));
                Some(Answer::Granted(server.last))
            }
            (Ask::Try, None) => Some(Answer::Refused),
            (Ask::Wait, None) => {
                server.queue.push_back(c);
                None
            }
            (Ask::Raise(fence), Some(_)) if fence > setting.clocks[s] + HOUR => {
                Some(Answer::Behind)
            }
            (Ask::Raise(fence), Some((_, own))) => {
                let fence = fence.max(own);
                server.holder = Some((c, fence));
                server.last = server.last.max(fence);
                Some(Answer::Raised)
            }
            (Ask::Raise(_), None) => Some(Answer::Gone),
        };
        self.clients[c].links[s].answered = answer;
    }

    /// The server hears that a client has left.
    fn left(&mut self, c: usize, s: usize) {
        let server = &mut self.servers[s];
        server.queue.retain(|waiter| *waiter != c);
        if server.holder.is_some_and(|(holder, _)| holder == c) {
            self.free(s);
        }
    }

    fn free(&mut self, s: usize) {
        self.servers[s].holder = None;
        self.hand_on(s);
    }

    fn hand_on(&mut self, s: usize) {
        let server = &mut self.servers[s];
        if server.holder.is_some() || server.in_grace {
            return;
        }
        if let Some(c) = server.queue.pop_front() {
            server.last += 1;
            server.holder = Some((c, server.last));
            self.clients[c].links[s].answered = Some(Answer::Granted(server.last));
        }
    }
}

impl Link {
    fn is_idle(&self) -> bool {
        self.asked.is_none() && self.answered.is_none()
    }

    fn forget(&mut self) {
        (self.is_valid, self.is_raised, self.is_extended) = (false, false, false);
    }
}
