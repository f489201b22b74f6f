//! Telling others: answers to blocked calls, and messages on channels.

use std::collections::VecDeque;

use rlock_core::{Announce, Delivery, Effect, Fence, Hold, Name};

use crate::{
    driver::{Driver, text},
    told::{Outcome, Told, Word},
};

/// How many grants in a row that nobody listens to are passed on in one turn.
const SKIPS_MAX: usize = 64;

impl Driver {
    /// Does what a step asks for, in its order. A grant on a channel to which
    /// nobody listens is taken back and given to the next. Answers which
    /// unlock message is still due.
    pub(crate) fn perform(
        &mut self,
        name: Name<'_>,
        hold: &mut Hold,
        effects: Vec<Effect>,
        mut announce: Announce,
    ) -> Announce {
        let mut effects = VecDeque::from(effects);
        let mut skips = 0;
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::HandOff { ticket, fence, .. } => match &ticket.delivery {
                    Delivery::Notify { channel, .. } if !self.listened.contains(&text(channel)) => {
                        skips += 1;
                        if skips < SKIPS_MAX {
                            let step = self.locks.skip(self.now, name, hold, &ticket, fence);
                            announce = announce.max(step.announce);
                            effects.extend(step.effects);
                        } else {
                            self.locks.skip_and_leave(name, hold, &ticket, fence);
                        }
                    }
                    Delivery::Notify { channel, .. } => {
                        self.publish(name, channel, Word::Grant, &ticket.owner, Some(fence));
                    }
                    delivery @ Delivery::Blocked { .. } => {
                        self.answer(name, delivery, Outcome::Granted(fence));
                    }
                },
                Effect::Lost {
                    owner,
                    fence,
                    channel,
                } => self.publish(name, &channel, Word::Lost, &owner, Some(fence)),
                Effect::WaitEnded(ticket) => match &ticket.delivery {
                    Delivery::Notify { channel, .. } => {
                        self.publish(name, channel, Word::WaitOver, &ticket.owner, None);
                    }
                    delivery @ Delivery::Blocked { .. } => {
                        self.answer(name, delivery, Outcome::WaitOver);
                    }
                },
                Effect::Withdrawn(delivery) => self.answer(name, &delivery, Outcome::Superseded),
                Effect::Offer if self.overheard => {
                    self.unlocked(name);
                    announce = Announce::No;
                }
                Effect::Offer => {
                    let step = self.locks.nobody_took(self.now, name, hold);
                    effects.extend(step.effects);
                }
            }
        }
        announce
    }

    pub(crate) fn answer(&mut self, name: Name<'_>, delivery: &Delivery, outcome: Outcome<Fence>) {
        if let Delivery::Blocked { session, handle } = delivery {
            self.told.push(Told::Answer {
                key: text(name.key),
                session: *session,
                handle: *handle,
                outcome,
            });
        }
    }

    pub(crate) fn publish(
        &mut self,
        name: Name<'_>,
        channel: &[u8],
        word: Word,
        owner: &[u8],
        fence: Option<Fence>,
    ) {
        let channel = text(channel);
        if self.listened.contains(&channel) {
            self.told.push(Told::Message {
                key: text(name.key),
                channel,
                word,
                owner: text(owner),
                fence,
            });
        }
    }
}
