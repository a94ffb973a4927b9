use minijinja::value::Serde;
use postrider_model::ids::LeadId;
use serde_json::{json, value::RawValue};

use super::*;

fn lead(attributes: Box<RawValue>) -> Arc<Lead> {
    Arc::new(Lead {
        id: LeadId::new(),
        external_id: None,
        email: Some("ann@example.com".to_owned()),
        phone: None,
        timezone: None,
        attributes,
        suppression_reason: None,
    })
}

fn email(content: serde_json::Value, attributes: impl serde::Serialize) -> Result<Message, RenderError> {
    let template = Template::compile(Channel::Email, &content);
    let attributes = serde_json::value::to_raw_value(&attributes).unwrap();
    drop(content);
    template?.render(Some(&lead(attributes)), Some("ann@example.com"), None)
}

#[test]
fn a_message_is_filled_in_from_the_lead() {
    let content = json!({
        "subject": "Hello {{ name }}",
        "text": "{% for item in cart %}{{ item }};{% endfor %} {{ lead.email }}",
        "html": "<p>{{ name }}</p>",
    });
    let message =
        email(content, json!({ "name": "Ann & Bo", "cart": ["a", "b"], "lead": "mallory" })).unwrap();
    assert_eq!(
        message,
        Message::Email {
            to: "ann@example.com".to_owned(),
            subject: "Hello Ann & Bo".to_owned(),
            text: Some("a;b; ann@example.com".to_owned()),
            html: Some("<p>Ann &amp; Bo</p>".to_owned()),
            unsubscribe_url: None,
        }
    );
}

const LINK: &str = "https://example.com/api/v2/tenants/t/unsubscribe/abc-_";

fn linked(content: &serde_json::Value, link: Option<&str>) -> Result<Message, RenderError> {
    // No attribute can replace the link.
    let attributes = json!({ "unsubscribe_url": "https://evil.example" });
    let attributes = serde_json::value::to_raw_value(&attributes).unwrap();
    let lead = lead(attributes);
    Template::compile(Channel::Email, content)?.render(Some(&lead), Some("ann@example.com"), link)
}

#[test]
fn a_mail_has_a_link_to_unsubscribe_unless_it_is_transactional() {
    let content = json!({ "subject": "Hello", "text": "Stop: {{ unsubscribe_url }}" });
    let Ok(Message::Email { text: Some(text), unsubscribe_url, .. }) = linked(&content, Some(LINK)) else {
        panic!()
    };
    assert_eq!((text, unsubscribe_url.as_deref()), (format!("Stop: {LINK}"), Some(LINK)));
    let error = linked(&content, None).unwrap_err();
    assert!(matches!(&error, RenderError::Lead { part: "text", .. }), "{error}");

    let receipt = json!({ "subject": "Receipt", "text": "Thanks", "transactional": true });
    let Ok(Message::Email { unsubscribe_url, .. }) = linked(&receipt, Some(LINK)) else { panic!() };
    assert_eq!(unsubscribe_url, None);
    let asking = json!({ "subject": "Receipt", "text": "{{ unsubscribe_url }}", "transactional": true });
    assert!(linked(&asking, Some(LINK)).is_err());
    assert!(Template::compile(Channel::Email, &receipt).is_ok_and(|it| !it.offers_unsubscribing()));
    let wrong = json!({ "subject": "Receipt", "text": "Thanks", "transactional": "yes" });
    assert!(Template::compile(Channel::Email, &wrong).is_err());
}

#[test]
fn a_missing_attribute_fails_the_item() {
    let error = email(json!({ "subject": "Hello {{ name }}", "text": "t" }), json!({})).unwrap_err();
    assert!(matches!(&error, RenderError::Undefined { part: "subject", name } if name == "name"), "{error}");
    let nested =
        email(json!({ "subject": "s", "text": "{{ order.id }}" }), json!({ "order": {} })).unwrap_err();
    assert!(
        matches!(&nested, RenderError::Undefined { part: "text", name } if name == "order.id"),
        "{nested}"
    );
}

#[test]
fn the_error_of_an_undefined_variable_names_it() {
    let named = |text: &str, attributes: serde_json::Value| {
        email(json!({ "subject": "s", "text": text }), attributes).unwrap_err().to_string()
    };
    let of = |name: &str| format!("the text cannot be filled in: the variable `{name}` is undefined");
    let cases = [
        ("{{ a }} {{ b }}", json!({ "b": 1 }), "a"),
        ("{{ a }}\n{{ b|upper }}", json!({ "a": 1 }), "b"),
        // A branch that does not apply, a guarded variable, and one in an argument.
        ("{% if vip %}{{ discount }}{% endif %}{{ name }}", json!({ "vip": false }), "name"),
        ("{{ nick|default('') }}{{ name if name is defined }}{{ city }}", json!({}), "city"),
        ("{{ nick|default(name) }}", json!({}), "name"),
        ("{{ order.address.city }}", json!({ "order": { "address": {} } }), "order.address.city"),
        ("{{ lead.name }}", json!({}), "lead.name"),
        ("{% for item in cart %}{{ item }}{% endfor %}", json!({}), "cart"),
    ];
    for (text, attributes, name) in cases {
        assert_eq!(named(text, attributes), of(name), "{text}");
    }
    // An entry of a loop has no name outside of it.
    let entry = named("{% for item in cart %}{{ item.sku }}{% endfor %}", json!({ "cart": [{}] }));
    assert!(entry.contains("undefined value"), "{entry}");
}

#[test]
fn all_variables_that_a_lead_lacks_are_found() {
    let content = json!({
        "subject": "{{ a }}", "text": "{{ b.c }}{% if d %}{{ e }}{% endif %}", "html": "{{ a }}{{ f|default('') }}{{ g }}",
    });
    let template = Template::compile(Channel::Email, &content).unwrap();
    let missing = |attributes: serde_json::Value| {
        let lead = lead(serde_json::value::to_raw_value(&attributes).unwrap());
        template.missing(&lead, Some("ann@example.com"), None).unwrap()
    };
    assert_eq!(missing(json!({ "a": 1, "b": { "c": 1 }, "d": false, "g": 1 })), [""; 0]);
    assert_eq!(missing(json!({ "d": false })), ["a", "b.c", "g"]);
    assert_eq!(missing(json!({ "a": 1, "b": { "c": 1 }, "d": true, "g": 1 })), ["e"]);
}

#[test]
fn a_lead_cannot_write_headers() {
    for name in ["Ann\r\nBcc: all@example.com", "Ann\nX: y", "Ann\u{0}", "Ann\u{85}X"] {
        let error = email(json!({ "subject": "Hello {{ name }}.", "text": "t" }), json!({ "name": name }))
            .unwrap_err();
        assert!(
            error.to_string().contains("control character") || error.to_string().contains("NUL"),
            "{error}"
        );
    }
}

#[test]
fn invalid_content_is_refused_with_the_reason() {
    let refused = |channel, content| check(channel, &content).unwrap_err().to_string();
    let cases = [
        (Channel::Email, json!({ "subject": "s" }), "needs `text`, `html` or both"),
        (Channel::Email, json!({ "text": "t" }), "missing field `subject`"),
        (Channel::Email, json!({ "subject": "s", "text": "t", "body": "b" }), "unknown field `body`"),
        (Channel::Email, json!({ "subject": " ", "text": "t" }), "`subject` is empty"),
        (Channel::Email, json!({ "subject": "s", "text": "a\n{{ name" }), "the text has an error in line 2"),
        (Channel::Email, json!({ "subject": "s", "text": "{% include 'x' %}" }), "the text has an error"),
        (Channel::Email, json!({ "subject": "s", "text": "{{ name | nosuch }}" }), "the text has an error"),
        (
            Channel::Email,
            json!({ "subject": "s", "text": "a\n{%- set a = 'x' %}" }),
            "error in line 2: templates fill in",
        ),
        (
            Channel::Email,
            json!({ "subject": "s", "text": "{% with a = 'x' %}{% endwith %}" }),
            "templates fill in",
        ),
        (Channel::Email, json!({ "subject": "s", "text": "{{ 'x' | indent(9) }}" }), "the text has an error"),
        (
            Channel::Email,
            json!({ "subject": "s", "text": "{{ name|indent(9) }}" }),
            "the filter `indent` is not available; the filters are abs,",
        ),
        (
            Channel::Email,
            json!({ "subject": "s", "text": "{{ debug() }}" }),
            "the function `debug` is not available",
        ),
        (
            Channel::Email,
            json!({ "subject": "s", "text": "{% macro a() %}{% endmacro %}" }),
            "`macro` is not available",
        ),
        (Channel::Voice, json!({ "text": "t" }), "unknown field `text`"),
        (Channel::Social, json!("text"), "the content is not fit for social"),
    ];
    for (channel, content, expected) in cases {
        let message = refused(channel, content.clone());
        assert!(message.contains(expected), "{content}: {message}");
    }
}

#[test]
fn endless_and_growing_templates_are_stopped() {
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
    let error = email(json!({ "subject": "s", "text": endless }), json!({})).unwrap_err();
    assert!(error.to_string().contains("more than 100000 steps"), "{error}");
    let grows = "{% for a in range(9000) %}{{ big }}{% endfor %}";
    let error =
        email(json!({ "subject": "s", "text": grows }), json!({ "big": "x".repeat(1000) })).unwrap_err();
    assert!(error.to_string().contains("more than 524288 bytes"), "{error}");
    let replaces = format!("{{{{ 'x' {} }}}}", r#"| replace("x", "xxxxxxxxxx")"#.repeat(12));
    let error = email(json!({ "subject": "s", "text": replaces }), json!({})).unwrap_err();
    assert!(error.to_string().contains("more than 524288 bytes"), "{error}");
}

#[test]
fn permitted_constructs_render_as_in_minijinja() {
    let attributes = json!({
        "name": "ann", "n": 3, "price": 9.5, "vip": true, "cart": [{ "sku": "b", "n": 2 }, { "sku": "a", "n": 1 }],
        "words": ["x", "y", "z"], "lang": "de", "nothing": null, "markup": "<b>",
    });
    let cases = [
        ("{{ name|title }} {{ 'a' ~ n ~ 'b' }} {{ 'a' + 'b' }} {{ [1] + [2] }}", "Ann a3b ab [1, 2]"),
        (
            "{{ n * 2 + 1 }} {{ 1 + 2 * n }} {{ (1 + 2) * n }} {{ price * n }} {{ '-' * 5 }}",
            "7 7 9 28.5 -----",
        ),
        (
            "{{ n - 1 - 1 }} {{ 7 / 2 }} {{ 7 // 2 }} {{ 7 % 4 }} {{ 2 ** 3 }} {{ -n }} {{ -n|abs }}",
            "1 3.5 3 3 8 -3 3",
        ),
        ("{{ '%.2f'|format(price) }} {{ '%05d'|format(n) }} {{ price|round }}", "9.50 00003 10.0"),
        (
            "{{ cart|sort(attribute='sku')|map(attribute='sku')|join(', ') }} {{ cart|sum(attribute='n') }}",
            "a, b 3",
        ),
        (
            "{% for item in cart if item.n > 1 %}{{ loop.index }}{{ item.sku }}{% else %}none{% endfor %}",
            "1b",
        ),
        (
            "{% for w in words %}{{ loop.cycle('1', '2') }}{{ w }}{{ ', ' if not loop.last }}{% endfor %}",
            "1x, 2y, 1z",
        ),
        ("{% for k, v in {'a': 1, 'b': 2}|items %}{{ k }}={{ v }};{% endfor %}", "a=1;b=2;"),
        ("{% if n > 5 %}many{% elif n == 3 %}three{% else %}few{% endif %}", "three"),
        ("{% if vip and not nothing %}vip{% endif %}{{ 'x' if n in [1, 2] else 'y' }}", "vipy"),
        (
            "{{ {'de': 'Hallo', 'en': 'Hello'}[lang] }} {{ words[0] }}{{ words[-1] }}{{ name[1] }}",
            "Hallo xzn",
        ),
        ("{{ words[1:] }} {{ name[:2] }} {{ name[-2:] }} {{ words[1:2]|first }}", "['y', 'z'] an nn y"),
        (
            "{{ missing|default('dear') }} {{ missing is defined }} {{ cart[0].nosuch|default(1) }}",
            "dear False 1",
        ),
        (
            "{{ n is odd }} {{ 9 is divisibleby 3 }} {{ name is startingwith('a') }} {{ n is not even }}",
            "True True True True",
        ),
        (
            "{{ 'ab' < 'b' }} {{ n >= 3 }} {{ n != 3 }} {{ 'n' in name }} {{ 'q' not in name }}",
            "True True False True True",
        ),
        (
            "{% raw %}{{ name }} {% if %}{% endraw %} { {{ '}}{%' }} {# gone #}\"\\",
            "{{ name }} {% if %} { }}{% \"\\",
        ),
        (
            "{{ \"quote \\\" back \\\\ tab \\t ü\" }}{{ 1e3 }} {{ 0.1 }} {{ 170141183460469231731687303715884105727 }}",
            "quote \" back \\ tab \t ü1000.0 0.1 170141183460469231731687303715884105727",
        ),
        ("a {%- if true -%} b {%- endif -%} c\n\n{{ name }}\n", "abc\n\nann"),
        (
            "{% for i in range(2, 8, 3) %}{{ i }} {% endfor %}{{ range(3)|list }}{{ (1, 2) }}{{ () }}",
            "2 5 [0, 1, 2](1, 2)()",
        ),
        (
            "{{ words|batch(2)|list }} {{ 'a,b'|split(',') }} {{ [3, 1, 2]|sort|reverse|list }}",
            "[['x', 'y'], ['z']] ['a', 'b'] [3, 2, 1]",
        ),
    ];
    for (template, expected) in cases {
        let message = email(json!({ "subject": "s", "text": template }), &attributes);
        let Ok(Message::Email { text: Some(text), .. }) = &message else {
            panic!("{template}: {message:?}");
        };
        assert_eq!(text, expected, "{template}");
        // MiniJinja renders the untranslated template in the same way.
        let mut plain = Environment::new();
        plain.set_undefined_behavior(UndefinedBehavior::Strict);
        assert_eq!(plain.render_str(template, Value::from(Serde(&attributes))).unwrap(), expected);
    }
    let html = json!({ "subject": "s", "html": "{{ markup }}{{ markup|safe }}{{ markup ~ 'a' }}{{ [markup, 'b']|join('<') }}" });
    let Ok(Message::Email { html: Some(html), .. }) = email(html, &attributes) else { panic!() };
    assert_eq!(html, "&lt;b&gt;<b>&lt;b&gt;a&lt;b&gt;&lt;b");
}

#[test]
fn errors_name_the_line_of_the_template() {
    for (template, line) in [
        ("a\n\n{{ 'x'|nosuch }}", 3),
        ("{{ 1\n + 1\n}}\n{{ 'x' * 999999999 }}", 4),
        ("{# a\nb #}\n{%- if true %}\n\n{{ range(3)|batch(99999999) }}{% endif %}", 5),
    ] {
        let error = check(Channel::Email, &json!({ "subject": "s", "text": template })).unwrap_err();
        assert!(error.to_string().contains(&format!("in line {line}:")), "{template}: {error}");
    }
}

#[test]
fn a_static_subject_with_a_line_break_is_refused_when_the_asset_is_made() {
    for subject in [
        "Hello\nBcc: all@example.com",
        "Hello\r{{ name }}",
        "{{ 'a\\nb' }}",
        "{% if vip %}a\nb{% endif %}",
        "a\u{85}b",
    ] {
        let error = check(Channel::Email, &json!({ "subject": subject, "text": "t" })).unwrap_err();
        assert!(error.to_string().contains("`subject` holds a line break"), "{subject:?}: {error}");
    }
    for subject in [
        "Hello {{ name }}\n",
        "\n Hello",
        "{% if vip %}\nvip\n{% endif %}",
        "a{#\n#}b",
        "{%- if vip -%}\na\n{%- endif -%}",
    ] {
        check(Channel::Email, &json!({ "subject": subject, "text": "t" })).unwrap();
    }
}
