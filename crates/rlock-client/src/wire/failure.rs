//! Errors of the `redis` crate as the engine knows them.

use std::error::Error as _;
use std::io;
use std::sync::Arc;

use redis::{ErrorKind, RedisError};
use rlock_engine::error::{Failure, ServerError};

/// Why there was no answer, or what the server has answered instead.
pub fn failure(error: impl Into<RedisError>) -> Failure {
    type Shared = Arc<dyn std::error::Error + Send + Sync>;
    let error = error.into();
    if let Some(code) = error.code() {
        return Failure::Server(ServerError {
            code: code.to_owned(),
            message: error.detail().unwrap_or_default().to_owned(),
        });
    }
    let cause = error.source().and_then(|it| it.downcast_ref::<Shared>());
    if let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<io::Error>()) {
        return cause.into();
    }
    let text = error.to_string();
    match error.kind() {
        ErrorKind::Io => Failure::Io(text),
        ErrorKind::InvalidClientConfig => Failure::Setup(text),
        ErrorKind::AuthenticationFailed => said("WRONGPASS", text),
        ErrorKind::Extension => said("ERR", text),
        _ => Failure::Protocol(text),
    }
}

fn said(code: &str, message: String) -> Failure {
    let code = code.to_owned();
    Failure::Server(ServerError { code, message })
}
