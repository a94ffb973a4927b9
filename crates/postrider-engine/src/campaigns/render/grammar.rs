//! The part of MiniJinja's language that a template may use, and its translation.
//!
//! MiniJinja computes `*`, `+`, `~` and comparisons itself, without limits, and some already while it compiles. Therefore a template
//! is measured, parsed, and written again from its syntax tree: only the nodes that this module knows are written, and operators
//! become calls of the bounded filters of [`super::builtins`]. The engine compiles the result, never the template itself. Each tag
//! stays on its line, so that errors name the right one.

use std::{fmt::Write, sync::LazyLock};

use minijinja::{
    Value,
    machinery::{
        Token,
        ast::{BinOpKind, Call, CallArg, Expr, ForLoop, IfCond, Stmt, UnaryOpKind},
        parse, tokenize,
    },
    syntax::SyntaxConfig,
    value::ValueKind,
};

use super::{
    builtins,
    names::{self, Use},
};

/// Maximum number of words, numbers and signs in one tag. It bounds the depth of the syntax tree of a tag.
const TAG_TOKENS_MAX: usize = 500;
/// Maximum number of words, numbers and signs in all tags.
const TOKENS_MAX: usize = 50_000;
/// Maximum number of `for`, `if` and `elif` around each other.
const BLOCKS_MAX: usize = 50;
/// Maximum number of operators, filters and brackets around each other.
const NESTING_MAX: usize = 60;

/// The reason why a template is refused.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) line: usize,
    pub(super) problem: String,
}

/// A template that the engine may compile.
#[derive(Debug)]
pub(super) struct Translation {
    pub(super) source: String,
    /// The text that is always part of the message, if it has a control character that is neither before nor behind everything else.
    pub(super) has_control_character: bool,
    /// The variables that it reads.
    pub(super) uses: Vec<Use>,
}

/// Translates a template, or refuses it.
pub(super) fn translate(source: &str) -> Result<Translation, Refusal> {
    measure(source)?;
    let tree = parse(source, "template", SyntaxConfig::default())
        .map_err(|error| Refusal { line: error.line().unwrap_or(1), problem: super::problem(&error) })?;
    let Stmt::Template(template) = tree else {
        return Err(Refusal { line: 1, problem: "it is not a template".to_owned() });
    };
    let mut writer = Writer { out: String::with_capacity(source.len() * 2), line: 1 };
    writer.statements(&template.children)?;
    Ok(Translation {
        source: writer.out,
        has_control_character: has_control_character(&template.children),
        uses: names::uses(&template.children),
    })
}

/// Refuses templates that are too deep for the parser, and statements that are not available.
fn measure(source: &str) -> Result<(), Refusal> {
    let (mut tokens, mut in_tag) = (0_usize, 0_usize);
    let mut blocks: Vec<usize> = Vec::new();
    let mut statement_begins = false;
    for token in tokenize(source, false, SyntaxConfig::default()) {
        let (token, span) = token
            .map_err(|error| Refusal { line: error.line().unwrap_or(1), problem: super::problem(&error) })?;
        let refused = |problem: String| Refusal { line: usize::from(span.start_line), problem };
        match (&token, statement_begins) {
            (Token::TemplateData(_), _) => continue,
            (Token::VariableStart | Token::BlockStart, _) => in_tag = 0,
            (Token::Ident("if" | "for"), true) => blocks.push(1),
            (Token::Ident("elif"), true) => *blocks.last_mut().unwrap_or(&mut 0) += 1,
            (Token::Ident("endif" | "endfor"), true) => drop(blocks.pop()),
            (Token::Ident("else"), true) => {}
            (Token::Ident(name @ ("set" | "with")), true) => {
                return Err(refused(format!(
                    "templates fill in and do not compute: `{name}` is not available"
                )));
            }
            (Token::Ident(name), true) => {
                return Err(refused(format!(
                    "`{name}` is not available; the statements are `for`, `if` and `raw`"
                )));
            }
            _ => {}
        }
        statement_begins = matches!(token, Token::BlockStart);
        in_tag += 1;
        tokens += 1;
        if in_tag > TAG_TOKENS_MAX {
            return Err(refused(format!("a tag has more than {TAG_TOKENS_MAX} words and signs")));
        }
        if tokens > TOKENS_MAX {
            return Err(refused(format!("all tags together have more than {TOKENS_MAX} words and signs")));
        }
        if blocks.iter().sum::<usize>() > BLOCKS_MAX {
            return Err(refused(format!(
                "more than {BLOCKS_MAX} `for`, `if` and `elif` are inside each other"
            )));
        }
    }
    Ok(())
}

/// The binding strength of a written expression.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
enum Form {
    /// An expression with an operator or a sign.
    Loose,
    /// A filter can follow.
    Filtered,
    /// A filter or an attribute can follow.
    Tight,
}

/// Writes the translation.
struct Writer {
    out: String,
    /// The line that `out` is at.
    line: usize,
}

impl Writer {
    fn statements(&mut self, statements: &[Stmt<'_>]) -> Result<(), Refusal> {
        statements.iter().try_for_each(|statement| self.statement(statement))
    }

    fn statement(&mut self, statement: &Stmt<'_>) -> Result<(), Refusal> {
        match statement {
            Stmt::EmitRaw(text) => {
                self.line += text.raw.matches('\n').count();
                // A brace could begin a tag together with what follows. The text cannot hold the end of `raw`: the lexer ended it there.
                if text.raw.contains('{') {
                    self.out.push_str("{% raw %}");
                    self.out.push_str(text.raw);
                    self.out.push_str("{% endraw %}");
                } else {
                    self.out.push_str(text.raw);
                }
            }
            Stmt::EmitExpr(emit) => {
                let expression = written(&emit.expr)?;
                self.tag("{{", usize::from(emit.span().start_line), &expression, "}}");
            }
            Stmt::ForLoop(one) => self.for_loop(one, usize::from(one.span().start_line))?,
            Stmt::IfCond(one) => self.condition("if", one, usize::from(one.span().start_line))?,
            _ => {
                let problem = "the statements are `for`, `if` and `raw`".to_owned();
                return Err(Refusal { line: self.line, problem });
            }
        }
        Ok(())
    }

    fn for_loop(&mut self, one: &ForLoop<'_>, line: usize) -> Result<(), Refusal> {
        if one.recursive {
            let problem = "`recursive` is not available; write a `for` for each level".to_owned();
            return Err(Refusal { line, problem });
        }
        let mut head = format!("for {} in ({})", target(&one.target, 0)?, written(&one.iter)?);
        if let Some(only) = &one.filter_expr {
            let _ = write!(head, " if ({})", written(only)?);
        }
        self.tag("{%", line, &head, "%}");
        self.statements(&one.body)?;
        if !one.else_body.is_empty() {
            self.out.push_str("{% else %}");
            self.statements(&one.else_body)?;
        }
        self.out.push_str("{% endfor %}");
        Ok(())
    }

    fn condition(&mut self, word: &str, one: &IfCond<'_>, line: usize) -> Result<(), Refusal> {
        self.tag("{%", line, &format!("{word} ({})", written(&one.expr)?), "%}");
        self.statements(&one.true_body)?;
        match one.false_body.as_slice() {
            [] => {}
            // `elif`, which the parser does not count as a level, or an `if` inside an `else`, which means the same.
            [Stmt::IfCond(next)] => {
                return self.condition("elif", next, usize::from(next.span().start_line));
            }
            other => {
                self.out.push_str("{% else %}");
                self.statements(other)?;
            }
        }
        self.out.push_str("{% endif %}");
        Ok(())
    }

    /// Writes a tag on its line. Omitted text before it can only have made the translation shorter.
    fn tag(&mut self, open: &str, line: usize, content: &str, close: &str) {
        self.out.push_str(open);
        while self.line < line {
            self.out.push('\n');
            self.line += 1;
        }
        let _ = write!(self.out, " {content} {close}");
        self.line += content.matches('\n').count();
    }
}

/// The names that a `for` gives to an entry.
fn target(names: &Expr<'_>, depth: usize) -> Result<String, Refusal> {
    match names {
        Expr::Var(name) => Ok(name.id.to_owned()),
        Expr::List(names) if depth < 5 => {
            let names: Vec<String> =
                names.items.iter().map(|name| target(name, depth + 1)).collect::<Result<_, _>>()?;
            Ok(if depth == 0 { names.join(", ") } else { format!("({})", names.join(", ")) })
        }
        other => Err(refusal(other, "a `for` gives names to entries")),
    }
}

fn refusal(expression: &Expr<'_>, problem: impl Into<String>) -> Refusal {
    Refusal { line: usize::from(expression.span().start_line).max(1), problem: problem.into() }
}

/// A whole expression.
fn written(expression: &Expr<'_>) -> Result<String, Refusal> {
    let mut out = String::new();
    write_expression(&mut out, expression, Form::Loose, 0)?;
    Ok(out)
}

/// Writes an expression, in parentheses if its binding strength is less than `at_least`.
fn write_expression(
    out: &mut String,
    expression: &Expr<'_>,
    at_least: Form,
    depth: usize,
) -> Result<(), Refusal> {
    if depth > NESTING_MAX {
        let problem =
            format!("more than {NESTING_MAX} operators, filters and brackets are inside each other");
        return Err(refusal(expression, problem));
    }
    let deeper = depth + 1;
    let mut text = String::new();
    let form = match expression {
        Expr::Var(name) => {
            text.push_str(name.id);
            Form::Tight
        }
        Expr::Const(constant) => {
            write_constant(&mut text, &constant.value)
                .ok_or_else(|| refusal(expression, "a number is too large"))?;
            Form::Tight
        }
        Expr::GetAttr(of) => {
            write_expression(&mut text, &of.expr, Form::Tight, deeper)?;
            let _ = write!(text, ".{}", of.name);
            Form::Tight
        }
        Expr::GetItem(of) => {
            write_filter(&mut text, &of.expr, "_item", &[&of.subscript_expr], deeper)?;
            Form::Filtered
        }
        Expr::Slice(of) => {
            if of.step.is_some() {
                return Err(refusal(
                    expression,
                    "a slice has no step; use the filter `reverse` for `[::-1]`",
                ));
            }
            write_expression(&mut text, &of.expr, Form::Filtered, deeper)?;
            text.push_str("|_part(");
            for (end, after) in [(&of.start, ", "), (&of.stop, ")")] {
                match end {
                    Some(end) => write_expression(&mut text, end, Form::Loose, deeper)?,
                    None => text.push_str("none"),
                }
                text.push_str(after);
            }
            Form::Filtered
        }
        Expr::UnaryOp(one) => {
            text.push_str(match one.op {
                UnaryOpKind::Not => "not ",
                UnaryOpKind::Neg => "-",
            });
            write_expression(&mut text, &one.expr, Form::Tight, deeper)?;
            Form::Loose
        }
        Expr::BinOp(both) => match operator(both.op) {
            Operator::Filter(name) => {
                write_filter(&mut text, &both.left, name, &[&both.right], deeper)?;
                Form::Filtered
            }
            Operator::Sign(sign) => {
                write_expression(&mut text, &both.left, Form::Tight, deeper)?;
                let _ = write!(text, " {sign} ");
                write_expression(&mut text, &both.right, Form::Tight, deeper)?;
                Form::Loose
            }
        },
        Expr::Compare(_) => {
            return Err(refusal(expression, "comparisons are not chained; write `a < b and b < c`"));
        }
        Expr::IfExpr(choice) => {
            write_expression(&mut text, &choice.true_expr, Form::Tight, deeper)?;
            text.push_str(" if ");
            write_expression(&mut text, &choice.test_expr, Form::Tight, deeper)?;
            if let Some(otherwise) = &choice.false_expr {
                text.push_str(" else ");
                write_expression(&mut text, otherwise, Form::Tight, deeper)?;
            }
            Form::Loose
        }
        Expr::Filter(filter) => {
            static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(builtins::filter_names);
            check_name(expression, "filter", filter.name, &NAMES)?;
            let Some(on) = &filter.expr else {
                return Err(refusal(expression, "a filter follows a value"));
            };
            write_expression(&mut text, on, Form::Filtered, deeper)?;
            let _ = write!(text, "|{}", filter.name);
            write_arguments(&mut text, expression, &filter.args, "", deeper)?;
            Form::Filtered
        }
        Expr::Test(test) => {
            static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(builtins::test_names);
            check_name(expression, "test", test.name, &NAMES)?;
            write_expression(&mut text, &test.expr, Form::Tight, deeper)?;
            let _ = write!(text, " is {}", test.name);
            write_arguments(&mut text, expression, &test.args, "", deeper)?;
            Form::Loose
        }
        Expr::Call(call) => write_call(&mut text, expression, call, deeper)?,
        Expr::List(list) => {
            write_list(&mut text, '[', &list.items, "]|_value", deeper)?;
            Form::Filtered
        }
        Expr::Tuple(tuple) => {
            let end = if tuple.items.is_empty() { ")|_value" } else { ",)|_value" };
            write_list(&mut text, '(', &tuple.items, end, deeper)?;
            Form::Filtered
        }
        Expr::Map(map) => {
            text.push('{');
            for (index, (key, value)) in map.keys.iter().zip(&map.values).enumerate() {
                text.push_str(if index > 0 { ", " } else { "" });
                write_expression(&mut text, key, Form::Loose, deeper)?;
                text.push_str(": ");
                write_expression(&mut text, value, Form::Loose, deeper)?;
            }
            text.push_str("}|_value");
            Form::Filtered
        }
    };
    if form < at_least {
        let _ = write!(out, "({text})");
    } else {
        out.push_str(&text);
    }
    Ok(())
}

enum Operator {
    /// A bounded filter.
    Filter(&'static str),
    /// An operator of MiniJinja: it takes numbers only, or picks one of two values.
    Sign(&'static str),
}

fn operator(kind: BinOpKind) -> Operator {
    use Operator::{Filter, Sign};
    match kind {
        BinOpKind::Eq => Filter("_eq"),
        BinOpKind::Ne => Filter("_ne"),
        BinOpKind::Lt => Filter("_lt"),
        BinOpKind::Lte => Filter("_le"),
        BinOpKind::Gt => Filter("_gt"),
        BinOpKind::Gte => Filter("_ge"),
        BinOpKind::In => Filter("_in"),
        BinOpKind::Add => Filter("_add"),
        BinOpKind::Mul => Filter("_mul"),
        BinOpKind::Concat => Filter("_concat"),
        BinOpKind::ScAnd => Sign("and"),
        BinOpKind::ScOr => Sign("or"),
        BinOpKind::Sub => Sign("-"),
        BinOpKind::Div => Sign("/"),
        BinOpKind::FloorDiv => Sign("//"),
        BinOpKind::Rem => Sign("%"),
        BinOpKind::Pow => Sign("**"),
    }
}

fn write_filter(
    text: &mut String,
    on: &Expr<'_>,
    name: &str,
    arguments: &[&Expr<'_>],
    depth: usize,
) -> Result<(), Refusal> {
    write_expression(text, on, Form::Filtered, depth)?;
    let _ = write!(text, "|{name}(");
    for (index, argument) in arguments.iter().enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        write_expression(text, argument, Form::Loose, depth)?;
    }
    text.push(')');
    Ok(())
}

fn write_list(
    text: &mut String,
    open: char,
    items: &[Expr<'_>],
    end: &str,
    depth: usize,
) -> Result<(), Refusal> {
    text.push(open);
    for (index, item) in items.iter().enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        write_expression(text, item, Form::Loose, depth)?;
    }
    text.push_str(end);
    Ok(())
}

/// `range(…)`, `loop.cycle(…)` and `loop.changed(…)`.
fn write_call(text: &mut String, whole: &Expr<'_>, call: &Call<'_>, depth: usize) -> Result<Form, Refusal> {
    match &call.expr {
        Expr::Var(function) if function.id == "range" => {
            let [CallArg::Pos(first), others @ ..] = call.args.as_slice() else {
                return Err(refusal(whole, "`range` needs a number"));
            };
            write_expression(text, first, Form::Filtered, depth)?;
            text.push_str("|_range");
            write_arguments(text, whole, others, "", depth)?;
            Ok(Form::Filtered)
        }
        Expr::GetAttr(of)
            if matches!(&of.expr, Expr::Var(name) if name.id == "loop")
                && ["cycle", "changed"].contains(&of.name) =>
        {
            if call.args.is_empty() {
                return Err(refusal(whole, format!("`loop.{}` needs a value", of.name)));
            }
            let _ = write!(text, "loop.{}", of.name);
            // These methods keep the values and compare them.
            write_arguments(text, whole, &call.args, "|_value", depth)?;
            Ok(Form::Tight)
        }
        Expr::Var(function) => Err(refusal(
            whole,
            format!("the function `{}` is not available; the only function is `range`", function.id),
        )),
        _ => Err(refusal(whole, "the only function is `range`, and the only methods are those of `loop`")),
    }
}

fn write_arguments(
    text: &mut String,
    whole: &Expr<'_>,
    arguments: &[CallArg<'_>],
    behind_each: &str,
    depth: usize,
) -> Result<(), Refusal> {
    if arguments.is_empty() {
        return Ok(());
    }
    text.push('(');
    for (index, argument) in arguments.iter().enumerate() {
        text.push_str(if index > 0 { ", " } else { "" });
        let value = match argument {
            CallArg::Pos(value) => value,
            CallArg::Kwarg(name, value) => {
                let _ = write!(text, "{name}=");
                value
            }
            CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {
                return Err(refusal(whole, "arguments are not unpacked with `*` and `**`"));
            }
        };
        let form = if behind_each.is_empty() { Form::Loose } else { Form::Filtered };
        write_expression(text, value, form, depth)?;
        text.push_str(behind_each);
    }
    text.push(')');
    Ok(())
}

fn check_name(at: &Expr<'_>, kind: &str, name: &str, known: &[&str]) -> Result<(), Refusal> {
    if known.contains(&name) {
        return Ok(());
    }
    Err(refusal(at, format!("the {kind} `{name}` is not available; the {kind}s are {}", known.join(", "))))
}

/// Writes a constant so that the parser reads the same value: none, a boolean, a number or a text.
fn write_constant(text: &mut String, value: &Value) -> Option<()> {
    match value.kind() {
        ValueKind::None | ValueKind::Bool => {
            let _ = write!(text, "{value}");
        }
        ValueKind::Number if value.is_integer() => {
            let _ = write!(text, "{value}");
        }
        ValueKind::Number => {
            let number = f64::try_from(value.clone()).ok().filter(|number| number.is_finite())?;
            let _ = write!(text, "{number:?}");
        }
        _ => {
            text.push('"');
            for letter in value.as_str()?.chars() {
                match letter {
                    '"' => text.push_str("\\\""),
                    '\\' => text.push_str("\\\\"),
                    control if control.is_control() => {
                        let _ = write!(text, "\\u{:04x}", u32::from(control));
                    }
                    other => text.push(other),
                }
            }
            text.push('"');
        }
    }
    Some(())
}

/// Whether the text between the tags has a control character that stays when the ends of the message are trimmed.
fn has_control_character(statements: &[Stmt<'_>]) -> bool {
    let last = statements.len().saturating_sub(1);
    statements.iter().enumerate().any(|(index, statement)| match statement {
        Stmt::EmitRaw(text) => {
            let text = if index == 0 { text.raw.trim_start() } else { text.raw };
            let text = if index == last { text.trim_end() } else { text };
            text.contains(char::is_control)
        }
        Stmt::EmitExpr(emit) => match &emit.expr {
            Expr::Const(constant) => {
                constant.value.as_str().is_some_and(|text| text.trim().contains(char::is_control))
            }
            _ => false,
        },
        // The first and last words of a block may also be those of the message, so only the text between them counts.
        Stmt::ForLoop(one) => between_words(&one.body) || between_words(&one.else_body),
        Stmt::IfCond(one) => between_words(&one.true_body) || between_words(&one.false_body),
        _ => false,
    })
}

/// Whether a control character stands between words of the same text, in blocks of any depth.
fn between_words(statements: &[Stmt<'_>]) -> bool {
    statements.iter().any(|statement| match statement {
        Stmt::EmitRaw(text) => text.raw.trim().contains(char::is_control),
        Stmt::ForLoop(one) => between_words(&one.body) || between_words(&one.else_body),
        Stmt::IfCond(one) => between_words(&one.true_body) || between_words(&one.false_body),
        _ => false,
    })
}
