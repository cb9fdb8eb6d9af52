//! Bounds the size of the values of an expression from its tree, without evaluating it. Rejects
//! anything that could double repeatedly (a text added to itself in nested lists, lists of lists),
//! because a short expression could otherwise use up all memory.

use cel::common::ast::{EntryExpr, Expr, IdedExpr, LiteralValue, operators};

/// The reading function that returns a text.
pub const TEXT: &str = "text";
/// Maximum length of a text that an expression builds.
const MAX_TEXT_BYTES: usize = 1_000;
/// Assumed length of the name of a choice, or of a published text.
const GIVEN_TEXT_BYTES: usize = 200;
/// Assumed length of a number converted to text.
const NUMBER_BYTES: usize = 32;

/// Kind of the value of a part of an expression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A number, boolean or null: fixed size.
    Number,
    /// A text of at most this many bytes, or a value from outside that is used unchanged.
    Text(usize),
    /// A list or map of numbers and of texts of at most this many bytes.
    List(usize),
    /// Any value.
    Unknown,
}

impl Kind {
    /// The kind of a value that is of one kind or the other.
    fn or(self, other: Self) -> Self {
        match (self, other) {
            (Self::Number, Self::Number) => Self::Number,
            (Self::Text(a), Self::Text(b)) => Self::Text(a.max(b)),
            (Self::List(a), Self::List(b)) => Self::List(a.max(b)),
            (Self::Number, Self::Text(a)) | (Self::Text(a), Self::Number) => Self::Text(a.max(NUMBER_BYTES)),
            _ => Self::Unknown,
        }
    }

    /// The kind of the items of a list.
    fn item(self) -> Self {
        match self {
            Self::List(bytes) | Self::Text(bytes) => Self::Text(bytes),
            Self::Number | Self::Unknown => Self::Unknown,
        }
    }

    /// Maximum length as text of an item of a list; `None` if it cannot be one.
    fn item_bytes(self) -> Option<usize> {
        match self {
            Self::Number => Some(NUMBER_BYTES),
            Self::Text(bytes) => Some(bytes),
            Self::List(_) | Self::Unknown => None,
        }
    }
}

/// What in `tree` could grow without bound, one line each. The caller bounds the depth of the tree.
pub fn errors(tree: &IdedExpr) -> Vec<String> {
    let mut walk = Walk { names: Vec::new(), errors: Vec::new() };
    walk.kind(tree);
    walk.errors.dedup();
    walk.errors
}

/// Finds the kinds of the parts of a tree.
struct Walk<'t> {
    /// Names of loop variables, and their kinds.
    names: Vec<(&'t str, Kind)>,
    /// What could grow without bound, one line each.
    errors: Vec<String>,
}

impl<'t> Walk<'t> {
    /// The kind of the value of `tree`.
    fn kind(&mut self, tree: &'t IdedExpr) -> Kind {
        match &tree.expr {
            Expr::Literal(LiteralValue::String(text)) => Kind::Text(text.inner().len()),
            Expr::Literal(LiteralValue::Bytes(bytes)) => Kind::Text(bytes.inner().len()),
            Expr::Literal(_) => Kind::Number,
            Expr::Ident(name) => self.name_kind(name),
            Expr::Call(call) => {
                let mut kinds: Vec<Kind> = call.target.iter().map(|target| self.kind(target)).collect();
                kinds.extend(call.args.iter().map(|argument| self.kind(argument)));
                self.call_kind(&call.func_name, &kinds)
            }
            Expr::List(list) => {
                let kinds: Vec<Kind> = list.elements.iter().map(|item| self.kind(item)).collect();
                self.list_of(&kinds)
            }
            Expr::Map(map) => {
                let mut kinds = Vec::new();
                for entry in &map.entries {
                    if let EntryExpr::MapEntry(entry) = &entry.expr {
                        if !matches!(entry.key.expr, Expr::Literal(_)) {
                            self.errors.push("a map's keys are text literals".to_owned());
                        }
                        kinds.push(self.kind(&entry.value));
                    }
                }
                self.list_of(&kinds)
            }
            Expr::Select(select) => self.kind(&select.operand).item(),
            Expr::Comprehension(inner) => {
                let item = self.kind(&inner.iter_range).item();
                let start = self.kind(&inner.accu_init);
                let outer_names = self.names.len();
                self.names.push((&inner.iter_var, item));
                self.names.extend(inner.iter_var2.as_deref().map(|name| (name, item)));
                self.names.push((&inner.accu_var, start));
                self.kind(&inner.loop_cond);
                let step = self.kind(&inner.loop_step);
                // The accumulator may be of another kind than the empty list that it begins with.
                if let Some((_, kind)) = self.names.last_mut() {
                    *kind = start.or(step);
                }
                let result = self.kind(&inner.result);
                self.names.truncate(outer_names);
                result
            }
            Expr::Struct(_) | Expr::Unspecified => Kind::Unknown,
        }
    }

    fn name_kind(&self, name: &str) -> Kind {
        match self.names.iter().rev().find(|(listed, _)| *listed == name) {
            Some((_, kind)) => *kind,
            // Used unchanged from the file.
            None if name == "published" => Kind::Text(GIVEN_TEXT_BYTES),
            None => Kind::Number,
        }
    }

    /// The kind of a list or map of values of these kinds.
    fn list_of(&mut self, kinds: &[Kind]) -> Kind {
        let mut max_bytes = 0;
        for kind in kinds {
            match kind.item_bytes() {
                Some(bytes) => max_bytes = max_bytes.max(bytes),
                None => self.errors.push("lists hold numbers and texts, not lists".to_owned()),
            }
        }
        Kind::List(max_bytes)
    }

    /// The kind of a call of `name` with arguments of these `kinds`, the target first.
    fn call_kind(&mut self, name: &str, kinds: &[Kind]) -> Kind {
        match (name, kinds) {
            (operators::ADD, [a, b]) => self.sum(*a, *b),
            (operators::CONDITIONAL, [_, a, b]) => a.or(*b),
            (operators::INDEX | operators::OPT_INDEX, [list, _]) => list.item(),
            ("string", [Kind::Number]) => Kind::Text(NUMBER_BYTES),
            ("string", [kind]) => *kind,
            ("values", _) => Kind::List(GIVEN_TEXT_BYTES),
            (TEXT, _) => Kind::Text(GIVEN_TEXT_BYTES),
            // All other functions return numbers or booleans.
            _ => Kind::Number,
        }
    }

    /// The kind of `a + b`.
    fn sum(&mut self, a: Kind, b: Kind) -> Kind {
        match (a, b) {
            // If one is a number, the other must be a number too.
            (Kind::Number, _) | (_, Kind::Number) => Kind::Number,
            (Kind::Text(a), Kind::Text(b)) if a + b <= MAX_TEXT_BYTES => Kind::Text(a + b),
            (Kind::List(a), Kind::List(b)) => Kind::List(a.max(b)),
            (Kind::Text(_), Kind::Text(_)) => {
                self.errors.push(format!("it puts together a text of more than {MAX_TEXT_BYTES} bytes"));
                Kind::Unknown
            }
            _ => {
                let line = "what is added is not known to be numbers; write double(x) + double(y)";
                self.errors.push(line.to_owned());
                Kind::Unknown
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<String> {
        errors(cel::Program::compile(text).unwrap().expression())
    }

    #[test]
    fn what_could_double_again_and_again_is_refused() {
        for text in [
            &format!("[\"xxxxxxxxxx\"]{}[0] == \"\"", ".map(s, s + s)".repeat(40)),
            &format!("[[1]]{} == []", ".map(s, s + s)".repeat(40)),
            &format!("[1]{} == []", ".map(s, [s, s])".repeat(40)),
            &format!("[1]{} == []", ".map(s, {\"a\": s, \"b\": s})".repeat(40)),
            &format!("[\"x\"]{} == []", ".map(s, string(s) + string(s))".repeat(40)),
            &format!("values(\"a\"){} == []", ".map(s, true ? s + s : s)".repeat(40)),
            &format!("[\"x\"]{} == []", ".map(s, {\"a\": s + s}.a)".repeat(40)),
            &format!("published.list{} == []", ".map(s, s + s)".repeat(40)),
            "{values(\"a\").all(x, true): 1}.size() > 0",
        ] {
            assert!(!lines(text).is_empty(), "{text}");
        }
    }

    #[test]
    fn expressions_of_claims_are_accepted() {
        for text in [
            "median(\"a\") + median(\"b\") < 2 + published.a + published.b",
            "[1, 2].all(n, median(\"after\" + string(int(n)) + \".rss_bytes\") < 5000)",
            "values(\"size\").filter(s, s > 1.0).all(s, median(\"a\", {\"size\": s}) < s + 1.0)",
            "values(\"size\").map(s, median(\"a\", {\"size\": s}) + 1.0).exists(x, x + 2.0 > 3.0)",
            "(values(\"size\") + [1]).map(s, {\"a\": 1}[s] + 1.0).all(x, x > 1.0)",
            "values(\"a\").exists_one(a, values(\"b\").all(b, a + b > 3.0))",
        ] {
            assert_eq!(lines(text), Vec::<String>::new(), "{text}");
        }
    }
}
