//! Whom to trust, and what to show, at a server with TLS.

use std::path::{Path, PathBuf};

use clap::Args;
use rlock_client::Certificates;

use crate::failure::{Code, Failure};

/// Files with certificates, all of them PEM.
#[derive(Debug, Args)]
pub(crate) struct Tls {
    /// Trusts the authorities in this PEM file, instead of the system's. For
    /// rediss://, rediss+sentinel:// and rediss+cluster:// only.
    #[arg(long, global = true, value_name = "FILE")]
    cacert: Option<PathBuf>,

    /// Shows the server the certificate in this PEM file. Needs --key.
    #[arg(long, global = true, value_name = "FILE")]
    cert: Option<PathBuf>,

    /// The key of --cert, a PEM file.
    // Its identifier must not be that of the key of a lock.
    #[arg(id = "key_of_cert", long = "key", global = true, value_name = "FILE")]
    key: Option<PathBuf>,
}

impl Tls {
    /// What the files hold; `None` if none is named.
    pub(crate) fn certificates(&self) -> Result<Option<Certificates>, Failure> {
        let mut certificates = Certificates::new();
        match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => certificates = certificates.client(read(cert)?, read(key)?),
            (None, None) if self.cacert.is_none() => return Ok(None),
            (None, None) => {}
            _ => return Err(usage("--cert and --key go together")),
        }
        if let Some(cacert) = &self.cacert {
            certificates = certificates.authorities(read(cacert)?);
        }
        Ok(Some(certificates))
    }
}

fn read(file: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(file).map_err(|error| usage(&format!("cannot read {}: {error}", file.display())))
}

fn usage(message: &str) -> Failure {
    Failure::new(Code::Usage, message)
}
