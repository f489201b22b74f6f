//! Published messages: outcomes for `NOTIFY`, the unlock message, and values.

use std::cell::OnceCell;

use rlock_core::{Channel, ChannelKind, Fence, ValueMessage, codec};

use crate::{
    api::{Context, MainThread, OwnedText, Published, Text},
    settings::{self, UnlockMessage},
};

/// Publishes `<what> <fence> <owner> <key>` to the subscribers on this server.
pub(super) fn publish(
    ctx: &Context,
    channel: Channel<'_>,
    what: &str,
    fence: Option<Fence>,
    owner: &[u8],
    key: &[u8],
) -> Published {
    let message = codec::with_message(what, fence, (owner, key), OwnedText::new);
    let name = OwnedText::new(channel.name);
    match channel.kind {
        ChannelKind::Plain => ctx.publish(name.text(), message.text()),
        ChannelKind::Sharded => ctx.publish_to_shard(name.text(), message.text()),
    }
}

/// Publishes that a lock is granted, if that may reach a subscriber on this
/// server. In a cluster the message also reaches other nodes, whose subscribers
/// must not get a grant whose waiter is passed over.
pub(super) fn publish_grant(
    ctx: &Context,
    channel: Channel<'_>,
    fence: Fence,
    owner: &[u8],
    key: &[u8],
) -> Published {
    if is_in_cluster(ctx) && !ctx.may_have_subscribers(channel) {
        return Published::ToNobody;
    }
    publish(ctx, channel, "grant", Some(fence), owner, key)
}

fn is_in_cluster(ctx: &Context) -> bool {
    *IN_CLUSTER.get().get_or_init(|| ctx.flags().is_cluster())
}

/// The text of the unlock message, made once.
pub(crate) static ZERO: MainThread<OnceCell<OwnedText>> = MainThread::new(OnceCell::new());
/// Whether the server is a node of a cluster, which never changes.
static IN_CLUSTER: MainThread<OnceCell<bool>> = MainThread::new(OnceCell::new());

/// Publishes the unlock message of a lock: `0`, on Redisson's channel. It also
/// reaches subscribers on replicas. Returns whether there is a subscriber on
/// this server.
pub(crate) fn announce(ctx: &Context, key: Text) -> Published {
    let channel = settings::with_channel_prefix(|prefix| channel_of(prefix, key.bytes()));
    let message = ZERO.get().get_or_init(|| OwnedText::new(b"0"));
    broadcast(ctx, channel.text(), message.text())
}

/// The prefix of the channels on which values are published.
const VALUE_CHANNEL_PREFIX: &[u8] = b"rlock:value";

/// Publishes the value of a lock: `<fence> <value>`, or only `<fence>` if the
/// hold has ended. It also reaches subscribers on replicas.
pub(crate) fn publish_value(ctx: &Context, key: Text, published: &ValueMessage) {
    let mut message = published.fence.to_string().into_bytes();
    if let Some(value) = &published.value {
        message.push(b' ');
        message.extend_from_slice(value);
    }
    let channel = channel_of(VALUE_CHANNEL_PREFIX, key.bytes());
    broadcast(ctx, channel.text(), OwnedText::new(&message).text());
}

/// Publishes a message as configured, also to subscribers on replicas. Returns
/// whether there is a subscriber on this server.
fn broadcast(ctx: &Context, channel: Text, message: Text) -> Published {
    let in_cluster = is_in_cluster(ctx);
    let kind = match settings::unlock_message() {
        UnlockMessage::Auto if in_cluster => UnlockMessage::Spublish,
        UnlockMessage::Auto => UnlockMessage::Publish,
        kind => kind,
    };
    let mut received = Published::ToNobody;
    if kind == UnlockMessage::None {
        return received;
    }
    // In a cluster, the cluster's bus carries the message.
    let replicate = !in_cluster;
    if matches!(kind, UnlockMessage::Publish | UnlockMessage::Both) {
        received = received.or(ctx.publish(channel, message));
        if replicate {
            ctx.replicate_message(c"PUBLISH", channel, message);
        }
    }
    if matches!(kind, UnlockMessage::Spublish | UnlockMessage::Both) {
        received = received.or(ctx.publish_to_shard(channel, message));
        if replicate {
            ctx.replicate_message(c"SPUBLISH", channel, message);
        }
    }
    received
}

/// `<prefix>:{<key>}`, or `<prefix>:<key>` for a key with a brace, so that the
/// channel has the hash tag of its key.
fn channel_of(prefix: &[u8], key: &[u8]) -> OwnedText {
    let [before, after]: [&[u8]; 2] = match key.contains(&b'{') {
        true => [b":", b""],
        false => [b":{", b"}"],
    };
    codec::joined(&[prefix, before, key, after], OwnedText::new)
}
