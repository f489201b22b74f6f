//! What contenders do with the answers of servers, as their plans say.

use super::{Answer, Ask, Link, SERVERS, Without, World};
use crate::plan::{Event, Seat, Step, majority};

impl World {
    pub(super) fn deliver(&mut self, c: usize, s: usize, without: Without) -> Result<(), String> {
        let link = &mut self.clients[c].links[s];
        let Some(answer) = link.answered.take() else {
            return Ok(());
        };
        if let Answer::Granted(_) = answer {
            link.is_valid = true;
        }
        link.is_raised |= answer == Answer::Raised && link.is_valid;
        if let Some(fence) = self.clients[c].holds {
            // One that joins late counts when it has the fence.
            match answer {
                Answer::Granted(_) => self.ask(c, s, Ask::Raise(fence)),
                Answer::Raised => {}
                Answer::Refused | Answer::Gone => self.clients[c].links[s].forget(),
            }
            return Ok(());
        }
        let event = match answer {
            Answer::Granted(fence) => Event::Granted(s, fence),
            Answer::Refused => Event::Refused(s),
            Answer::Raised => Event::Raised(s),
            Answer::Gone => Event::Gone(s),
        };
        self.tell(c, event, without)
    }

    /// Tells a plan what has changed meanwhile, and then what happens.
    pub(super) fn tell(&mut self, c: usize, event: Event, without: Without) -> Result<(), String> {
        for s in 0..SERVERS {
            let client = &mut self.clients[c];
            let Some(plan) = &mut client.plan else {
                return Ok(());
            };
            let is_held = matches!(
                plan.seats()[s],
                Seat::Held(_) | Seat::Raising(_) | Seat::Raised
            );
            let link = &client.links[s];
            let seen = match plan.seats()[s] {
                _ if is_held && !link.is_valid => Event::Gone(s),
                Seat::Away if !link.is_cut => Event::Back(s),
                _ => continue,
            };
            let steps = plan.handle(seen);
            self.carry_out(c, steps, without)?;
        }
        let Some(plan) = &mut self.clients[c].plan else {
            return Ok(());
        };
        let steps = plan.handle(event);
        self.carry_out(c, steps, without)
    }

    pub(super) fn carry_out(
        &mut self,
        c: usize,
        steps: Vec<Step>,
        without: Without,
    ) -> Result<(), String> {
        for step in steps {
            match step {
                Step::Ask(s) => self.ask(c, s, Ask::Try),
                Step::Queue(s) => self.ask(c, s, Ask::Wait),
                Step::Leave(s) => self.leave(c, s),
                Step::Raise(s, _) if without == Without::Commit => {
                    self.clients[c].links[s].is_raised = true;
                    if let Some(plan) = &mut self.clients[c].plan {
                        let steps = plan.handle(Event::Raised(s));
                        self.carry_out(c, steps, without)?;
                    }
                }
                Step::Raise(s, fence) => self.ask(c, s, Ask::Raise(fence)),
                Step::Hold(fence) => self.hold(c, fence)?,
                Step::Refuse | Step::Retreat => self.clients[c].plan = None,
            }
        }
        Ok(())
    }

    pub(super) fn hold(&mut self, c: usize, fence: u64) -> Result<(), String> {
        let counts = |link: &&Link| link.is_valid && link.is_raised;
        if self.clients[c].links.iter().filter(counts).count() < majority(SERVERS) {
            self.clients[c].plan = None;
            (0..SERVERS).for_each(|s| self.leave(c, s));
            return Ok(());
        }
        self.clients[c].holds = Some(fence);
        if fence <= self.top {
            return Err(format!("fence {fence} after {}", self.top));
        }
        self.top = fence;
        Ok(())
    }

    pub(super) fn ask(&mut self, c: usize, s: usize, ask: Ask) {
        let link = &mut self.clients[c].links[s];
        if !link.is_cut {
            link.asked = Some(ask);
            // Nothing that others do changes what comes of it.
            if let Ask::Raise(_) = ask {
                self.serve(c, s);
            }
        }
    }

    pub(super) fn leave(&mut self, c: usize, s: usize) {
        let link = &mut self.clients[c].links[s];
        link.forget();
        (link.asked, link.answered) = (None, None);
        if link.is_cut {
            link.owes_leave = true;
        } else {
            self.left(c, s);
        }
    }
}
