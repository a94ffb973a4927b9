//! The effect of environment variables on the client.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::Arc,
    thread,
};

use postrider_providers::guard::{CallError, GuardedClient, Reuse};
use reqwest::{Method, Request, StatusCode};
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};

use crate::{
    DEVELOPMENT, PATIENT,
    certificate::{LocalDns, certify},
    child, client, client_that_asks,
    server::{Reaction, Server},
};

fn ok() -> Vec<u8> {
    b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n".to_vec()
}

#[tokio::test]
async fn a_proxy_in_the_environment_is_ignored() {
    let receiver = Server::start(Reaction::keep_open_after(ok()));
    if child::is_child() {
        client(PATIENT).send(Request::new(Method::POST, receiver.url()), Reuse::Never).await.unwrap();
        assert_eq!(receiver.traffic().await.requests.len(), 1);
        return;
    }
    let proxy = Server::start(Reaction::keep_open_after(ok()));
    let url = format!("http://127.0.0.1:{}", proxy.port());
    let variables = ["HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"];
    let variables: Vec<_> =
        variables.iter().map(|name| (*name, url.as_str())).chain([("NO_PROXY", "")]).collect();
    child::run_again("environment::a_proxy_in_the_environment_is_ignored", &variables);
    assert_eq!(proxy.traffic().await.connections, 0);
}

// The conditions of production: no TLS provider is installed, and the root certificates are the system's.
#[tokio::test]
async fn https_works_without_preparation_and_only_for_the_name_in_the_certificate() {
    if child::is_child() {
        let port = std::env::var("TLS_PORT").unwrap();
        assert!(CryptoProvider::get_default().is_none());
        let client: GuardedClient = client_that_asks(Arc::new(LocalDns), DEVELOPMENT, PATIENT);
        let get = |name: &str| Request::new(Method::GET, format!("https://{name}:{port}/").parse().unwrap());

        let answer = client.send(get("hooks.example"), Reuse::Never).await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"hooks.example http/1.1"[..]));

        let answer = client.send(get("other.example"), Reuse::Never).await;
        let Err(error @ CallError::Unreachable { .. }) = answer else { panic!("{answer:?}") };
        assert!(error.reason().contains("certificate"), "{}", error.reason());
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (certificate, key) = certify(folder.path(), "hooks.example");
    let port = serve_tls(&certificate, &key).to_string();
    let test = "environment::https_works_without_preparation_and_only_for_the_name_in_the_certificate";
    child::run_again(test, &[("SSL_CERT_FILE", &certificate), ("SSL_CERT_DIR", ""), ("TLS_PORT", &port)]);
}

/// Answers each request with the name that the client asked for and the protocol that it offered.
fn serve_tls(certificate: &str, key: &str) -> u16 {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<_, _>>().unwrap();
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, PrivateKeyDer::from_pem_file(key).unwrap())
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let connection = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut tls = StreamOwned::new(connection, stream.unwrap());
            // A client that refuses the certificate closes here.
            if tls.read(&mut [0; 4096]).is_err() {
                continue;
            }
            let protocol = String::from_utf8_lossy(tls.conn.alpn_protocol().unwrap_or_default()).into_owned();
            let body = format!("{} {protocol}", tls.conn.server_name().unwrap_or_default());
            let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
            tls.write_all(answer.as_bytes()).unwrap();
        }
    });
    port
}
