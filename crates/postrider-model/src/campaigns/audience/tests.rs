use proptest::prelude::*;

use super::*;

fn read_with(options: Options, bytes: &[u8]) -> Result<Vec<Entry>, String> {
    let leads = Leads::open(bytes, &options).map_err(|error| error.to_string())?;
    Ok(leads.collect::<Result<_, _>>().unwrap())
}

fn read(text: &str) -> Vec<Entry> {
    read_with(Options::default(), text.as_bytes()).unwrap()
}

fn only(text: &str) -> Lead {
    let mut entries = read(text);
    assert_eq!(entries.len(), 1, "{entries:?}");
    entries.remove(0).lead.unwrap()
}

/// Bad lines with their numbers, as `line: reason`.
fn bad(bytes: impl AsRef<[u8]>) -> Vec<String> {
    let entries = read_with(Options::default(), bytes.as_ref()).unwrap();
    let bad = entries
        .iter()
        .filter_map(|entry| entry.lead.as_ref().err().map(|problem| format!("{}: {problem}", entry.line)));
    bad.collect()
}

fn refused(bytes: &[u8]) -> String {
    read_with(Options::default(), bytes).map(|entries| format!("{entries:?}")).unwrap_err()
}

fn ndjson(fields: &str) -> Result<Lead, String> {
    let mut entries = read(&format!("{{\"external_id\": \"1\", {fields}}}"));
    assert_eq!(entries.len(), 1);
    entries.remove(0).lead.map_err(|problem| problem.to_string())
}

/// One cell of a CSV file beside an id.
fn cell(column: &str, value: &str, country: Option<Country>) -> Result<Lead, String> {
    let text = format!("external_id,{column}\n1,\"{}\"\n", value.replace('"', "\"\""));
    let mut entries = read_with(Options { country, ..Options::default() }, text.as_bytes())?;
    assert_eq!(entries.len(), 1);
    entries.remove(0).lead.map_err(|problem| problem.to_string())
}

#[test]
fn known_columns_are_understood_and_others_become_attributes() {
    let lead = only(
        "External_ID , EMAIL,phone,timezone,unsubscribed,City\n 7 , Ada@Example.ORG ,+49 30 901820,europe/berlin,no, Köln \n",
    );
    assert_eq!(lead.identity, "id:7");
    assert_eq!(lead.external_id.as_deref(), Some("7"));
    assert_eq!(lead.email.as_deref(), Some("Ada@Example.ORG"));
    assert_eq!(lead.phone.as_deref(), Some("+4930901820"));
    assert_eq!(lead.timezone.as_deref(), Some("Europe/Berlin"));
    assert_eq!(lead.suppression_reason, None);
    assert_eq!(lead.attributes_json(), r#"{"City":"Köln"}"#);
}

#[test]
fn a_person_is_recognised_by_id_then_email_then_phone() {
    for (line, identity) in [
        ("7,Ada@Example.org,+4930901820", "id:7"),
        (",Ada@Example.org,+4930901820", "email:ada@example.org"),
        (",,+49 (30) 90-18 20", "phone:+4930901820"),
    ] {
        assert_eq!(only(&format!("external_id,email,phone\n{line}\n")).identity, identity);
    }
    assert_eq!(
        bad("external_id,email,phone,city\n , ,,Köln\n,,,\n"),
        ["2: it has none of external_id, email or phone", "3: it has none of external_id, email or phone"]
    );
}

#[test]
fn addresses_are_checked() {
    let long = format!("{}@example.org", "x".repeat(250));
    for (email, good) in [
        ("ada@example.org", true),
        ("ada+news@sub.example.co.uk", true),
        ("o'hara@example.org", true),
        ("ä@ü.org", true),
        ("=1+1@example.org", true),
        ("ada@localhost", false),
        ("ada@127.0.0.1", false),
        ("ada@[127.0.0.1]", false),
        ("Ada <ada@example.org>", false),
        ("ada@example.org,bob@example.org", false),
        ("ada@example.org;bob@example.org", false),
        ("ada@example.org\r\nBcc: bob@example.org", false),
        ("ada\t@example.org", false),
        ("ada@example..org", false),
        ("ada.example.org", false),
        ("@example.org", false),
        (&long, false),
    ] {
        let outcome = cell("email", email, None);
        assert_eq!(outcome.is_ok(), good, "{email:?}: {outcome:?}");
        assert!(good || outcome.unwrap_err().starts_with("email "), "{email:?}");
    }
}

#[test]
fn numbers_become_e164_and_those_without_a_country_need_one() {
    let germany = || Some("de".parse().unwrap());
    for (phone, country, expected) in [
        ("+49 30 901820", None, Ok("+4930901820")),
        ("+49 (0)30/9018-20", None, Ok("+4930901820")),
        ("+1 202.555.0123", germany(), Ok("+12025550123")),
        ("030 901820", germany(), Ok("+4930901820")),
        ("0049 30 901820", germany(), Ok("+4930901820")),
        ("030 901820", None, Err("has no country code")),
        ("+49 30 901820 ext. 7", None, Err("is not a phone number")),
        ("+49 30 901820 or 21", None, Err("is not a phone number")),
        ("+1-800-FLOWERS", None, Err("is not a phone number")),
        ("++4930901820", None, Err("is not a phone number")),
        ("tel:+4930901820", None, Err("is not a phone number")),
        ("+4930901820;ext=1", None, Err("is not a phone number")),
        ("+49", None, Err("is not a number that exists")),
        ("+999 123456", None, Err("is not a number that exists")),
        ("+49 30\n901820", None, Err("contains a control character")),
        (&"1".repeat(5000), germany(), Err("is not a phone number")),
    ] {
        match (cell("phone", phone, country), expected) {
            (Ok(lead), Ok(expected)) => assert_eq!(lead.phone.as_deref(), Some(expected)),
            (Err(reason), Err(expected)) => assert!(reason.contains(expected), "{phone}: {reason}"),
            (outcome, _) => panic!("{phone}: {outcome:?}"),
        }
    }
    assert!("Germany".parse::<Country>().is_err());
}

#[test]
fn zones_are_iana_names() {
    for (zone, expected) in [
        ("Europe/Berlin", Some("Europe/Berlin")),
        ("AMERICA/new_york", Some("America/New_York")),
        ("UTC", Some("UTC")),
        ("Berlin", None),
        ("+01:00", None),
        ("Etc/Unknown", None),
        ("../../etc/passwd", None),
    ] {
        let zone = cell("timezone", zone, None);
        assert_eq!(zone.as_ref().ok().and_then(|lead| lead.timezone.as_deref()), expected, "{zone:?}");
        assert!(expected.is_some() || zone.unwrap_err().contains("use an IANA name"));
    }
}

#[test]
fn every_value_except_a_clear_no_suppresses() {
    for (text, reason) in [
        ("true", Some("unsubscribed")),
        ("YES", Some("unsubscribed")),
        ("1", Some("unsubscribed")),
        ("asked by phone", Some("asked by phone")),
        ("nein", Some("nein")),
        ("false", None),
        ("No", None),
        ("0", None),
        ("", None),
    ] {
        assert_eq!(cell("unsubscribed", text, None).unwrap().suppression_reason.as_deref(), reason, "{text}");
    }
    for (json, reason) in [
        ("true", Some("unsubscribed")),
        ("1", Some("unsubscribed")),
        ("false", None),
        ("0", None),
        ("null", None),
    ] {
        let lead = ndjson(&format!("\"unsubscribed\": {json}")).unwrap();
        assert_eq!(lead.suppression_reason.as_deref(), reason, "{json}");
    }
    assert!(ndjson("\"unsubscribed\": [1]").unwrap_err().contains("must be true, false, or the reason"));
}

#[test]
fn json_values_keep_their_types_and_their_digits() {
    let lead = ndjson(
        r#""n": 12345678901234567890.10, "deep": {"a": [true, null]}, "attributes": {"city": "Köln", "x": 1e5}"#,
    )
    .unwrap();
    assert_eq!(
        lead.attributes_json(),
        r#"{"city":"Köln","deep":{"a": [true, null]},"n":12345678901234567890.10,"x":1e5}"#
    );
    assert_eq!(only(r#"{"external_id": 4711}"#).identity, "id:4711");
}

#[test]
fn json_that_is_not_a_lead_is_refused_with_the_reason() {
    let deep = format!("\"a\": {}{}", "[".repeat(20_000), "]".repeat(20_000));
    for (fields, says) in [
        (r#""email": 5"#, "email must be a text in quotation marks"),
        (r#""phone": ["+4930901820"]"#, "phone must be a text"),
        (r#""email": "a\r\n@example.org""#, "email contains a control character"),
        (r#""a": 1, "a": 2"#, "it gives `a` twice"),
        (r#""a": 1, "attributes": {"a": 2}"#, "it gives `a` twice"),
        (r#""email": "a@example.org", "Email": "b@example.org""#, "it gives `email` twice"),
        (r#""attributes": [1]"#, "attributes must be a JSON object"),
        (r#""attributes": {"email": "a@example.org"}"#, "`email` belongs beside `attributes`"),
        (r#""a": "x\u0000y""#, "the character with the number zero"),
        (r#""a": {"b\u0000": 1}"#, "the character with the number zero"),
        (r#""a\u0000": 1"#, "contains a control character"),
        (r#""a": "\ud800""#, "it is not JSON"),
        (r#""a": 1e999999"#, "out of range"),
        (r#""a": 1e-999999"#, "out of range"),
        (r#""": 1"#, "an attribute has no name"),
        (r#""a": tru"#, "it is not JSON"),
        (&deep, "it is not JSON: recursion limit exceeded"),
        (&format!("\"{}\": 1", "x".repeat(129)), "has 129 bytes; the limit is 128"),
        (&format!("\"a\": \"{}\"", "x".repeat(8192)), "the attributes take 82"),
    ] {
        let reason = ndjson(fields).unwrap_err();
        assert!(reason.contains(says), "{fields:.60}: {reason}");
    }
    for line in ["[1]", "\"a\"", "1", "email,phone"] {
        assert_eq!(
            bad(format!("{{\"external_id\": \"1\"}}\n{line}\n")),
            ["2: it is not a JSON object; a line looks like {\"email\": \"name@example.org\"}"]
        );
    }
}

#[test]
fn records_are_numbered_by_the_line_they_begin_on() {
    let text = "email,note\r\n\r\na@example.org,\"one\r\ntwo\r\n\"\r\nbad,x\r\nb@example.org,\"un\"\"quoted\"\r\nworse,y";
    let lines: Vec<(u64, bool)> = read(text).iter().map(|entry| (entry.line, entry.lead.is_ok())).collect();
    assert_eq!(lines, [(3, true), (6, false), (7, true), (8, false)]);
    let first = read(text).remove(0).lead.unwrap();
    assert_eq!(first.attributes_json(), r#"{"note":"one\r\ntwo"}"#);

    let lines: Vec<u64> =
        read("\n\n{\"external_id\":1}\n\n  \r\n{\"external_id\":2}").iter().map(|e| e.line).collect();
    assert_eq!(lines, [3, 6]);
    // Very old files end lines with a carriage return alone.
    let lines: Vec<u64> =
        read("email\ra@example.org\rb@example.org\r").iter().map(|entry| entry.line).collect();
    assert_eq!(lines, [2, 3]);
}

#[test]
fn a_wrong_number_of_fields_is_reported_with_how_far_it_reaches() {
    assert_eq!(
        bad("external_id,city\n1\n2,a,b\n3,a\n4,a,b,c\n\"5\n6\",a,b\n7,\"a\n8,b"),
        [
            "2: it has 1 field where the header has 2",
            "3: it has 3 fields where the header has 2",
            "5: it has more than 2 fields where the header has 2",
            "6: it has 3 fields where the header has 2, and reaches to line 7; is a quotation mark missing?",
            "8: it opens a quotation mark that is never closed, so nothing after it could be read",
        ]
    );
}

#[test]
fn a_line_that_is_too_long_is_skipped_to_its_end_and_the_next_one_is_read() {
    let long = "x".repeat(1024 * 1024);
    let quoted = format!("external_id,a\n1,x\n2,\"{}\n\"\n3,y\n", long.replace("xx", "\n\""));
    for text in [
        format!("external_id,a\n1,x\n2,{long}\n3,y\n"),
        format!("external_id,a\n1,x\n2,\"{long}\n\"\n3,y\n"),
        format!("external_id,a\n1,x\n2,{}\n3,y\n", ",".repeat(70_000)),
        format!("{{\"external_id\":1}}\n\n{{\"external_id\":2,\"a\":\"{long}\"}}\n{{\"external_id\":3}}\n"),
    ] {
        let entries = read(&text);
        assert_eq!(entries.iter().map(|entry| entry.lead.is_ok()).collect::<Vec<_>>(), [true, false, true]);
        assert_eq!(bad(text), ["3: it is longer than 65536 bytes"]);
    }
    // The quotes of this text are not balanced; reading it must end.
    let _ = bad(quoted);
}

#[test]
fn text_that_is_not_utf8_or_holds_nul_is_reported_by_its_line() {
    assert_eq!(
        bad(b"external_id,a\n1,K\xf6ln\n2,x\0y\n3,z\n"),
        [
            "2: it is not UTF-8 text; save the file as UTF-8",
            "3: it holds the character with the number zero, which Postgres cannot store; remove it",
        ]
    );
    assert_eq!(bad(b"{\"external_id\":1}\n{\"a\":\"\xff\"}\n").len(), 1);
}

#[test]
fn delimiters_are_recognised_by_the_header() {
    for text in [
        "email,city\na@example.org,x",
        "email;city\na@example.org;x",
        "email\tcity\na@example.org\tx",
        "\u{feff}email;\"a,b,c,d\"\na@example.org;x",
    ] {
        assert_eq!(only(text).attributes.len(), 1, "{text}");
    }
    let pipe = Options { delimiter: Some("|".parse().unwrap()), ..Options::default() };
    assert_eq!(read_with(pipe, b"email|city\na@example.org|x\n").unwrap().len(), 1);
    assert_eq!("tab".parse::<Delimiter>(), "\t".parse());
    for bad in ["", ",,", "\"", "a", "\n", "é"] {
        assert!(bad.parse::<Delimiter>().is_err(), "{bad:?}");
    }
}

#[test]
fn a_file_that_is_not_a_list_of_leads_is_refused_as_a_whole() {
    let many = (0..1001).map(|n| format!("c{n}")).collect::<Vec<_>>().join(",");
    for (bytes, says) in [
        (&b""[..], "it is empty"),
        (b" \n\r\n\t", "it is empty"),
        (b"\xef\xbb\xbf", "it is empty"),
        (b"\xff\xfee\0m\0", "it is written in UTF-16"),
        (b"PK\x03\x04\x14\0\x06\0\xff\nxx\n", "its first line is not text in UTF-8"),
        (b"\x1f\x8b\x08\0\0\0\n", "its first line is not text in UTF-8"),
        (b"[{\"email\": \"a@example.org\"}]", "it is a JSON array"),
        (
            b"hello world\nhow are you\n",
            "no column called external_id, email or phone; it begins with `hello world`",
        ),
        (b"timezone,city\nUTC,x\n", "no column called"),
        (b"email,city,email\nx,y,z\n", "its header names the column `email` twice"),
        (b"email,Email\nx,y\n", "its header names the column `Email` twice"),
        (b"email,,city\nx,y,z\n", "column 2 of its header has no name"),
        (b"email,city", "it has a header and no lines"),
        (b"email,\"city\nx,y\n", "opens a quotation mark and does not close it"),
        (b"email,a\x1bb\nx,y\n", "contains a control character"),
        (many.as_bytes(), "its header has 1001 columns"),
        (&[b'x'; 70_000], "or is longer than 65536 bytes"),
    ] {
        let why = refused(bytes);
        assert!(why.contains(says), "{why}");
    }
}

#[test]
fn a_reason_cannot_steer_a_terminal_and_stays_short() {
    let reason = bad(format!("email\n\"\u{1b}[31m{}\"\n", "x".repeat(10_000))).remove(0);
    assert!(reason.len() < 200 && !reason.contains('\u{1b}'), "{reason}");
    let reason = bad(format!("email\n{}\n", "x".repeat(200))).remove(0);
    assert!(reason.len() < 200 && reason.contains('…'), "{reason}");
}

fn chunk(text: &str) -> Chunk {
    let mut chunk = Chunk::default();
    read(text).into_iter().for_each(|entry| chunk.add(entry));
    chunk
}

#[test]
fn two_lines_about_one_person_become_one_merged_row() {
    let chunk = chunk(
        "external_id,email,phone,unsubscribed,city,plan\n7,a@example.org,,yes,Bonn,free\n8,b@example.org,,,,\n7,,+4930901820,no,Köln,\n",
    );
    let lines: Vec<&[u64]> = chunk.rows.iter().map(|row| &row.lines[..]).collect();
    assert_eq!(lines, [&[2, 4][..], &[3]]);
    let lead = &chunk.rows[0].lead;
    assert_eq!(lead.email.as_deref(), Some("a@example.org"));
    assert_eq!(lead.phone.as_deref(), Some("+4930901820"));
    assert_eq!(lead.suppression_reason.as_deref(), Some("unsubscribed"));
    assert_eq!(lead.attributes_json(), r#"{"city":"Köln","plan":"free"}"#);
}

#[test]
fn two_lines_that_are_too_large_together_leave_the_first() {
    let half = "x".repeat(5000);
    let chunk = chunk(&format!("external_id,a,b\n7,{half},\n7,,{half}\n"));
    assert_eq!((chunk.rows.len(), chunk.bad.len()), (1, 1));
    assert_eq!(chunk.rows[0].lines, [2]);
    assert!(chunk.bad[0].reason.starts_with("together with line 2"), "{:?}", chunk.bad);
}

#[test]
fn a_chunk_is_full_by_lines_or_by_bytes() {
    let mut chunk = Chunk::default();
    let mut lines = 0;
    let big = "x".repeat(8000);
    for entry in read(&format!("external_id,a\n{}", format!("1,{big}\n2,{big}\n").repeat(2000))) {
        chunk.add(entry);
        lines += 1;
        if chunk.is_full() {
            break;
        }
    }
    assert!((100..1000).contains(&lines), "{lines}");
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_not_make_the_reader_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        for start in [&b""[..], b"email,phone,a\n", b"{\"external_id\":1}\n"] {
            let _ = read_with(Options::default(), &[start, &bytes].concat());
        }
    }

    #[test]
    fn quoted_cells_are_read_back_unchanged(
        cells in proptest::collection::vec("[a-z \",;\t\r\n'=+@\\-é]{0,12}", 1..20)
    ) {
        let quote = |cell: &String| format!("x,\"{}\"\r\n", cell.replace('"', "\"\""));
        let text = format!("external_id,a\r\n{}", cells.iter().map(quote).collect::<String>());
        let found: Vec<Option<String>> = read(&text)
            .into_iter()
            .map(|entry| entry.lead.unwrap().attributes.get("a").map(|raw| serde_json::from_str(raw.get()).unwrap()))
            .collect();
        let expected: Vec<Option<String>> =
            cells.iter().map(|cell| Some(cell.trim().to_owned()).filter(|cell| !cell.is_empty())).collect();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_size_of_the_pieces_of_a_source_does_not_change_the_result(
        text in "(email,a|email;a|email,a|email,b)\n([a-c@.,;\"\n\r]{0,8}|a@b\\.cc,x\n){0,20}", piece in 1usize..9
    ) {
        struct Pieces<'a>(&'a [u8], usize);
        impl std::io::Read for Pieces<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let length = self.1.min(self.0.len()).min(buffer.len());
                buffer[..length].copy_from_slice(&self.0[..length]);
                self.0 = &self.0[length..];
                Ok(length)
            }
        }
        let describe = |entries: Vec<Entry>| -> Vec<String> {
            entries.iter().map(|entry| format!("{}: {:?}", entry.line, entry.lead)).collect()
        };
        let text = text.replacen("a\n", "\"a\n;\"\n", 1);
        let whole = read_with(Options::default(), text.as_bytes()).map(describe);
        let pieces = Leads::open(Pieces(text.as_bytes(), piece), &Options::default())
            .map_err(|error| error.to_string())
            .map(|leads| describe(leads.map(Result::unwrap).collect()));
        prop_assert_eq!(whole, pieces);
    }
}
