use super::*;

fn load(toml: &str) -> anyhow::Result<Config> {
    let file = tempfile::NamedTempFile::new()?;
    std::fs::write(file.path(), toml)?;
    super::load(Some(file.path()), &Overrides::default())
}

fn refusal(toml: &str) -> String {
    load(toml).unwrap_err().to_string()
}

#[test]
fn an_empty_file_gives_the_defaults() {
    let config = load("").unwrap();
    assert_eq!(config.http.listen.to_string(), "127.0.0.1:8080");
    assert!(!config.outbound.allow_private && config.relay.sinks.is_empty());
}

#[test]
fn unknown_keys_are_refused_at_every_depth() {
    for (toml, key) in [
        ("colour = 1", "colour"),
        ("[relay]\nbatch = 1", "batch"),
        ("[relay.sinks.a]\nkind = 'http'\nurl = 'https://e.example'\nsecrets = []\nsecret = 'x'", "secret"),
    ] {
        let message = refusal(toml);
        assert!(message.contains(key) && message.contains("there is no such key"), "{message}");
    }
}

#[test]
fn the_errors_for_an_unknown_sink_kind_and_a_bad_pattern_name_valid_values() {
    let message = refusal("[relay.sinks.a]\nkind = 'kafka'\nurl = 'https://e.example'");
    assert!(message.contains("kafka") && message.contains("`http` or `nats`"), "{message}");
    let message = refusal(
        "[relay.sinks.a]\nkind = 'http'\nurl = 'https://e.example'\nsecrets = []\nevents = ['order..x']",
    );
    assert!(message.contains("order..x") && message.contains("patterns look like"), "{message}");
}

#[test]
fn numbers_out_of_range_are_refused() {
    assert!(refusal("[relay]\nbatch_size = 0").contains("between 1 and 10000"));
    assert!(refusal("[relay]\ndelivery_timeout_seconds = 400").contains("a claim lasts five minutes"));
}

#[test]
fn a_trusted_proxy_that_is_no_address_and_no_network_is_refused() {
    let message = refusal("[api]\ntrusted_proxies = ['10.0.0.0/8', 'proxy.example']");
    assert!(message.contains("api.trusted_proxies: `proxy.example`"), "{message}");
    let message = refusal("[api]\ntrusted_proxies = ['10.1.2.3/8']");
    assert!(message.contains("10.0.0.0/8"), "{message}");
    assert!(load("[api]\ntrusted_proxies = ['10.0.0.0/8', '192.0.2.7', 'fd00::/8', '::1']").is_ok());
}

#[test]
fn the_printed_configuration_holds_no_secret() {
    let config = load(
        "master_key = 'Y2FuYXJ5LW1hc3Rlci1rZXktMDEyMzQ1Njc4OWFiY2Q='\n[database]\nurl = 'postgres://u:canary-password@h/d'\n\
         listen_url = 'postgres://u@h/d?password=canary-parameter'\n\
         [relay.sinks.a]\nkind = 'http'\nurl = 'https://e.example/'\nsecrets = ['whsec_canary']",
    )
    .unwrap();
    let printed = config.print().unwrap();
    assert!(!printed.contains("canary"), "{printed}");
    assert!(
        printed.contains("postgres://u:(hidden)@h/d") && printed.contains("secrets = [\"(hidden)\"]"),
        "{printed}"
    );
    assert!(!format!("{config:?}").contains("canary"), "the debug form holds a secret");
}

#[test]
fn a_mistake_in_the_configuration_never_repeats_a_value() {
    for toml in [
        "master_key = canary",
        "master_key = ['canary']",
        "[database]\nurl = 'postgres://u:canary@h/d",
        "database = 'postgres://u:canary@h/d'",
        "[relay.sinks.a]\nkind = 'http'\nurl = 'canary@h'\nsecrets = []",
        "[relay.sinks.a]\nkind = 'http'\nurl = 'https://e.example'\nsecrets = 'whsec_canary'",
        "[relay.sinks.a]\nkind = 'nats'\nservers = ['canary']\nsubject = 'x'",
        "[relay.sinks]\na = 'whsec_canary'",
    ] {
        let message = refusal(toml);
        assert!(!message.contains("canary") && !message.contains('\n'), "{message}");
    }
    assert!(!refusal("master_key = 73310815").contains("73310815"));
    assert!(refusal("[http]\nlisten = '127.0.0.1:0'\nmaster_key = canary").contains("line 3, column"));
}

#[test]
fn the_path_and_the_credentials_of_a_sink_url_are_not_shown() {
    let url = "https://u:canary@e.example/hooks/canary?token=canary";
    let config = load(&format!("[relay.sinks.a]\nkind = 'http'\nurl = '{url}'\nsecrets = []")).unwrap();
    for shown in [config.print().unwrap(), format!("{config:?}")] {
        assert!(!shown.contains("canary") && shown.contains("e.example/(hidden)"), "{shown}");
    }
}

#[test]
fn a_password_that_was_not_escaped_is_not_shown() {
    for url in ["postgres://u:12/34canary@host/db", "postgres://u:p@canary@host/db"] {
        let printed = load(&format!("[database]\nurl = '{url}'")).unwrap().print().unwrap();
        assert!(!printed.contains("canary"), "{printed}");
    }
}

#[test]
fn an_origin_is_written_as_browsers_send_it() {
    let config =
        load("[api]\ncors_origins = ['https://desk.example', 'http://localhost:5173']\nrate_per_second = 0")
            .unwrap();
    assert_eq!(config.api.cors_origins().len(), 2);
    for wrong in [
        "*",
        "null",
        "desk.example",
        "https://desk.example/",
        "https://desk.example:443",
        "https://Desk.example",
    ] {
        let message = refusal(&format!("[api]\ncors_origins = ['{wrong}']"));
        assert!(
            message.contains("is not an origin") && message.contains("https://desk.example"),
            "{message}"
        );
    }
    assert!(refusal("[api]\nburst = 0").contains("between 1 and 1000000"));
}
