//! Serves the files of the dashboard, which are part of this program.
//!
//! | file | cached | policy |
//! |---|---|---|
//! | `assets/*`, whose names contain a hash | for ever | the page's |
//! | `index.html`, and the pages that only scripts know | never | the page's |
//! | `frame.html`, which shows the HTML of a template in a sandbox | never | its own |
//! | the others | compared by `ETag` at each use | the page's |
//!
//! A file may have a `.br` beside it: the same, compressed. A program that was compiled without the files says how to get them.

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
};

use crate::common::error::ApiError;

/// The build of the dashboard that is part of this program: a hash, which changes if and only if its files do. `None` if no files are.
#[must_use]
pub fn build() -> Option<&'static str> {
    option_env!("DASHBOARD_BUILD").filter(|build| !build.is_empty() && is_embedded())
}

/// Whether the dashboard's files are part of this program.
#[must_use]
pub fn is_embedded() -> bool {
    embedded(INDEX).is_some()
}

/// Answers a request to a path that is not a route: a file of the dashboard, or 404.
pub(crate) async fn serve(request: Request) -> Response {
    let files = Files { find: embedded, is_part: cfg!(feature = "dashboard") };
    files.answer(request.method(), request.uri().path(), request.headers())
}

/// One file of the dashboard.
struct File {
    bytes: Cow<'static, [u8]>,
    hash: [u8; 32],
}

#[cfg(feature = "dashboard")]
fn embedded(path: &str) -> Option<File> {
    #[derive(rust_embed::RustEmbed)]
    #[folder = "../../dashboard/dist/"]
    #[allow_missing = true]
    struct Dist;

    let file = <Dist as rust_embed::RustEmbed>::get(path)?;
    Some(File { hash: file.metadata.sha256_hash(), bytes: file.data })
}

#[cfg(not(feature = "dashboard"))]
fn embedded(_: &str) -> Option<File> {
    None
}

/// Where the dashboard's files come from.
struct Files<F> {
    find: F,
    /// Whether this program is to serve the dashboard at all.
    is_part: bool,
}

const ROOT: &str = "/ui/";
const INDEX: &str = "index.html";
const FRAME: &str = "frame.html";

/// The policy of every page but the frame: nothing from another host, and no text becomes markup or code.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; \
                      connect-src 'self'; frame-src 'self'; manifest-src 'self'; form-action 'self'; base-uri 'none'; \
                      frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'";
/// The policy of the frame: an origin of its own, its one script, and the styles of the shown HTML.
const FRAME_POLICY: &str = "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; \
                            img-src data:; form-action 'none'; base-uri 'none'; frame-ancestors 'self'";
/// The page may use no device. It may write to the clipboard, on a click.
const PERMISSIONS: &str = "accelerometer=(), autoplay=(), camera=(), display-capture=(), encrypted-media=(), fullscreen=(), \
                           geolocation=(), gyroscope=(), hid=(), magnetometer=(), microphone=(), midi=(), payment=(), \
                           publickey-credentials-get=(), screen-wake-lock=(), serial=(), usb=(), xr-spatial-tracking=()";
/// Shown where the files are not part of the program. It loads nothing.
const MISSING: &str = "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Postrider</title>\n\
    <h1>This program was built without the dashboard</h1>\n\
    <p>Run <code>make dashboard</code> in the source of Postrider, then build and start the program again. It needs Node 20.19 or newer; \
    <code>scripts/setup dashboard</code> installs it.</p>\n\
    <p>The API is complete: <a href=\"/docs\">its description</a>.</p>\n</html>\n";

const CROSS_ORIGIN_OPENER_POLICY: HeaderName = HeaderName::from_static("cross-origin-opener-policy");
const CROSS_ORIGIN_RESOURCE_POLICY: HeaderName = HeaderName::from_static("cross-origin-resource-policy");
const PERMISSIONS_POLICY: HeaderName = HeaderName::from_static("permissions-policy");

impl<F: Fn(&str) -> Option<File>> Files<F> {
    fn answer(&self, method: &Method, path: &str, headers: &HeaderMap) -> Response {
        let is_below = path.starts_with(ROOT);
        if !self.is_part || !(is_below || path == "/" || path == "/ui") {
            return ApiError::NotFound("route").into_response();
        }
        if ![Method::GET, Method::HEAD].contains(method) {
            let allow = [(header::ALLOW, HeaderValue::from_static("GET, HEAD"))];
            return (allow, ApiError::MethodNotAllowed).into_response();
        }
        if !is_below {
            return (StatusCode::SEE_OTHER, [(header::LOCATION, HeaderValue::from_static(ROOT))])
                .into_response();
        }
        if (self.find)(INDEX).is_none() {
            return missing();
        }
        let name = path.strip_prefix(ROOT).unwrap_or_default();
        // The compressed files, and what the build notes for itself, have no address of their own.
        let found =
            Some(name).filter(|name| !name.is_empty() && !name.starts_with('.') && !name.ends_with(".br"));
        match found.and_then(|name| Some((name, (self.find)(name)?))) {
            Some((name, file)) => self.file(name, file, headers),
            None if name.is_empty() || accepts_pages(headers) => match (self.find)(INDEX) {
                Some(index) => self.file(INDEX, index, headers),
                None => missing(),
            },
            None => ApiError::NotFound("file").into_response(),
        }
    }

    fn file(&self, name: &str, file: File, headers: &HeaderMap) -> Response {
        let compressed = (self.find)(&format!("{name}.br"));
        let may_vary = compressed.is_some();
        let (file, encoding) = match compressed.filter(|_| accepts_brotli(headers)) {
            Some(compressed) => (compressed, Some("br")),
            None => (file, None),
        };
        let tag = tag(&file.hash);
        let is_known = headers
            .get_all(header::IF_NONE_MATCH)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .any(|known| known.trim() == tag);
        let mut response = if is_known {
            StatusCode::NOT_MODIFIED.into_response()
        } else {
            Body::from(file.bytes).into_response()
        };
        let out = response.headers_mut();
        guard(out, name);
        out.insert(header::CACHE_CONTROL, HeaderValue::from_static(cached(name)));
        if let Ok(tag) = HeaderValue::from_str(&tag) {
            out.insert(header::ETAG, tag);
        }
        if may_vary {
            out.insert(header::VARY, HeaderValue::from_static("accept-encoding"));
        }
        if !is_known {
            out.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type(name)));
            if let Some(encoding) = encoding {
                out.insert(header::CONTENT_ENCODING, HeaderValue::from_static(encoding));
            }
        }
        response
    }
}

/// The page of a program without the files.
fn missing() -> Response {
    let mut response = Body::from(MISSING).into_response();
    let headers = response.headers_mut();
    guard(headers, INDEX);
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// Sets the headers that keep other pages out.
fn guard(headers: &mut HeaderMap, name: &str) {
    let policy = if name == FRAME { FRAME_POLICY } else { POLICY };
    headers.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(policy));
    headers.insert(CROSS_ORIGIN_OPENER_POLICY, HeaderValue::from_static("same-origin"));
    // The sandbox gives the frame an origin of its own, from which it loads its script.
    let is_of_frame = name == FRAME || name.rsplit('/').next().is_some_and(|file| file.starts_with("frame"));
    let readers = if is_of_frame { "cross-origin" } else { "same-origin" };
    headers.insert(CROSS_ORIGIN_RESOURCE_POLICY, HeaderValue::from_static(readers));
    if is_of_frame {
        headers.insert(header::ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static("*"));
    }
    headers.insert(header::REFERRER_POLICY, HeaderValue::from_static("no-referrer"));
    headers.insert(PERMISSIONS_POLICY, HeaderValue::from_static(PERMISSIONS));
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

fn cached(name: &str) -> &'static str {
    match name {
        INDEX | FRAME => "no-store",
        _ if name.starts_with("assets/") => "public, max-age=31536000, immutable",
        _ => "no-cache",
    }
}

/// Weak, because a layer outside may compress the response.
fn tag(hash: &[u8; 32]) -> String {
    let digits: String = hash.iter().take(16).map(|byte| format!("{byte:02x}")).collect();
    format!("W/\"{digits}\"")
}

fn content_type(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "webmanifest" => "application/manifest+json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "txt" => "text/plain; charset=utf-8",
        _ => "application/octet-stream",
    }
}

/// Whether a browser wants a page, and not a script or an image.
fn accepts_pages(headers: &HeaderMap) -> bool {
    accepted(headers, header::ACCEPT).any(|kind| kind == "text/html")
}

fn accepts_brotli(headers: &HeaderMap) -> bool {
    accepted(headers, header::ACCEPT_ENCODING).any(|encoding| encoding == "br")
}

/// The values of a header that are accepted: those of weight 0 are not.
fn accepted(headers: &HeaderMap, name: HeaderName) -> impl Iterator<Item = &str> {
    headers
        .get_all(name)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|item| {
            let (value, parameters) = item.split_once(';').unwrap_or((item, ""));
            let weight = parameters.split(';').find_map(|parameter| parameter.trim().strip_prefix("q="));
            let is_refused = weight.is_some_and(|weight| weight.trim().parse::<f32>() == Ok(0.0));
            (!is_refused).then(|| value.trim())
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIST: &[(&str, &str)] = &[
        ("index.html", "<!doctype html><title>dashboard</title>"),
        ("index.html.br", "compressed page"),
        ("frame.html", "<!doctype html>"),
        ("assets/main-1a2b.js", "script"),
        ("assets/main-1a2b.js.br", "compressed script"),
        ("assets/frame-3c4d.js", "script of the frame"),
        ("icon.svg", "<svg/>"),
        (".vite/manifest.json", "{}"),
    ];

    fn dist(path: &str) -> Option<File> {
        let (at, (_, text)) = DIST.iter().enumerate().find(|(_, (name, _))| *name == path)?;
        Some(File { bytes: Cow::Borrowed(text.as_bytes()), hash: [at as u8; 32] })
    }

    fn get(path: &str, sent: &[(HeaderName, &'static str)]) -> Response {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.insert(name, HeaderValue::from_static(value));
        }
        Files { find: dist, is_part: true }.answer(&Method::GET, path, &headers)
    }

    fn told<'a>(response: &'a Response, name: &HeaderName) -> &'a str {
        response.headers().get(name).map_or("", |value| value.to_str().unwrap())
    }

    async fn text(response: Response) -> String {
        let bytes = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    #[test]
    fn every_file_has_the_headers_that_keep_other_pages_out() {
        for (name, _) in DIST.iter().filter(|(name, _)| !name.ends_with(".br") && !name.starts_with('.')) {
            let file = get(&format!("/ui/{name}"), &[]);
            assert_eq!(file.status(), 200, "{name}");
            let is_frame = name.contains("frame");
            let policy = if *name == FRAME { FRAME_POLICY } else { POLICY };
            assert_eq!(told(&file, &header::CONTENT_SECURITY_POLICY), policy, "{name}");
            assert_eq!(told(&file, &CROSS_ORIGIN_OPENER_POLICY), "same-origin", "{name}");
            let readers = if is_frame { "cross-origin" } else { "same-origin" };
            assert_eq!(told(&file, &CROSS_ORIGIN_RESOURCE_POLICY), readers, "{name}");
            assert_eq!(told(&file, &header::REFERRER_POLICY), "no-referrer", "{name}");
            assert_eq!(told(&file, &header::X_CONTENT_TYPE_OPTIONS), "nosniff", "{name}");
            assert!(told(&file, &PERMISSIONS_POLICY).contains("camera=()"), "{name}");
            assert!(!told(&file, &header::ETAG).is_empty(), "{name}");
        }
        assert!(POLICY.contains("trusted-types 'none'") && !POLICY.contains("unsafe"));
    }

    #[tokio::test]
    async fn hashed_files_are_kept_for_ever_and_pages_never() {
        let cached = |path| told(&get(path, &[]), &header::CACHE_CONTROL).to_owned();
        assert!(cached("/ui/assets/main-1a2b.js").contains("immutable"));
        for page in ["/ui/", "/ui/index.html", "/ui/frame.html"] {
            assert_eq!(cached(page), "no-store", "{page}");
        }
        assert_eq!(cached("/ui/icon.svg"), "no-cache");
        let known = get("/ui/icon.svg", &[]).headers()[header::ETAG].to_str().unwrap().to_owned();
        let again = get("/ui/icon.svg", &[(header::IF_NONE_MATCH, Box::leak(known.into_boxed_str()))]);
        assert_eq!((again.status(), text(again).await.as_str()), (StatusCode::NOT_MODIFIED, ""));
    }

    #[tokio::test]
    async fn a_client_gets_the_compressed_file_if_and_only_if_it_takes_brotli() {
        let path = "/ui/assets/main-1a2b.js";
        for (accepted, compressed) in [("gzip, br;q=0.9", true), ("br;q=0, gzip", false), ("gzip", false)] {
            let file = get(path, &[(header::ACCEPT_ENCODING, accepted)]);
            assert_eq!(told(&file, &header::VARY), "accept-encoding");
            assert_eq!(told(&file, &header::CONTENT_ENCODING) == "br", compressed, "{accepted}");
            assert_eq!(told(&file, &header::CONTENT_TYPE), "text/javascript; charset=utf-8");
            assert_eq!(text(file).await == "compressed script", compressed, "{accepted}");
        }
        assert_eq!(get("/ui/assets/main-1a2b.js.br", &[]).status(), 404);
        assert_eq!(told(&get("/ui/icon.svg", &[]), &header::VARY), "");
    }

    #[tokio::test]
    async fn an_unknown_path_is_the_page_for_a_browser_and_404_for_a_script() {
        for path in ["/ui/", "/ui/campaigns", "/ui/campaigns/0199?tab=runs", "/ui/enter"] {
            let page = get(path, &[(header::ACCEPT, "text/html,application/xhtml+xml;q=0.9")]);
            assert_eq!(
                (page.status(), told(&page, &header::CACHE_CONTROL)),
                (StatusCode::OK, "no-store"),
                "{path}"
            );
            assert!(text(page).await.contains("dashboard"), "{path}");
        }
        for path in
            ["/ui/assets/gone-0000.js", "/ui/../secret", "/ui/index.html.br", "/ui/.vite/manifest.json"]
        {
            assert_eq!(get(path, &[(header::ACCEPT, "*/*")]).status(), 404, "{path}");
        }
        for path in ["/", "/ui"] {
            let moved = get(path, &[]);
            assert_eq!((moved.status(), told(&moved, &header::LOCATION)), (StatusCode::SEE_OTHER, "/ui/"));
        }
        for path in ["/uix", "/favicon.ico", "/api/v2/nothing"] {
            assert_eq!(get(path, &[(header::ACCEPT, "text/html")]).status(), 404, "{path}");
        }
        let files = Files { find: dist, is_part: true };
        let posted = files.answer(&Method::POST, "/ui/", &HeaderMap::new());
        assert_eq!(
            (posted.status(), told(&posted, &header::ALLOW)),
            (StatusCode::METHOD_NOT_ALLOWED, "GET, HEAD")
        );
    }

    #[tokio::test]
    async fn a_program_without_the_files_names_the_command_that_makes_them() {
        let headers = HeaderMap::new();
        let files = Files { find: |_: &str| None, is_part: true };
        for path in ["/ui/", "/ui/campaigns"] {
            let page = files.answer(&Method::GET, path, &headers);
            assert_eq!((page.status(), told(&page, &header::CACHE_CONTROL)), (StatusCode::OK, "no-store"));
            assert_eq!(told(&page, &header::CONTENT_SECURITY_POLICY), POLICY);
            assert!(text(page).await.contains("make dashboard"), "{path}");
        }
        let none = Files { find: |_: &str| None, is_part: false };
        for path in ["/", "/ui", "/ui/"] {
            assert_eq!(none.answer(&Method::GET, path, &headers).status(), 404, "{path}");
        }
    }
}
