//! TLS with the crypto library ring. Certificates are always checked.

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::store::StoreError;

/// Returns a connector that trusts these certificates (PEM). If none are given, it trusts the certificates that the
/// platform trusts.
pub(super) fn connector(trusted: Option<&[u8]>) -> Result<MakeRustlsConnect, StoreError> {
    let failed = |error| StoreError::failed("setting up TLS for PostgreSQL", error);
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(failed)?;
    let config = match trusted {
        None => match builder.clone().with_platform_verifier() {
            Ok(builder) => builder.with_no_client_auth(),
            // Even if this machine has no certificates, connections without TLS must work. In that case, connections
            // with TLS fail because no certificate is trusted.
            Err(_) => builder.with_root_certificates(RootCertStore::empty()).with_no_client_auth(),
        },
        Some(pem) => builder.with_root_certificates(roots(pem)?).with_no_client_auth(),
    };
    Ok(MakeRustlsConnect::new(config))
}

fn roots(pem: &[u8]) -> Result<RootCertStore, StoreError> {
    #[derive(Debug, thiserror::Error)]
    #[error("it contains no valid certificate in PEM form")]
    struct NoCertificate;

    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate = certificate.map_err(|_| refused(NoCertificate))?;
        roots.add(certificate).map_err(refused)?;
    }
    if roots.is_empty() { Err(refused(NoCertificate)) } else { Ok(roots) }
}

fn refused(error: impl std::error::Error + Send + Sync + 'static) -> StoreError {
    StoreError::misconfigured("the list of trusted certificates", error)
}
