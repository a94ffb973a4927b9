//! A function behind a URL that does nothing.

use std::convert::Infallible;

use http_body_util::{BodyExt, Full};
use hyper::{Request, Response, body::Bytes, body::Incoming, header, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// Answers every request with `{}` until shutdown. The caller must spawn the returned future.
pub(super) async fn listen(
    shutdown: CancellationToken,
) -> anyhow::Result<(String, impl Future<Output = ()> + Send)> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let url = format!("http://{}/", listener.local_addr()?);
    let serving = async move {
        while let Some(accepted) = shutdown.run_until_cancelled(listener.accept()).await {
            let Ok((stream, _)) = accepted else { continue };
            tokio::spawn(async move {
                let http = hyper::server::conn::http1::Builder::new();
                // An error of a connection is an error of the caller's request, which the caller reports.
                let _ = http.serve_connection(TokioIo::new(stream), service_fn(answer)).await;
            });
        }
    };
    Ok((url, serving))
}

async fn answer(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let _ = request.into_body().collect().await;
    let mut response = Response::new(Full::from("{}"));
    response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("application/json"));
    Ok(response)
}
