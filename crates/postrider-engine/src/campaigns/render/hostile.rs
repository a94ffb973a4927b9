//! Templates that try to kill the process. Each builtin gets hostile arguments in a process of its own with little memory, so that
//! an allocation bomb, a stack overflow or an abort ends that process and fails the test.

use std::{
    collections::BTreeSet,
    fs,
    io::{Read, Write},
    process::{Command, Stdio},
    sync::Arc,
};

use postrider_model::{Channel, ids::LeadId};
use postrider_store::campaigns::send_jobs::Lead;
use serde_json::{json, value::to_raw_value};

use super::{PANICKED, RenderError, Template, builtins};

/// Memory that a child may take beyond what it has before the first template, in KiB.
const MEMORY_KIB: u64 = 128 * 1024;
/// Stack of the threads that render, as in a worker.
const STACK_BYTES: usize = 2 * 1024 * 1024;

/// Values of every kind that are as large as a template can make them.
const VALUES: [&str; 10] = [
    "('x' * 500000)",
    "(range(9000))",
    "(range(9000)|join('<'))",
    "text",
    "deep",
    "table",
    "'%99999999999999s%(a)999999999d%.99999999999f'",
    "99999999999999999999999999999999999999",
    "(-9223372036854775807 - 1)",
    "1e308",
];

/// Arguments beside the value that a builtin is applied to.
const ARGUMENTS: [&str; 14] = [
    "",
    "('A' * 500000)",
    "99999999999999",
    "0",
    "''",
    "range(9000)",
    "9000, ('A' * 500000)",
    "'', ('A' * 500000)",
    "'x', 9223372036854775807",
    "attribute=('a,' * 200000)",
    "precision=2147483647",
    "start=('A' * 400000)",
    "'map', 'map', 'map'",
    "'format', 'x'",
];

/// Templates that need no builtin.
fn grammar_bombs() -> Vec<String> {
    let chain = |piece: &str, times: usize| format!("{{{{ 1{} }}}}", piece.repeat(times));
    let nested =
        |open: &str, close: &str, times: usize| format!("{}x{}", open.repeat(times), close.repeat(times));
    let doubling = |operation: &str| {
        let loops: String = (0..45)
            .map(|level| {
                format!("{{% for a{} in [{}] %}}", level + 1, operation.replace('a', &format!("a{level}")))
            })
            .collect();
        format!("{{% for a0 in ['x'] %}}{loops}{{{{ a45|string|length }}}}{}", "{% endfor %}".repeat(46))
    };
    vec![
        // Templates that once killed a worker.
        "{{ '%99999999999999s'|format('x') }}".to_owned(),
        "{{ range(10000)|join('A' * 500000) }}".to_owned(),
        "{{ range(10000)|slice(99999999999999) }}".to_owned(),
        "{{ range(10000)|batch(99999999999999, 'x') }}".to_owned(),
        // Operators, also those that the compiler would compute.
        "{{ 'A' * 99999999999999 }}".to_owned(),
        "{{ ('A' * 100000000)|length }}".to_owned(),
        "{{ ('A' * 9000) * ('A' * 9000) }}".to_owned(),
        "{{ ([1] * 99999999)|length }}".to_owned(),
        "{{ ((1, 2) * 49999999)|length }}".to_owned(),
        format!("{{{{ ('A'{})|length }}}}", " * 100".repeat(20)),
        format!("{{{{ (range(9000){})|length }}}}", " + range(9000)".repeat(40)),
        "{{ range(99999999999999)|length }}{{ range(0, 9223372036854775807, 9223372036854775807) }}".to_owned(),
        "{{ range(9223372036854775807, -9223372036854775807, -9223372036854775807) }}".to_owned(),
        "{{ 99999999999999999999999999999999999999 ** 9999999999 }}{{ -(-170141183460469231731687303715884105728) }}".to_owned(),
        "{{ 1 // 0 }}".to_owned(),
        "{{ 7 is divisibleby(0) }}".to_owned(),
        "{{ text[9223372036854775807:-9223372036854775807] }}{{ text[-99999999999:99999999999] }}".to_owned(),
        "{% for x in range(3) %}{{ loop.cycle() }}{% endfor %}".to_owned(),
        // Values that share their parts and double with each loop.
        doubling("a ~ a"),
        doubling("a + a"),
        doubling("[a, a]"),
        doubling("{'a': a, 'b': a}|items|list"),
        doubling("(a, a)"),
        doubling("a|replace('x', 'xx')"),
        // Much output and many steps.
        "{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}".to_owned(),
        format!("{{% for a in range(9999) %}}{}{{% endfor %}}", "y".repeat(400_000)),
        "{% for a in range(9999) %}{{ text }}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{{ ('x' * 500000)|upper|length }}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{{ ('x' * 500000) == ('x' * 500000) }}{% endfor %}".to_owned(),
        "{% for a in range(9999) %}{{ loop.changed('x' * 500000) }}{% endfor %}".to_owned(),
        "{% filter upper %}{% for a in range(9999) %}yyyyyyyyyyyyyyyyyyyy{% endfor %}{% endfilter %}".to_owned(),
        // Depth, in the parser, the compiler, and when a tree is dropped.
        chain("+1", 200_000),
        chain("|abs", 100_000),
        chain(" if 1 else 1", 40_000),
        chain(" < 1", 100_000),
        chain(" and 1", 100_000),
        format!("{{{{ {}1 }}}}", "not ".repeat(120_000)),
        format!("{{{{ {}1 }}}}", "-".repeat(500_000)),
        format!("{{{{ {}1{} }}}}", "(".repeat(200_000), ")".repeat(200_000)),
        format!("{{{{ {}1{} }}}}", "[".repeat(240), "]".repeat(240)),
        format!("{{{{ a{} }}}}", ".a".repeat(200_000)),
        format!("{{{{ a{} }}}}", "[0]".repeat(150_000)),
        format!("{{% for {}a{} in x %}}{{% endfor %}}", "(".repeat(200_000), ")".repeat(200_000)),
        nested("{% if 1 %}", "{% endif %}", 20_000),
        nested("{% for x in [1] %}", "{% endfor %}", 15_000),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(40_000)),
        // Length.
        "{{ a }}".repeat(70_000),
        "{{'".to_owned() + &"x".repeat(60_000),
        "{#\n".repeat(100_000),
        "\n".repeat(400_000) + "{{ nosuch|nosuch }}",
    ]
}

/// Every use of a filter or a test with hostile values and arguments.
fn uses(sign: &str, name: &str) -> Vec<String> {
    // Tests take one argument.
    let arguments = if sign == "is" { &ARGUMENTS[..6] } else { &ARGUMENTS[..] };
    let mut all = Vec::new();
    for value in VALUES {
        for arguments in arguments {
            let call = if arguments.is_empty() { String::new() } else { format!("({arguments})") };
            all.push(format!("{{{{ ({value} {sign} {name}{call})|string|length }}}}"));
        }
    }
    all
}

/// Compiles and renders a template. It must return a message or an error.
fn survive(part: &str, template: &str, lead: &Arc<Lead>) -> Result<(), String> {
    let content = json!({ "subject": "s", part: template });
    let result = Template::compile(Channel::Email, &content)
        .and_then(|compiled| compiled.render(Some(lead), Some("ann@example.com"), None));
    match result {
        Err(RenderError::Lead { problem, .. } | RenderError::Template { problem, .. })
            if problem.contains(PANICKED) =>
        {
            Err(template.chars().take(200).collect())
        }
        _ => Ok(()),
    }
}

fn lead() -> Arc<Lead> {
    let deep = (0..100).fold(json!(1), |inner, _| json!([inner]));
    let table: Vec<_> = (0..100).map(|row| json!({ "a": row % 7, "b": "x" })).collect();
    Arc::new(Lead {
        id: LeadId::new(),
        external_id: None,
        email: Some("ann@example.com".to_owned()),
        phone: None,
        timezone: None,
        attributes: to_raw_value(&json!({ "text": "<x> ".repeat(1000), "deep": deep, "table": table }))
            .unwrap(),
        suppression_reason: None,
    })
}

/// The child process: renders the templates that it reads from stdin.
#[test]
#[ignore = "the tests below start it in a process of its own"]
fn child() {
    let mut templates = String::new();
    std::io::stdin().read_to_string(&mut templates).unwrap();
    let templates: Vec<String> = serde_json::from_str(&templates).unwrap();
    let rendering = std::thread::Builder::new().stack_size(STACK_BYTES).spawn(move || {
        let lead = lead();
        for (template, part) in templates.iter().zip(["html", "text"].into_iter().cycle()) {
            survive(part, template, &lead).unwrap();
        }
        templates.len()
    });
    let rendered = rendering.unwrap().join().unwrap();
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmPeak:")).unwrap();
    println!("rendered {rendered} peak {}", peak.trim().trim_end_matches(" kB"));
}

/// Renders templates in a child, with a limit of its address space in KiB, and returns the most that it took.
fn render_in_child(templates: &[String], limit: Option<u64>) -> Result<u64, String> {
    let limit = limit.map_or_else(|| "unlimited".to_owned(), |limit| limit.to_string());
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -v \"$1\" && shift && exec \"$@\"", "sh", &limit])
        .arg(std::env::current_exe().unwrap())
        .args([
            "--ignored",
            "--exact",
            "campaigns::render::hostile::child",
            "--nocapture",
            "--test-threads=1",
        ])
        // Each arena of the allocator reserves address space.
        .env("MALLOC_ARENA_MAX", "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    // A child with too little memory may end before it reads.
    let _ = stdin.write_all(&serde_json::to_vec(templates).unwrap());
    drop(stdin);
    let output = child.wait_with_output().unwrap();
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = printed.split_once(&format!("rendered {} peak ", templates.len()));
    match found {
        Some((_, peak)) if output.status.success() => {
            Ok(peak.split_whitespace().next().unwrap().parse().unwrap())
        }
        _ => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let errors: String = errors.chars().take(2000).collect();
            Err(format!("{}: {errors}", output.status))
        }
    }
}

/// The limit of a child: the memory of a harmless template, and [`MEMORY_KIB`].
fn limit() -> u64 {
    render_in_child(&["Hello {{ text|upper }}".to_owned()], None).unwrap() + MEMORY_KIB
}

fn assert_survives(sign: &str, name: &str) {
    let limit = limit();
    if let Err(died) = render_in_child(&uses(sign, name), Some(limit)) {
        let killer = uses(sign, name)
            .into_iter()
            .find(|template| render_in_child(std::slice::from_ref(template), Some(limit)).is_err());
        panic!("`{name}` kills the process with {killer:?}: {died}");
    }
}

/// One test for each builtin, so that the failure of one does not hide the others.
macro_rules! survivors {
    ($module:ident, $sign:literal, $listed:path: $($name:ident)+) => {
        mod $module {
            $(
                #[test]
                fn $name() {
                    super::assert_survives($sign, stringify!($name).trim_start_matches("r#"));
                }
            )+

            #[test]
            fn as_each_builtin_of_the_list_has_a_test() {
                let tested = [$(stringify!($name).trim_start_matches("r#")),+];
                assert_eq!(tested.to_vec(), $listed());
            }
        }
    };
}

survivors! {
    each_filter_survives_hostile_arguments_in_little_memory, "|", super::builtins::filter_names:
        abs attr batch bool capitalize count d default dictsort e escape first float format
        groupby int items join last length lines list lower map max min reject rejectattr replace
        reverse round safe select selectattr slice sort split string sum title trim unique upper
        urlencode
}

survivors! {
    each_test_survives_hostile_arguments_in_little_memory, "is", super::builtins::test_names:
        boolean defined divisibleby endingwith eq equalto even r#false float ge greaterthan gt
        r#in int integer iterable le lessthan lower lt mapping ne none number odd sameas sequence
        startingwith string r#true undefined upper
}

#[test]
fn the_memory_limit_of_the_child_works() {
    let enough = render_in_child(&["{{ text }}".to_owned()], None).unwrap();
    assert!(render_in_child(&["{{ text }}".to_owned()], Some(enough / 2)).is_err());
}

#[test]
fn operators_loops_depth_and_length_survive_in_little_memory() {
    let limit = limit();
    for template in grammar_bombs() {
        if let Err(died) = render_in_child(std::slice::from_ref(&template), Some(limit)) {
            let template: String = template.chars().take(200).collect();
            panic!("{template} kills the process: {died}");
        }
    }
}

#[test]
fn random_compositions_of_builtins_survive_in_little_memory() {
    // A linear congruential generator: the same templates each time.
    let mut state = 7_u64;
    let mut next = |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(state >> 33).unwrap() % below
    };
    let names = builtins::filter_names();
    let mut templates = Vec::new();
    for _ in 0..400 {
        let mut expression = VALUES[next(VALUES.len())].to_owned();
        for _ in 0..=next(4) {
            let (name, arguments) = (names[next(names.len())], ARGUMENTS[next(ARGUMENTS.len())]);
            expression = match next(4) {
                0 => format!("({expression} ~ {})", VALUES[next(VALUES.len())]),
                1 => format!("[{expression}, {expression}]"),
                2 => format!("({expression}|{name}({arguments}))"),
                _ => format!("({expression}|{name})"),
            };
        }
        templates.push(format!(
            "{{% for a in {expression} %}}{{{{ a ~ a }}}}{{% endfor %}}{{{{ {expression} }}}}"
        ));
    }
    render_in_child(&templates, Some(limit())).unwrap();
}

#[test]
fn the_lists_of_builtins_have_each_name_once_and_the_docs_have_all() {
    let docs = include_str!("../../../../../docs/campaigns.md");
    for names in [builtins::filter_names(), builtins::test_names()] {
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len());
        assert!(names.is_sorted(), "{names:?}");
        let listed = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        assert!(docs.contains(&listed), "docs/campaigns.md does not list: {listed}");
    }
}
