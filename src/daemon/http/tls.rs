//! TLS by rustls, with client certificates if their signers are named.

use crate::cli::exit::Failure;
use crate::cli::secret;
use crate::daemon::config::Http;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use std::path::Path;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;

/// Of these settings; none without a certificate.
pub(super) fn acceptor(http: &Http) -> Result<Option<TlsAcceptor>, Failure> {
    let (cert, key) = match (&http.tls_cert, &http.tls_key) {
        (Some(cert), Some(key)) => (cert, key),
        (None, None) if http.tls_client_ca.is_none() => return Ok(None),
        _ => {
            let text = "http.tls_cert and http.tls_key are set together, and http.tls_client_ca only with both";
            return Err(Failure::Usage(text.to_owned()));
        }
    };
    let chain = certificates(cert)?;
    let secret = PrivateKeyDer::from_pem_slice(&text(key)?).map_err(|e| unreadable(key, &e))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|e| Failure::Failed(format!("TLS: {e}")))?;
    let builder = match &http.tls_client_ca {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let mut roots = RootCertStore::empty();
            for one in certificates(path)? {
                roots.add(one).map_err(|e| unreadable(path, &e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = verifier.build().map_err(|e| unreadable(path, &e))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_single_cert(chain, secret).map_err(|e| {
        let (cert, key) = (cert.display(), key.display());
        Failure::Usage(format!("TLS with certificate {cert} and key {key}: {e}"))
    })?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Failure> {
    let text = text(path)?;
    let all: Vec<_> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|e| unreadable(path, &e))?;
    if all.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: there is no certificate in it",
            path.display()
        )));
    }
    Ok(all)
}

fn text(path: &Path) -> Result<Vec<u8>, Failure> {
    secret::read(path, secret::MOST_PEM).map_err(|e| unreadable(path, &e))
}

fn unreadable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Usage(format!("{}: {why}", path.display()))
}
