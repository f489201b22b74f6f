//! What contenders do with the answers of servers, as their plans say.

use super::{Answer, Ask, Link, SERVERS, Setting, Without, World};
use crate::plan::{Event, Seat, Step, majority};

impl World {
    pub(super) fn deliver(&mut self, c: usize, s: usize, setting: &Setting) -> Result<(), String> {
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
                Answer::Granted(_) => self.ask(c, s, Ask::Raise(fence), setting),
                Answer::Raised => {}
                Answer::Behind => self.leave(c, s),
                Answer::Refused | Answer::Gone => self.clients[c].links[s].forget(),
            }
            return Ok(());
        }
        let event = match answer {
            Answer::Granted(fence) => Event::Granted(s, fence),
            Answer::Refused => Event::Refused(s),
            Answer::Raised => Event::Raised(s),
            Answer::Behind => Event::Behind(s),
            Answer::Gone => Event::Gone(s),
        };
        self.tell(c, event, setting)
    }

    /// Tells a plan what has changed meanwhile, and then what happens.
    pub(super) fn tell(&mut self, c: usize, event: Event, setting: &Setting) -> Result<(), String> {
        for s in 0..SERVERS {
            let client = &mut self.clients[c];
            let Some(plan) = &mut client.plan else {
                return Ok(());
            };
            let is_held = plan.seats()[s].granted().is_some();
            let link = &client.links[s];
            let seen = match plan.seats()[s] {
                _ if is_held && !link.is_valid => Event::Gone(s),
                Seat::Away if !link.is_cut => Event::Back(s),
                _ => continue,
            };
            let steps = plan.handle(seen);
            self.carry_out(c, steps, setting)?;
        }
        let Some(plan) = &mut self.clients[c].plan else {
            return Ok(());
        };
        let steps = plan.handle(event);
        self.carry_out(c, steps, setting)
    }

    pub(super) fn carry_out(
        &mut self,
        c: usize,
        steps: Vec<Step>,
        setting: &Setting,
    ) -> Result<(), String> {
        for step in steps {
            match step {
                Step::Ask(s) => self.ask(c, s, Ask::Try, setting),
                Step::Queue(s) => self.ask(c, s, Ask::Wait, setting),
                Step::Leave(s) => self.leave(c, s),
                Step::Raise(s, _) if setting.without == Without::Commit => {
                    self.clients[c].links[s].is_raised = true;
                    if let Some(plan) = &mut self.clients[c].plan {
                        let steps = plan.handle(Event::Raised(s));
                        self.carry_out(c, steps, setting)?;
                    }
                }
                Step::Raise(s, fence) => self.ask(c, s, Ask::Raise(fence), setting),
                Step::Hold(fence) => self.hold(c, fence)?,
                Step::Refuse | Step::Retreat => {
                    let client = &mut self.clients[c];
                    client.plan = None;
                    if step == Step::Refuse {
                        client.attempts = 0;
                    }
                }
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

    pub(super) fn ask(&mut self, c: usize, s: usize, ask: Ask, setting: &Setting) {
        let link = &mut self.clients[c].links[s];
        if !link.is_cut {
            link.asked = Some(ask);
            // Nothing that others do changes what comes of it.
            if let Ask::Raise(_) = ask {
                self.serve(c, s, setting);
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
