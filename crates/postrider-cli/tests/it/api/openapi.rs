//! The document describes what is served, all of it.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{Call, Stage};

/// Every operation of the document: method, path, and what is said about it.
fn operations(document: &Value) -> Vec<(String, String, &Value)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().into_iter().flatten() {
        for (method, operation) in item.as_object().into_iter().flatten() {
            found.push((method.to_uppercase(), path.clone(), operation));
        }
    }
    found
}

#[tokio::test]
async fn every_operation_of_the_document_is_served_and_says_how_it_can_be_refused() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let document = Call::new(&stage.server.http_url, "GET", "/openapi.json").send()?.expect(200)?;
    assert!(document["openapi"].as_str().unwrap_or_default().starts_with("3.1"));
    assert_eq!(document["servers"][0]["url"], "/");
    assert_eq!(document["components"]["securitySchemes"]["key"]["scheme"], "bearer");
    let all = operations(&document);
    assert!(all.len() >= 15, "{}", all.len());
    let ids: BTreeSet<&str> =
        all.iter().filter_map(|(_, _, operation)| operation["operationId"].as_str()).collect();
    assert_eq!(ids.len(), all.len(), "every operation has an id of its own");

    for (method, path, operation) in &all {
        let place = format!("{method} {path}");
        let responses = operation["responses"].as_object().cloned().unwrap_or_default();
        let is_open =
            operation["security"].as_array().is_some_and(|needed| needed.contains(&serde_json::json!({})));
        for status in if is_open { &[][..] } else { &["400", "401", "403", "429", "503"] } {
            let problem =
                &responses.get(*status).unwrap_or(&Value::Null)["content"]["application/problem+json"];
            assert_eq!(problem["schema"]["$ref"], "#/components/schemas/Problem", "{place}: {status}");
        }
        assert!(responses.keys().any(|status| status.starts_with('2')), "{place}");
        assert!(
            operation["summary"].is_string() || operation["description"].is_string(),
            "{place} says what it does"
        );

        // It is there: what answers is not the 404 of an unknown route, nor a 405.
        let concrete = path.split('/').map(|part| if part.starts_with('{') { "7" } else { part });
        let concrete = concrete.collect::<Vec<_>>().join("/");
        let reply = Call::new(&stage.server.http_url, method, &concrete).send()?;
        assert!(reply.status != 405 && !reply.text().contains("no such route"), "{place}: {}", reply.text());
        assert!(reply.status < 500, "{place}: {}", reply.text());
        let documented = responses.contains_key(&reply.status.to_string());
        assert!(documented, "{place} answered {}, which is not documented", reply.status);
        if !is_open {
            assert_eq!(reply.status, 401, "{place} lets nobody in without a key");
        }
        for other in ["GET", "POST", "PUT", "PATCH", "DELETE"] {
            if !all.iter().any(|(known, at, _)| known == other && at == path) {
                let reply = Call::new(&stage.server.http_url, other, &concrete).send()?;
                assert_eq!(reply.status, 405, "{other} {path} is served and not documented");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn every_reference_in_the_document_leads_somewhere() -> anyhow::Result<()> {
    let document = serde_json::to_value(postrider_api::document())?;
    let mut broken = Vec::new();
    visit(&document, &mut |value| {
        if let Some(reference) = value["$ref"].as_str() {
            let pointer = reference.trim_start_matches('#');
            if document.pointer(pointer).is_none() {
                broken.push(reference.to_owned());
            }
        }
    });
    assert_eq!(broken, Vec::<String>::new());
    Ok(())
}

fn visit(value: &Value, look: &mut impl FnMut(&Value)) {
    look(value);
    match value {
        Value::Array(items) => items.iter().for_each(|item| visit(item, look)),
        Value::Object(fields) => fields.values().for_each(|field| visit(field, look)),
        _ => {}
    }
}

/// Routes are made by `routes!` alone, which documents them; nothing else may add one.
#[test]
fn no_route_is_made_beside_the_documented_list() -> anyhow::Result<()> {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../postrider-api/src");
    let mut folders = vec![folder];
    let mut beside = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path)?;
            for way in [".route(", ".route_service(", ".nest_service(", ".fallback_service("] {
                if text.contains(way) {
                    beside.push(format!("{} in {}", way, path.display()));
                }
            }
        }
    }
    assert_eq!(beside, Vec::<String>::new());
    Ok(())
}

#[tokio::test]
async fn the_docs_page_needs_nothing_from_elsewhere() -> anyhow::Result<()> {
    let stage = Stage::new().await?;
    let get = |path: &str| Call::new(&stage.server.http_url, "GET", path).send();
    let first = get("/docs")?;
    let place = if (300..400).contains(&first.status) {
        first.header("location").unwrap_or("/docs/").to_owned()
    } else {
        "/docs".to_owned()
    };
    let page = get(&place)?;
    assert_eq!(page.status, 200, "{}", page.text());
    assert!(
        page.header("content-security-policy").is_some_and(|policy| policy.contains("default-src 'self'"))
    );
    let html = page.text();
    assert!(!html.contains("//unpkg") && !html.contains("cdn"), "{html}");
    let mut loaded = 0;
    for part in html.split(['"', '\'']).filter(|part| part.ends_with(".js") || part.ends_with(".css")) {
        assert!(!part.starts_with("http") && !part.starts_with("//"), "{part}");
        let file = get(&format!("/docs/{}", part.trim_start_matches("./")))?;
        assert_eq!(file.status, 200, "{part}");
        loaded += 1;
    }
    assert!(loaded >= 2, "{html}");
    let initializer = get("/docs/swagger-initializer.js")?;
    assert!(initializer.text().contains("/openapi.json"), "{}", initializer.text());
    Ok(())
}
