//! JSON objects that are easy to get wrong, as texts: written by hand, and made by the thousand, the same at every run.

use postrider_testkit::crash::SeededRandom;

/// Objects that somebody thought of.
pub fn written() -> Vec<String> {
    let mut all: Vec<String> = [
        r#"{"rule_id":"r123","sku":"SKU001"}"#,
        r#" { "sku" : "SKU001" , "rule_id" : "r123" } "#,
        "{}",
        r#"{"":""}"#,
        r#"{"b":1,"a":2,"10":3,"9":4,"-1":5,"01":6}"#,
        r#"{"in":{"b":1,"a":2,"10":3,"9":4,"-1":5,"01":6,"1.0":7,"1e1":8,"+1":9," 1":10}}"#,
        r#"{"in":{"4294967296":0,"4294967295":1,"4294967294":2,"4294967293":3,"99999999999":4,"0":5}}"#,
        r#"{"a":1,"b":2,"\u0061":3}"#,
        r#"{"in":{"a":1,"b":2,"\u0061":{"a":[],"\u0061":null}}}"#,
        r#"{"__proto__":1,"constructor":2,"toJSON":3,"length":4,"hasOwnProperty":5}"#,
        r#"{"in":{"__proto__":{"__proto__":null},"toJSON":{},"a":1,"__proto__":[]}}"#,
        "{\"\u{e000}\":1,\"\u{ffff}\":2,\"\u{10000}\":3,\"\u{10ffff}\":4,\"\u{d7ff}\":5,\"\\ud800\":6,\"\\udfff\":7}",
        r#"{"\u0000":1,"\u0001":2,"\b":3,"\t":4,"\n":5,"\f":6,"\r":7,"\u001F":8,"\u007f":9,"\"":10,"\\":11,"\/":12,"/":13}"#,
        r#"{"s":"\u0000\u0008\u0009\u000a\u000B\u000c\u000D\u001f \"\\\/\u0022\u005c\u002F\u007F\u0080\u2028\u2029\uFEFF\uFFFE\uFFFF"}"#,
        r#"{"s":["\ud83d\ude00","\uD83D\uDE00","\ude00\ud83d","\ud83d","\ud83dx","\ud83d\ud83d\ude00\ude00","\ud83d\n","\\ud83d\\ude00"]}"#,
        r#"{"s":["\\","\\\\","\\\"","\"\\","\\u0041","\\\u0041","\\n","\\\n"]}"#,
        r#"{"s":"null","n":null,"t":true,"f":false,"e":[],"o":{}}"#,
        r#"{"in":{"\\":1,"\u005c":2,"\"":3,"\u0022":4,"/":5,"\/":6}}"#,
        "{\"spaces\"\r\n:\t[ 1 , 2\n,{ } , [ ] , \"  \" ] }",
    ]
    .map(str::to_owned)
    .into();
    all.extend(
        SPECIAL_NUMBERS
            .split_whitespace()
            .flat_map(|number| [format!("{{\"n\":{number}}}"), format!("{{\"n\":-{number}}}")]),
    );
    all.push(format!(
        "{{\"long\":[{0}.5,0.{0}1,{0}e-400,0.{1}{0}e900,0.{1}e5,1{1},1e{1}1,9007199254740993.{1}1]}}",
        "7".repeat(900),
        "0".repeat(900)
    ));
    all.push(nested(64));
    all
}

/// So many objects in each other.
pub fn nested(levels: usize) -> String {
    "{\"a\":".repeat(levels - 1) + "{}" + &"}".repeat(levels - 1)
}

/// Where the form of a number changes, and where doubles end.
const SPECIAL_NUMBERS: &str = "
    0 0.0 0e0 0E+5 0e-99999999999999999999 0e99999999999999999999 1 1.0 1.50 10e-1 1E+2 100 1e20
    123456789012345678901 999999999999999900000 999999999999999999999 1e21 1.5e21 1e22 1e23 9e22 1e25
    0.1 0.000001 0.0000015 0.00000123456789 0.0000001 1e-6 1e-7 1.5e-7 9.999999999999999e-7
    999999999999999 1000000000000000 9007199254740991 9007199254740992 9007199254740993 9007199254740994
    9007199254740995 12345678901234567890 18446744073709551615 18446744073709551616 9223372036854775807
    9223372036854775808 5e-324 4.94e-324 2.5e-324 2.4703282292062327208e-324 2.4703282292062328e-324
    2.4703282292062327e-324 2e-324 1e-324 1e-323 1e-322 2.225073858507201e-308 2.2250738585072011e-308
    2.2250738585072014e-308 2.2250738585072012e-308 1.7976931348623157e308 1.7976931348623158e308
    1.7976931348623159e308 1.797693134862315807e308 1.797693134862315808e308 17976931348623157e292
    0.00017976931348623157e312 9e307 1e308 1e309 1e310 1e400 1e-400 1e9999999999999999999
    1e-9999999999999999999 0.30000000000000004 0.1000000000000000055511151231257827 4.35
    4.349999999999999 2.98023223876953125e-8 5.960464477539063e-8 9.5e-9 1.1125369292536007e-308
    9007199254740993.5 4503599627370496.5 4503599627370497.5 2251799813685248.25
";

/// Every power of two and both its neighbours: the gaps beside it differ, which is where shortest digits go wrong.
pub fn powers_of_two() -> Vec<String> {
    let powers = (0..52).map(|bit| 1u64 << bit).chain((1..2047).map(|exponent| exponent << 52));
    let near =
        powers.flat_map(|bits| [bits - 1, bits, bits + 1].map(|bits| format!("{:e}", f64::from_bits(bits))));
    near.collect::<Vec<_>>().chunks(50).map(|numbers| format!("{{\"n\":[{}]}}", numbers.join(","))).collect()
}

/// So many objects that nobody thought of.
pub fn made(count: usize) -> Vec<String> {
    let mut values = Values(SeededRandom(7));
    (0..count).map(|_| values.object(3)).collect()
}

/// JSON values that follow from a seed.
struct Values(SeededRandom);

impl Values {
    fn next(&mut self) -> u64 {
        self.0.next_u64()
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// One of the words of a text.
    fn word(&mut self, words: &str) -> String {
        let nth = usize::try_from(self.below(words.split_whitespace().count() as u64)).unwrap_or_default();
        words.split_whitespace().nth(nth).unwrap_or_default().to_owned()
    }

    /// A value with so many levels below it at most.
    fn value(&mut self, levels: u32) -> String {
        match self.below(if levels == 0 { 9 } else { 13 }) {
            0 => self.word("null true false [] {}"),
            1..=4 => self.number(),
            5..=8 => self.string(),
            9 | 10 => {
                let elements = (0..self.below(5)).map(|_| self.value(levels - 1)).collect::<Vec<_>>();
                format!("[{}]", elements.join(" ,"))
            }
            _ => self.object(levels - 1),
        }
    }

    fn object(&mut self, levels: u32) -> String {
        let members = (0..self.below(6)).map(|_| {
            let space = ["", "", "", " ", "\n\t", "\r"][self.below(6) as usize];
            format!("{space}{}{space}:{}{space}", self.key(), self.value(levels))
        });
        format!("{{{}}}", members.collect::<Vec<_>>().join(","))
    }

    fn number(&mut self) -> String {
        let (digits, exponent) = (self.next(), self.below(80) as i64 - 40);
        match self.below(9) {
            0 => self.word(SPECIAL_NUMBERS),
            1 => format!("-{}", self.below(1000)),
            2 => match f64::from_bits(digits) {
                double if double.is_finite() => format!("{double:e}"),
                _ => self.number(),
            },
            // Few digits, of which some lie on the border between two doubles.
            3 => format!("{}e{}", self.below(100_000), self.below(660) as i64 - 340),
            4 => format!("{digits}E{exponent:+}"),
            5 => format!("-{digits}.{:020}", self.next()),
            6 => format!("{}{:019}", digits, self.next() >> 1),
            // In the middle between two doubles, where the even one is nearest.
            7 => format!("{}.5", (1 << 52) + (digits >> 12)),
            _ => ((u128::from(digits | 1 << 63) >> 11 << 12 | 1 << 11) << self.below(40)).to_string(),
        }
    }

    /// Several spellings of few keys, so that many come again; and others.
    fn key(&mut self) -> String {
        match self.below(8) {
            0..=3 => format!("\"{}\"", self.word(FAMILIAR_KEYS)),
            4 => format!("\"{}\"", self.next() >> 32),
            _ => self.string(),
        }
    }

    /// A string, in one of its many spellings.
    fn string(&mut self) -> String {
        let letters = (0..self.below(7)).map(|_| self.letter()).collect::<String>();
        format!("\"{letters}\"")
    }

    fn letter(&mut self) -> String {
        let astral = 0x10000 + self.below(0x10_0000) as u32;
        match self.below(14) {
            0 => raw(self.below(0x1_0000) as u32),
            1 => raw(0xd700 + self.below(0x2900) as u32),
            2 => raw(astral),
            3 => format!("\\u{:04x}", self.below(0x1_0000)),
            4 => format!("\\u{:04X}", self.below(0x100)),
            // Halves of surrogate pairs, of which some find each other.
            5 | 6 => format!("\\u{:04X}", 0xd700 + self.below(0xa00)),
            7 => raw(astral).encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect(),
            8 | 9 => self.word(r#"\" \\ \/ \b \f \n \r \t u0041"#),
            _ => raw(0x20 + self.below(0x60) as u32),
        }
    }
}

const FAMILIAR_KEYS: &str = r"a \u0061 b c 0 1 2 10 \u0031 01 -1 4294967294 4294967295 __proto__ toJSON constructor
    \u0000 \n \u000A \\ \u005c \/ / \ud800 \udc00 \ud800\udc00 \ud801\udc00 \ue000 \uffff";

/// The character itself, where it may stand in a string as it is.
fn raw(code: u32) -> String {
    char::from_u32(code)
        .filter(|letter| *letter >= ' ' && !['"', '\\'].contains(letter))
        .map(String::from)
        .unwrap_or_default()
}
