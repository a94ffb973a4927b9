//! The variables that a template reads, so that an error can name the one that a lead does not have.
//!
//! The engine's own error has the line and no name. The template's tree has the names of that line, and the lead says which of them it
//! lacks. A variable that a template guards (`default`, `is defined`) is none that can be missing.

use minijinja::machinery::ast::{CallArg, Expr, Stmt};

/// A variable that a template reads, such as `order.id` in line 3.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Use {
    pub(super) line: usize,
    pub(super) path: Vec<String>,
}

impl Use {
    /// The variable as templates write it.
    pub(super) fn name(&self) -> String {
        self.path.join(".")
    }

    /// Whether these attributes have no such variable. The fields of a lead are always there.
    pub(super) fn is_missing(&self, attributes: &serde_json::Map<String, serde_json::Value>) -> bool {
        const FIELDS: [&str; 5] = ["id", "external_id", "email", "phone", "timezone"];
        let [first, rest @ ..] = self.path.as_slice() else { return false };
        if first == "lead" {
            return rest.first().is_some_and(|field| !FIELDS.contains(&field.as_str()));
        }
        let mut value = attributes.get(first);
        for name in rest {
            value = value.and_then(|value| value.get(name));
        }
        value.is_none()
    }

    /// Gives the attributes such a variable, with a text as its value.
    pub(super) fn fill(&self, attributes: &mut serde_json::Map<String, serde_json::Value>) {
        let [names @ .., last] = self.path.as_slice() else { return };
        let mut object = attributes;
        for name in names {
            let inner = object
                .entry(name.clone())
                .or_insert_with(|| serde_json::Value::Object(serde_json::Map::new()));
            let Some(inner) = inner.as_object_mut() else { return };
            object = inner;
        }
        object.insert(last.clone(), serde_json::Value::from("-"));
    }
}

/// The variables that statements read, in their order.
pub(super) fn uses(statements: &[Stmt<'_>]) -> Vec<Use> {
    let mut names = Names { found: Vec::new(), scope: vec!["loop".to_owned()] };
    names.statements(statements);
    names.found
}

struct Names {
    found: Vec<Use>,
    /// Names that loops give to entries.
    scope: Vec<String>,
}

impl Names {
    fn statements(&mut self, statements: &[Stmt<'_>]) {
        for statement in statements {
            match statement {
                Stmt::EmitExpr(emit) => self.expression(&emit.expr),
                Stmt::ForLoop(one) => {
                    self.expression(&one.iter);
                    let outside = self.scope.len();
                    self.target(&one.target);
                    if let Some(only) = &one.filter_expr {
                        self.expression(only);
                    }
                    self.statements(&one.body);
                    self.scope.truncate(outside);
                    self.statements(&one.else_body);
                }
                Stmt::IfCond(one) => {
                    self.expression(&one.expr);
                    self.statements(&one.true_body);
                    self.statements(&one.false_body);
                }
                _ => {}
            }
        }
    }

    fn target(&mut self, target: &Expr<'_>) {
        match target {
            Expr::Var(name) => self.scope.push(name.id.to_owned()),
            Expr::List(names) => names.items.iter().for_each(|name| self.target(name)),
            _ => {}
        }
    }

    fn expression(&mut self, expression: &Expr<'_>) {
        if let Some(path) = path(expression) {
            if !path.first().is_some_and(|first| self.scope.contains(first)) {
                self.found.push(Use { line: usize::from(expression.span().start_line), path });
            }
            return;
        }
        match expression {
            Expr::GetAttr(of) => self.expression(&of.expr),
            Expr::GetItem(of) => {
                self.expression(&of.expr);
                self.expression(&of.subscript_expr);
            }
            Expr::Slice(of) => {
                self.expression(&of.expr);
                [&of.start, &of.stop].into_iter().flatten().for_each(|end| self.expression(end));
            }
            Expr::UnaryOp(one) => self.expression(&one.expr),
            Expr::BinOp(both) => {
                self.expression(&both.left);
                self.expression(&both.right);
            }
            Expr::IfExpr(choice) => {
                self.expression(&choice.test_expr);
                self.expression(&choice.true_expr);
                choice.false_expr.iter().for_each(|otherwise| self.expression(otherwise));
            }
            Expr::Filter(filter) => {
                let is_guarded = ["default", "d"].contains(&filter.name);
                if let Some(on) = filter.expr.as_ref().filter(|on| !is_guarded || path(on).is_none()) {
                    self.expression(on);
                }
                self.arguments(&filter.args);
            }
            Expr::Test(test) => {
                let is_guarded = ["defined", "undefined"].contains(&test.name);
                if !is_guarded || path(&test.expr).is_none() {
                    self.expression(&test.expr);
                }
                self.arguments(&test.args);
            }
            Expr::Call(call) => self.arguments(&call.args),
            Expr::List(list) => list.items.iter().for_each(|item| self.expression(item)),
            Expr::Tuple(tuple) => tuple.items.iter().for_each(|item| self.expression(item)),
            Expr::Map(map) => {
                map.keys.iter().chain(&map.values).for_each(|part| self.expression(part));
            }
            _ => {}
        }
    }

    fn arguments(&mut self, arguments: &[CallArg<'_>]) {
        for argument in arguments {
            match argument {
                CallArg::Pos(value) | CallArg::Kwarg(_, value) => self.expression(value),
                CallArg::PosSplat(_) | CallArg::KwargSplat(_) => {}
            }
        }
    }
}

/// The names of a variable and its attributes, such as `order.id`.
fn path(expression: &Expr<'_>) -> Option<Vec<String>> {
    match expression {
        Expr::Var(name) => Some(vec![name.id.to_owned()]),
        Expr::GetAttr(of) => {
            let mut names = path(&of.expr)?;
            names.push(of.name.to_owned());
            Some(names)
        }
        _ => None,
    }
}
