//! The dashboard's files, and the address that signs in.

use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::{
    api::{Call, Reply, Stage},
    world::{Server, World, postrider, run},
};

fn get(server: &Server, path: &str, headers: &[(&str, &str)]) -> anyhow::Result<Reply> {
    let call = Call::new(&server.http_url, "GET", path);
    headers.iter().fold(call, |call, (name, value)| call.header(name, value)).send()
}

/// The `Accept` header of a browser that opens a page.
const PAGE: (&str, &str) = ("accept", "text/html,application/xhtml+xml;q=0.9");

/// The files that were built, if the program was compiled with them.
fn dist() -> anyhow::Result<Vec<PathBuf>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dashboard/dist");
    let (mut folders, mut files) = (vec![root.clone()], Vec::new());
    if !postrider_api::dashboard::is_embedded() {
        return Ok(files);
    }
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
            } else {
                files.push(path.strip_prefix(&root)?.to_owned());
            }
        }
    }
    Ok(files)
}

#[tokio::test]
async fn every_file_of_the_dashboard_is_served_with_its_headers() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "api", "")?;
    let moved = get(&server, "/", &[])?;
    assert_eq!((moved.status, moved.header("location")), (303, Some("/ui/")));
    let page = get(&server, "/ui/", &[PAGE])?;
    assert_eq!((page.status, page.header("cache-control")), (200, Some("no-store")));
    let policy = page.header("content-security-policy").context("no policy")?.to_owned();
    for part in ["default-src 'none'", "script-src 'self';", "frame-ancestors 'none'", "trusted-types 'none'"]
    {
        assert!(policy.contains(part), "{policy}");
    }
    for file in dist()? {
        let name = file.to_string_lossy().into_owned();
        let served = get(&server, &format!("/ui/{name}"), &[("accept", "*/*"), ("accept-encoding", "br")])?;
        if name.ends_with(".br") || name.starts_with('.') {
            assert_eq!(served.status, 404, "{name}");
            continue;
        }
        assert_eq!(served.status, 200, "{name}");
        let its_own = if name == "frame.html" {
            served.header("content-security-policy")
        } else {
            Some(policy.as_str())
        };
        assert_eq!(served.header("content-security-policy"), its_own, "{name}");
        for header in ["etag", "permissions-policy", "cache-control", "content-type"] {
            assert!(served.header(header).is_some(), "{name} has no {header}");
        }
        assert_eq!(served.header("x-content-type-options"), Some("nosniff"), "{name}");
        assert_eq!(served.header("referrer-policy"), Some("no-referrer"), "{name}");
        assert_ne!(served.header("content-type"), Some("application/octet-stream"), "{name}");
        if name.starts_with("assets/") {
            assert!(
                served.header("cache-control").is_some_and(|cached| cached.contains("immutable")),
                "{name}"
            );
        }
    }
    assert_eq!(get(&server, "/ui/campaigns", &[PAGE])?.status, 200);
    get(&server, "/nothing", &[PAGE])?.problem(404)?;
    get(&server, "/favicon.ico", &[])?.problem(404)?;
    Ok(())
}

#[tokio::test]
async fn a_program_without_the_dashboard_s_files_names_the_command_that_builds_them() -> anyhow::Result<()> {
    if postrider_api::dashboard::is_embedded() {
        // The same page is tested beside the code, with no files.
        return Ok(());
    }
    let world = World::new().await?;
    let server = Server::start(&world, "api", "")?;
    for path in ["/ui/", "/ui/campaigns", "/ui/enter"] {
        let page = get(&server, path, &[PAGE])?;
        assert_eq!(
            (page.status, page.header("content-type")),
            (200, Some("text/html; charset=utf-8")),
            "{path}"
        );
        assert!(page.text().contains("make dashboard"), "{path}: {}", page.text());
    }
    Ok(())
}

#[tokio::test]
async fn a_process_without_the_api_serves_no_dashboard() -> anyhow::Result<()> {
    let world = World::new().await?;
    let server = Server::start(&world, "scheduler", "")?;
    for path in ["/", "/ui", "/ui/"] {
        get(&server, path, &[PAGE])?.problem(404)?;
    }
    Ok(())
}

#[tokio::test]
async fn the_command_prints_an_address_that_signs_in_once() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let url = stage.world.admin_url();
    let dashboard = |more: &[&str]| {
        let address = ["--url", &format!("{}/", stage.server.http_url)];
        let mut command = postrider();
        command.env("USER", "ada").args(["--database-url", &url, "dashboard", "--tenant", "acme"]);
        run(command.args(address).args(more))
    };
    let printed = dashboard(&[])?;
    assert_eq!(printed.code, 0, "{}", printed.stderr);
    assert!(printed.stderr.contains("once, within one minute"), "{}", printed.stderr);
    let (page, code) = printed.stdout.trim().split_once("#code=").context("no code")?;
    assert_eq!(page, format!("{}/ui/enter", stage.server.http_url));
    let enter = |code: &str| stage.call("POST", "/session").json(&serde_json::json!({ "code": code })).send();
    let me = enter(code)?.expect(200)?;
    assert_eq!((&me["role"], &me["key_name"]), (&"admin".into(), &"dashboard admin".into()));
    assert_eq!(me["session"]["name"], "ada");
    enter(code)?.problem(401)?;

    // One key serves the sessions of a role.
    let keys = stage.count("select count(*) from tenancy.api_keys").await?;
    let second: serde_json::Value = serde_json::from_str(&dashboard(&["--json"])?.stdout)?;
    assert_eq!((&second["key_id"], &second["role"]), (&me["key_id"], &"admin".into()));
    assert!(
        second["expires_at"].is_string()
            && second["url"].as_str().is_some_and(|url| url.contains("#code=prc_"))
    );
    dashboard(&["--role", "viewer"])?;
    assert_eq!(stage.count("select count(*) from tenancy.api_keys").await?, keys + 1);
    for (wrong, advice) in
        [(&["--role", "owner"][..], "viewer, operator or admin"), (&["--url", "desk"], "--url")]
    {
        let refused = dashboard(wrong)?;
        assert!(refused.code != 0 && refused.stderr.contains(advice), "{wrong:?}: {}", refused.stderr);
    }
    Ok(())
}
