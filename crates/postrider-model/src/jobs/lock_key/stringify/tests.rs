//! The output of JavaScript as a table and as properties. The end-to-end tests ask a JavaScript engine.

use proptest::prelude::*;

use super::*;
use crate::jobs::lock_key::EntityHash;

/// The output for a value inside an object.
fn written(value: &str) -> String {
    let pairs = sorted_pairs(&format!("{{\"k\":{value}}}")).unwrap();
    pairs.strip_prefix("[[\"k\",").and_then(|rest| rest.strip_suffix("]]")).unwrap().to_owned()
}

#[test]
fn values_are_written_as_javascript_writes_them() {
    let table = [
        // Numbers are doubles, written with as few digits as distinguish them.
        ("1.0", "1"),
        ("-0", "0"),
        ("-0.0e5", "0"),
        ("1E2", "100"),
        ("1e21", "1e+21"),
        ("999999999999999999999", "1e+21"),
        ("123456789012345678901", "123456789012345680000"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("1e23", "1e+23"),
        ("5e-324", "5e-324"),
        ("2e-324", "0"),
        ("-1e-400", "0"),
        ("1e400", "null"),
        ("-1e400", "null"),
        ("1.7976931348623157e308", "1.7976931348623157e+308"),
        ("1.7976931348623159e308", "null"),
        ("12345678901234567890", "12345678901234567000"),
        ("9007199254740993", "9007199254740992"),
        ("0.1000000000000000055511151231257827", "0.1"),
        ("0e99999999999999999999", "0"),
        // Strings.
        (r#""""#, r#""""#),
        (r#""\"""#, r#""\"""#),
        (r#""\/\b\f\n\r\t\\""#, r#""/\b\f\n\r\t\\""#),
        (r#""\u0000\u001F\u007f\u2028""#, "\"\\u0000\\u001f\u{7f}\u{2028}\""),
        (r#""\u0041\ud83d\uDE00""#, "\"A😀\""),
        (r#""\uD800""#, r#""\ud800""#),
        (r#""\udc00\ud800\ud83d\ude00x""#, "\"\\udc00\\ud800😀x\""),
        // Inner objects: array indexes first, then the order of the text; a repeated key keeps its position.
        (r#"{"b":1,"a":2,"10":3,"9":4}"#, r#"{"9":4,"10":3,"b":1,"a":2}"#),
        (
            r#"{"4294967295":1,"4294967294":2,"01":3,"-1":4,"+1":5,"1.0":6,"0":7}"#,
            r#"{"0":7,"4294967294":2,"4294967295":1,"01":3,"-1":4,"+1":5,"1.0":6}"#,
        ),
        (r#"{"a":1,"b":2,"\u0061":3}"#, r#"{"a":3,"b":2}"#),
        (r#"{"__proto__":{"x":1},"toJSON":"no"}"#, r#"{"__proto__":{"x":1},"toJSON":"no"}"#),
        (" [ 1 , [ ] , { } , null , true ] ", "[1,[],{},null,true]"),
    ];
    for (value, expected) in table {
        assert_eq!(written(value), expected, "{value}");
    }
}

#[test]
fn outermost_keys_are_sorted_by_code_units() {
    let astral_before_private =
        "{\"\u{e000}\":1,\"\u{10000}\":2,\"z\":3,\"10\":4,\"9\":5,\"\":6,\"\\ud800\":7}";
    assert_eq!(
        sorted_pairs(astral_before_private).unwrap(),
        "[[\"\",6],[\"10\",4],[\"9\",5],[\"z\",3],[\"\\ud800\",7],[\"\u{10000}\",2],[\"\u{e000}\",1]]"
    );
    assert_eq!(sorted_pairs("{}").unwrap(), "[]");
    assert_eq!(sorted_pairs(r#"{"a":1,"a":2}"#).unwrap(), r#"[["a",2]]"#);
}

#[test]
fn texts_without_a_hash_are_refused_with_the_reason() {
    let nested = |levels: usize| format!("{}{}", "{\"a\":".repeat(levels - 1) + "{}", "}".repeat(levels - 1));
    assert!(EntityHash::of(&nested(ENTITY_DEPTH_MAX)).is_ok());
    let lists = format!("{{\"a\":{}{}}}", "[".repeat(ENTITY_DEPTH_MAX), "]".repeat(ENTITY_DEPTH_MAX));
    for deep in [&nested(ENTITY_DEPTH_MAX + 1), &lists, &nested(5_000)] {
        let refusal = EntityHash::of(deep).unwrap_err().to_string();
        assert!(refusal.contains("deeper than 64 levels"), "{refusal}");
    }
    let table = [
        ("[1]", "not an array"),
        ("\"{}\"", "not a string"),
        ("-1", "not a number"),
        ("null", "not a boolean or null"),
        ("", "not valid JSON"),
        ("{\"a\":1,}", "not valid JSON"),
        ("{\"a\":01}", "not valid JSON"),
        ("{\"a\":\"\\ud80\"}", "not valid JSON"),
        ("{\"a\":\"\n\"}", "not valid JSON"),
        ("{} {}", "not valid JSON"),
        ("\u{feff}{}", "not valid JSON"),
    ];
    for (text, reason) in table {
        let refusal = EntityHash::of(text).unwrap_err().to_string();
        assert!(refusal.contains(reason), "{text}: {refusal}");
    }
}

/// Any JSON value, as a text.
fn json() -> impl Strategy<Value = String> {
    let number = any::<f64>().prop_filter("JSON has none other", |number| number.is_finite());
    let leaf = prop_oneof![
        Just("null".to_owned()),
        Just("true".to_owned()),
        number.prop_map(|number| format!("{number:e}")),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<String>().prop_map(|text| serde_json::to_string(&text).unwrap()),
        any::<u16>().prop_map(|unit| format!("\"\\u{unit:04X}\"")),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        let member = (any::<String>(), inner.clone());
        prop_oneof![
            prop::collection::vec(inner, 0..4).prop_map(|elements| format!("[{}]", elements.join(","))),
            prop::collection::vec(member, 0..4).prop_map(|members| object(&members)),
        ]
    })
}

fn object(members: &[(String, String)]) -> String {
    let members =
        members.iter().map(|(key, value)| format!("{}:{value}", serde_json::to_string(key).unwrap()));
    format!("{{{}}}", members.collect::<Vec<_>>().join(","))
}

proptest! {
    #[test]
    fn output_is_parsed_and_written_unchanged(value in json()) {
        let once = written(&value);
        prop_assert_eq!(&written(&once), &once);
    }

    #[test]
    fn the_order_of_the_outermost_keys_does_not_matter(members in prop::collection::btree_map(any::<String>(), json(), 0..6)) {
        let mut members = Vec::from_iter(members);
        let hash = EntityHash::of(&object(&members)).unwrap();
        members.reverse();
        prop_assert_eq!(EntityHash::of(&object(&members)).unwrap(), hash.clone());
        prop_assert!(hash.as_str().len() == 12 && hash.as_str().bytes().all(|digit| b"0123456789abcdef".contains(&digit)));
    }

    #[test]
    fn every_double_is_read_back(number in any::<f64>().prop_filter("JSON has none other", |number| number.is_finite())) {
        let read: f64 = written(&format!("{number:e}")).parse().unwrap();
        prop_assert_eq!(read, number);
    }

    #[test]
    fn every_text_is_read_back(text in any::<String>()) {
        let json = serde_json::to_string(&text).unwrap();
        prop_assert_eq!(serde_json::from_str::<String>(&written(&json)).unwrap(), text);
    }
}
