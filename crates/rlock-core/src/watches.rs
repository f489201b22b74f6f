//! The indices by which a watch is found.

use std::sync::Arc;

use crate::{
    Channel, Listener, Name, TicketId,
    queue::QueueId,
    table::Table,
    watch::{Watch, WatchId},
};

impl Table {
    pub(crate) fn watch_of(&self, queue: QueueId, owner: &[u8]) -> Option<WatchId> {
        if self.queues.get(&queue)?.watches == 0 {
            return None;
        }
        let hash = self.hash(owner);
        self.watches_by_owner
            .range((queue, hash, WatchId::MIN)..=(queue, hash, WatchId::MAX))
            .map(|(_, _, id)| *id)
            .find(|id| self.watches.get(id).is_some_and(|it| *it.owner == *owner))
    }

    /// The watch of an owner's hold, if there is one.
    pub(crate) fn watch_named(&self, name: Name<'_>, owner: &[u8]) -> Option<&Watch> {
        let id = self.watch_of(self.find(name)?, owner)?;
        self.watches.get(&id)
    }

    /// The watches of one lock.
    pub(crate) fn watches_of(&self, queue: QueueId) -> impl Iterator<Item = (WatchId, &Watch)> {
        let range = (queue, 0, WatchId::MIN)..=(queue, u64::MAX, WatchId::MAX);
        let found = self.watches_by_owner.range(range);
        found.filter_map(|(_, _, id)| Some((*id, self.watches.get(id)?)))
    }

    /// The first watch of a lock from `from` on, in an order of no meaning.
    pub(crate) fn next_watch(
        &self,
        queue: QueueId,
        from: (u64, WatchId),
    ) -> Option<((u64, WatchId), &Watch)> {
        let range = (queue, from.0, from.1)..=(queue, u64::MAX, WatchId::MAX);
        let mut found = self.watches_by_owner.range(range);
        found.find_map(|(_, hash, id)| Some(((*hash, *id), self.watches.get(id)?)))
    }

    /// Keeps a watch in the place of the one that its owner had.
    pub(crate) fn set_watch(&mut self, watch: Watch) {
        if let Some(earlier) = self.watch_of(watch.queue, &watch.owner) {
            self.remove_watch(earlier);
        }
        let Some(queue) = self.queues.get_mut(&watch.queue) else {
            return;
        };
        queue.watches += 1;
        let id = WatchId(self.next_id().get());
        let entry = (watch.queue, self.hash(&watch.owner), id);
        self.watches_by_owner.insert(entry);
        self.index_watch(id, &watch);
        self.watches.insert(id, watch);
    }

    /// Changes a watch; lock and owner stay. It is gone if nothing is left.
    pub(crate) fn change_watch(&mut self, id: WatchId, change: impl FnOnce(&mut Watch)) {
        let Some(mut watch) = self.watches.remove(&id) else {
            return;
        };
        self.unindex_watch(id, &watch);
        change(&mut watch);
        self.index_watch(id, &watch);
        let is_over = watch.notice.is_none() && watch.binding.is_none();
        self.watches.insert(id, watch);
        if is_over {
            self.remove_watch(id);
        }
    }

    /// Ends a watch. The queue stays, even if it is idle now.
    pub(crate) fn remove_watch(&mut self, id: WatchId) -> Option<Watch> {
        let watch = self.watches.remove(&id)?;
        self.unindex_watch(id, &watch);
        let entry = (watch.queue, self.hash(&watch.owner), id);
        self.watches_by_owner.remove(&entry);
        if let Some(queue) = self.queues.get_mut(&watch.queue) {
            queue.watches -= 1;
        }
        Some(watch)
    }

    /// Any watch that concerns a connection.
    pub(crate) fn watch_of_session(&self, session: u64) -> Option<WatchId> {
        let range = (session, WatchId::MIN)..=(session, WatchId::MAX);
        self.session_watches.range(range).next().map(|(_, id)| *id)
    }

    /// The listener of a connection's latest request, if it is the same, so
    /// that ten thousand requests on one channel keep its name once.
    pub(crate) fn listener(&self, session: u64, channel: Channel<'_>) -> Arc<Listener> {
        let tickets = (session, TicketId::MIN)..=(session, TicketId::MAX);
        let ticket = self.session_tickets.range(tickets).next_back();
        let known = ticket
            .and_then(|(_, id)| self.tickets.get(id)?.delivery.listener())
            .or_else(|| {
                let watch = self.watches.get(&self.watch_of_session(session)?)?;
                watch.notice.as_ref()
            });
        let known = known.filter(|it| it.session == session && it.channel() == channel);
        known.map_or_else(
            || {
                Arc::new(Listener {
                    session,
                    kind: channel.kind,
                    channel: channel.name.into(),
                })
            },
            Arc::clone,
        )
    }

    fn index_watch(&mut self, id: WatchId, watch: &Watch) {
        self.bound += u64::from(watch.binding.is_some());
        for session in watch.sessions() {
            self.session_watches.insert((session, id));
        }
    }

    fn unindex_watch(&mut self, id: WatchId, watch: &Watch) {
        self.bound -= u64::from(watch.binding.is_some());
        for session in watch.sessions() {
            self.session_watches.remove(&(session, id));
        }
    }
}
