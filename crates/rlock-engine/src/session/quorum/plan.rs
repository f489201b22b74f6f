//! What one contender for a lock of a quorum does next, without I/O and
//! without a clock. `tests/simulation/quorum` searches all that can happen.
//!
//! Members are named by their places in the order in which contenders wait for
//! them. The first one that can be reached is the gate. The rule that makes
//! circles impossible: a contender waits only at a member that comes after all
//! that it holds.
//!
//! 1. Ask all members at once, without waiting.
//! 2. If the gate and a majority granted: raise the fence of each to the largest.
//!    The lock is held when a majority has confirmed that. If no majority can, as
//!    the largest is too far ahead of their clocks: let go of the one that granted
//!    it, and raise to the largest of the others.
//! 3. Otherwise let go of all after the first that refused, and wait there. Then
//!    ask the others again. One that wants the lock only if it is free does not
//!    wait at the gate. It does at the others: who has the gate is the one to get
//!    the lock, because all others leave once the gate has refused them.
//! 4. If too few can be reached: let go of all.

/// How one member stands to this contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Seat {
    /// It cannot be reached, or must not be used.
    Away,
    /// Its clock is so far ahead that this attempt does without it.
    Ahead,
    /// It has not been asked yet, or its answer is out of date.
    Idle,
    /// It was asked for what it can grant at once.
    Asking,
    /// It holds the lock for somebody else.
    Refused,
    /// This contender stands in its queue.
    Queued,
    /// It has granted, under this fence.
    Held(u64),
    /// It was asked to raise the fence, from this one.
    Raising(u64),
    /// It refused that, as the fence is too far ahead of its clock.
    Behind(u64),
    /// It has the fence of the whole, or a larger one than that.
    Raised(u64),
}

impl Seat {
    /// The fence that was granted there, if the lock is held there.
    pub(crate) fn granted(self) -> Option<u64> {
        match self {
            Self::Held(fence)
            | Self::Raising(fence)
            | Self::Behind(fence)
            | Self::Raised(fence) => Some(fence),
            _ => None,
        }
    }
}

/// What happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
    Granted(usize, u64),
    Refused(usize),
    Raised(usize),
    /// It does not raise the fence so far ahead of its clock.
    Behind(usize),
    /// It failed, is too slow, cannot be reached, or has lost the hold.
    Gone(usize),
    /// It can be reached again.
    Back(usize),
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Step {
    /// Ask for what can be granted at once.
    Ask(usize),
    /// Wait in the queue.
    Queue(usize),
    /// Release what is held there, and withdraw what was asked for.
    Leave(usize),
    /// Raise the fence to this.
    Raise(usize, u64),
    /// The lock is held, under this fence. What is still asked for may be kept.
    Hold(u64),
    /// Somebody else holds it, or the wait is over. Nothing is held or asked.
    Refuse,
    /// Too few members can be reached. Nothing is held or asked.
    Retreat,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Stage {
    Asking,
    Waiting(usize),
    Raising(u64),
    Over,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Plan {
    seats: Vec<Seat>,
    /// Whether it waits at the gate.
    may_wait: bool,
    stage: Stage,
}

/// How many of `members` make a majority.
pub(crate) fn majority(members: usize) -> usize {
    members / 2 + 1
}

impl Plan {
    /// Begins with the members that can be reached now.
    pub(crate) fn begin(reached: &[bool], may_wait: bool) -> (Self, Vec<Step>) {
        let seat = |reached: &bool| if *reached { Seat::Idle } else { Seat::Away };
        let mut plan = Self {
            seats: reached.iter().map(seat).collect(),
            may_wait,
            stage: Stage::Asking,
        };
        let mut steps = Vec::new();
        // Few are not worth the trouble that asking them makes for others.
        if reached.iter().filter(|reached| **reached).count() < majority(reached.len()) {
            plan.end(&mut steps, Step::Retreat);
        } else {
            plan.ask_all(&mut steps);
        }
        (plan, steps)
    }

    pub(crate) fn seats(&self) -> &[Seat] {
        &self.seats
    }

    pub(crate) fn handle(&mut self, event: Event) -> Vec<Step> {
        let mut steps = Vec::new();
        match event {
            Event::Granted(place, fence) => self.set(place, Seat::Held(fence)),
            Event::Refused(place) => self.set(place, Seat::Refused),
            Event::Raised(place) => self.raised(place, Seat::Raised),
            Event::Behind(place) => self.raised(place, Seat::Behind),
            Event::Back(place) => {
                if self.seats.get(place) == Some(&Seat::Away) {
                    self.set(place, Seat::Idle);
                }
            }
            Event::Gone(place) => {
                self.leave(&mut steps, place);
                self.set(place, Seat::Away);
            }
        }
        match self.stage {
            Stage::Asking => self.go_on(&mut steps),
            Stage::Waiting(at) => match self.seats.get(at) {
                Some(Seat::Queued) => {}
                Some(Seat::Refused) => self.end(&mut steps, Step::Refuse),
                _ => self.ask_all(&mut steps),
            },
            Stage::Raising(fence) => self.raise_on(&mut steps, fence),
            Stage::Over => {}
        }
        steps
    }

    fn set(&mut self, place: usize, seat: Seat) {
        if let Some(known) = self.seats.get_mut(place) {
            *known = seat;
        }
    }

    fn raised(&mut self, place: usize, seat: fn(u64) -> Seat) {
        if let Some(Seat::Raising(granted)) = self.seats.get(place) {
            self.set(place, seat(*granted));
        }
    }

    fn count(&self, is_meant: impl Fn(Seat) -> bool) -> usize {
        self.seats.iter().filter(|seat| is_meant(**seat)).count()
    }

    /// Asks all that are not held.
    fn ask_all(&mut self, steps: &mut Vec<Step>) {
        self.stage = Stage::Asking;
        for (place, seat) in self.seats.iter_mut().enumerate() {
            if matches!(seat, Seat::Idle | Seat::Refused) {
                *seat = Seat::Asking;
                steps.push(Step::Ask(place));
            }
        }
        self.go_on(steps);
    }

    fn go_on(&mut self, steps: &mut Vec<Step>) {
        let quorum = majority(self.seats.len());
        let held = self.count(|seat| matches!(seat, Seat::Held(_)));
        let asking = self.count(|seat| seat == Seat::Asking);
        // One that the gate refused leaves it to those who wait there.
        if matches!(self.gate(), Some(Seat::Held(_))) && held >= quorum {
            return self.raise(steps);
        }
        let refused = self.seats.iter().position(|seat| *seat == Seat::Refused);
        let is_settled = |place| !self.seats.iter().take(place).any(|it| *it == Seat::Asking);
        match refused {
            Some(place) if is_settled(place) && self.is_hopeless(held, asking) => {
                self.step_back(steps, place);
            }
            None if asking == 0 => self.end(steps, Step::Retreat),
            _ => {}
        }
    }

    /// Whether what is asked for cannot make what is held enough any more: too
    /// few are left, or the gate refused.
    fn is_hopeless(&self, held: usize, asking: usize) -> bool {
        held + asking < majority(self.seats.len()) || self.gate() == Some(Seat::Refused)
    }

    /// The first of those that could be reached when they were asked.
    fn gate(&self) -> Option<Seat> {
        let mut seats = self.seats.iter().copied();
        seats.find(|seat| !matches!(seat, Seat::Away | Seat::Ahead | Seat::Idle))
    }

    /// Waits at `place`, the first that refused.
    fn step_back(&mut self, steps: &mut Vec<Step>, place: usize) {
        if !self.may_wait && self.gate() == Some(Seat::Refused) {
            return self.end(steps, Step::Refuse);
        }
        for later in place + 1..self.seats.len() {
            self.leave(steps, later);
        }
        self.set(place, Seat::Queued);
        self.stage = Stage::Waiting(place);
        steps.push(Step::Queue(place));
    }

    fn leave(&mut self, steps: &mut Vec<Step>, place: usize) {
        match self.seats.get(place) {
            None | Some(Seat::Away | Seat::Ahead | Seat::Idle) => {}
            Some(Seat::Refused) => self.set(place, Seat::Idle),
            Some(_) => {
                steps.push(Step::Leave(place));
                self.set(place, Seat::Idle);
            }
        }
    }

    fn raise(&mut self, steps: &mut Vec<Step>) {
        let granted = self.seats.iter().filter_map(|seat| seat.granted());
        let fence = granted.max().unwrap_or_default();
        self.stage = Stage::Raising(fence);
        self.raise_on(steps, fence);
    }

    fn raise_on(&mut self, steps: &mut Vec<Step>, fence: u64) {
        for (place, seat) in self.seats.iter_mut().enumerate() {
            if let Seat::Held(granted) = *seat {
                *seat = Seat::Raising(granted);
                steps.push(Step::Raise(place, fence));
            }
        }
        let quorum = majority(self.seats.len());
        let raised = self.count(|seat| matches!(seat, Seat::Raised(_)));
        let raising = self.count(|seat| matches!(seat, Seat::Raising(_)));
        let behind = self.count(|seat| matches!(seat, Seat::Behind(_)));
        if raised >= quorum {
            self.leave_all(steps, |seat| matches!(seat, Seat::Behind(_)));
            self.stage = Stage::Over;
            steps.push(Step::Hold(fence));
        } else if raised + raising + behind < quorum {
            self.end(steps, Step::Retreat);
        } else if raising == 0 {
            self.do_without(steps, fence);
        }
    }

    /// Goes on without the member that granted under that fence: a clock that
    /// is so far ahead of the others is the one that is wrong. It may be the
    /// gate, which others were refused by: they leave.
    fn do_without(&mut self, steps: &mut Vec<Step>, fence: u64) {
        for place in 0..self.seats.len() {
            match self.seats.get(place).and_then(|seat| seat.granted()) {
                Some(granted) if granted == fence => {
                    self.leave(steps, place);
                    self.set(place, Seat::Ahead);
                }
                Some(granted) => self.set(place, Seat::Held(granted)),
                None => {}
            }
        }
        self.may_wait = true;
        self.stage = Stage::Asking;
        self.go_on(steps);
    }

    /// Lets go of those; of the gate last.
    fn leave_all(&mut self, steps: &mut Vec<Step>, is_meant: impl Fn(Seat) -> bool) {
        for place in (0..self.seats.len()).rev() {
            if self.seats.get(place).is_some_and(|seat| is_meant(*seat)) {
                self.leave(steps, place);
            }
        }
    }

    fn end(&mut self, steps: &mut Vec<Step>, last: Step) {
        // The gate last: the next contender that gets it finds the others free.
        self.leave_all(steps, |_| true);
        self.stage = Stage::Over;
        steps.push(last);
    }
}
