//! Answers to blocked calls, and messages on channels.

use std::collections::VecDeque;

use rlock_core::{Announce, ChannelKind, Delivery, Effect, Fence, Granted, Hold, Listener, Name};

use crate::core::{
    driver::{Driver, text},
    messages::{MessageKind, OnChannel, Outcome, Sent},
};

impl Driver {
    /// Carries out a step, in order. A grant on a channel without a listener is
    /// undone, and the lock passes to the next request. Returns the unlock
    /// message that is still due.
    pub fn perform(
        &mut self,
        name: Name<'_>,
        hold: &mut Hold,
        effects: Vec<Effect>,
        mut announce: Announce,
    ) -> Announce {
        let mut effects = VecDeque::from(effects);
        while let Some(effect) = effects.pop_front() {
            match effect {
                Effect::HandOff(granted) if self.has_listener(&granted.ticket.delivery) => {
                    self.deliver_grant(&[name], granted);
                }
                Effect::HandOff(granted) => {
                    let step = self.locks.skip(self.now, name, hold, &granted);
                    announce = announce.max(step.announce);
                    effects.extend(step.effects);
                }
                Effect::Lost {
                    owner,
                    fence,
                    listener,
                } => self.publish(name, &listener, MessageKind::Lost, &owner, Some(fence)),
                Effect::WaitEnded { owner, delivery } => {
                    self.deliver_wait_over(name, &owner, &delivery);
                }
                Effect::Withdrawn(delivery) => self.answer(name, &delivery, Outcome::Superseded),
                Effect::Offer if self.has_listeners => {
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

    /// Whether a waiter would receive its grant.
    pub fn has_listener(&self, delivery: &Delivery) -> bool {
        match delivery {
            Delivery::Blocked(_) => true,
            Delivery::Notify(listener) => self
                .listened
                .contains(&on_channel(listener.kind, &listener.channel)),
            Delivery::Kept => panic!("a kept place is granted nothing"),
        }
    }

    pub fn deliver_grant(&mut self, names: &[Name<'_>], granted: Granted) {
        let (owner, fence) = (&granted.ticket.owner, granted.fence);
        let delivery = &granted.ticket.delivery;
        if let Some(listener) = delivery.listener() {
            self.publish(names[0], listener, MessageKind::Grant, owner, Some(fence));
        }
        self.answer(names[0], delivery, Outcome::Granted(fence));
        self.may_come_back(names, granted);
    }

    pub fn deliver_wait_over(&mut self, name: Name<'_>, owner: &[u8], delivery: &Delivery) {
        if let Some(listener) = delivery.listener() {
            self.publish(name, listener, MessageKind::WaitOver, owner, None);
        }
        self.answer(name, delivery, Outcome::WaitOver);
    }

    pub fn answer(&mut self, name: Name<'_>, delivery: &Delivery, outcome: Outcome<Fence>) {
        if let Some(call) = delivery.blocked_call() {
            self.sent.push(Sent::Answer {
                key: text(name.key),
                session: call.session,
                handle: call.handle,
                outcome,
            });
        }
    }

    pub fn publish(
        &mut self,
        name: Name<'_>,
        listener: &Listener,
        word: MessageKind,
        owner: &[u8],
        fence: Option<Fence>,
    ) {
        let channel = on_channel(listener.kind, &listener.channel);
        if self.listened.contains(&channel) {
            self.sent.push(Sent::Message {
                key: text(name.key),
                channel,
                word,
                owner: text(owner),
                fence,
            });
        }
    }
}

pub fn on_channel(kind: ChannelKind, name: &[u8]) -> OnChannel {
    (kind, text(name))
}
