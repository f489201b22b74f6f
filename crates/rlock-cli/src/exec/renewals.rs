//! Shows that the lock is not renewed, before it is lost: the server refuses to, or
//! does not answer.
//!
//! The client reports both as events of `tracing`.

use std::fmt;

use serde_json::json;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use crate::output::Output;
use crate::readable::printable;

/// The target of the client's events.
const TARGET: &str = "rlock_client::renewal";

pub(super) struct Renewals(Output);

/// The fields of the client's events.
#[derive(Default)]
struct Fields {
    key: String,
    /// Only a refusal has it.
    reason: String,
    /// Seconds until the loss; only a lock at risk has it.
    left: f64,
}

impl Renewals {
    /// Shows every renewal that fails from now on.
    pub(super) fn show(output: Output) {
        // It fails if there is one already, and this program has no other.
        let _ = tracing::subscriber::set_global_default(Self(output));
    }
}

impl Subscriber for Renewals {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == TARGET
    }

    fn event(&self, event: &Event<'_>) {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let Fields { key, reason, left } = fields;
        let name = event.metadata().name();
        let (json, why) = match name {
            "at-risk" => {
                let why = format!("no renewal for half of the lease, lost in {left:.1} s");
                (json!({"event": name, "key": key, "left": left}), why)
            }
            _ => {
                let why = printable(&reason);
                (json!({"event": name, "key": key, "reason": reason}), why)
            }
        };
        let words = format!(
            "rlock: {}: not renewed, {why}; trying again",
            printable(&key)
        );
        self.0.event(&json, Some(&words));
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        // Spans are not enabled, so there is none.
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "key" => value.clone_into(&mut self.key),
            "reason" => value.clone_into(&mut self.reason),
            _ => {}
        }
    }

    fn record_f64(&mut self, field: &Field, value: f64) {
        if field.name() == "left" {
            self.left = value;
        }
    }

    fn record_debug(&mut self, _: &Field, _: &dyn fmt::Debug) {}
}
