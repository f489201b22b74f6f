//! Certificates for a server and its clients, made for one test.

use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};

/// A certificate authority.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pub pem: String,
}

/// A certificate and its key, each as PEM.
pub struct Certified {
    pub certificate: String,
    pub key: String,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        // Strict verification, as in Python 3.13 and later, requires this and the issuer's identifier.
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        let issuer = Issuer::new(params, key);
        Self { issuer, pem }
    }

    /// A certificate for a name or an address.
    pub fn certify(&self, name: &str) -> Certified {
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        Certified {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
        }
    }
}

impl Certified {
    /// Writes `<name>.pem` and `<name>.key` into a directory.
    pub fn write(&self, directory: &Path, name: &str) -> (PathBuf, PathBuf) {
        let file = |ending: &str| directory.join(format!("{name}.{ending}"));
        std::fs::write(file("pem"), &self.certificate).unwrap();
        std::fs::write(file("key"), &self.key).unwrap();
        (file("pem"), file("key"))
    }
}
