//! What is published: outcomes for `NOTIFY`, and the unlock message.

use crate::{
    api::{Context, OwnedText, Published, Text},
    settings::{UnlockMessage, settings},
};

/// Publishes `<what> <owner> <key>` for those who listen on this server.
pub(crate) fn publish(
    ctx: &Context,
    channel: &[u8],
    what: &str,
    owner: &[u8],
    key: Text,
) -> Published {
    let message = [what.as_bytes(), owner, key.bytes()].join(&b' ');
    ctx.publish(*OwnedText::new(channel), *OwnedText::new(&message))
}

/// Publishes the unlock message of a lock: `0`, on the channel that Redisson
/// listens on. It reaches subscribers on replicas as well.
pub(crate) fn announce(ctx: &Context, key: Text) {
    let kind = settings().unlock_message();
    if kind == UnlockMessage::None {
        return;
    }
    let channel = OwnedText::new(&unlock_channel(key.bytes()));
    let message = OwnedText::new(b"0");
    // In a cluster the message travels on the cluster's bus.
    let replicate = !ctx.flags().is_cluster();
    if matches!(kind, UnlockMessage::Publish | UnlockMessage::Both) {
        ctx.publish(*channel, *message);
        if replicate {
            ctx.replicate_message(c"PUBLISH", *channel, *message);
        }
    }
    if matches!(kind, UnlockMessage::Spublish | UnlockMessage::Both) {
        ctx.publish_to_shard(*channel, *message);
        if replicate {
            ctx.replicate_message(c"SPUBLISH", *channel, *message);
        }
    }
}

/// `<prefix>:{<key>}`, or `<prefix>:<key>` for a key with a brace in it, so
/// that the channel has the hash tag of its key.
fn unlock_channel(key: &[u8]) -> Vec<u8> {
    let mut channel = Vec::with_capacity(64 + key.len());
    settings().append_channel_prefix(&mut channel);
    channel.push(b':');
    if key.contains(&b'{') {
        channel.extend_from_slice(key);
    } else {
        channel.push(b'{');
        channel.extend_from_slice(key);
        channel.push(b'}');
    }
    channel
}
