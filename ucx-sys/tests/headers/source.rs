//! What `src/raw.rs` declares, read as text: so that nothing in it goes without a comparison.
#![allow(dead_code)] // Each test uses a part.

/// The declarations.
const SOURCE: &str = include_str!("../../src/raw.rs");

/// A function's name, its result and the types of its arguments, in C.
pub(crate) struct Function {
    pub(crate) name: String,
    pub(crate) result: String,
    pub(crate) arguments: Vec<String>,
}

/// Names of structures and unions, of their fields as `structure.field`, of constants and of functions.
/// Not of those structures that C only declares: they have no fields.
pub(crate) fn declared() -> Vec<String> {
    let mut all: Vec<String> = functions().into_iter().map(|f| f.name).collect();
    let word = |text: &str| -> String {
        let end = text.find(|c: char| !c.is_alphanumeric() && c != '_');
        text[..end.unwrap_or(text.len())].to_owned()
    };
    let mut lines = SOURCE.lines();
    while let Some(line) = lines.next() {
        if let Some(constant) = line.strip_prefix("pub const ") {
            all.push(word(constant));
        }
        let structure = line.strip_prefix("pub struct ");
        let Some(name) = structure.or(line.strip_prefix("pub union ")).map(word) else {
            continue;
        };
        let body = lines.by_ref().take_while(|line| *line != "}");
        let fields: Vec<_> = body.map(|field| field.trim().to_owned()).collect();
        if fields == ["_unused: [u8; 0],"] {
            continue;
        }
        for field in fields {
            let field = field.strip_prefix("pub ").unwrap_or(&field);
            all.push(format!("{name}.{}", word(field)));
        }
        all.push(name);
    }
    all
}

/// The functions of the table.
pub(crate) fn functions() -> Vec<Function> {
    let (_, table) = SOURCE.split_once("crate::table::functions! {\n").unwrap();
    let (table, _) = table.split_once("\n}").unwrap();
    let functions = table.split("pub fn ").skip(1);
    functions
        .map(|text| {
            let (name, rest) = text.split_once('(').unwrap();
            let (arguments, result) = rest.rsplit_once(')').unwrap();
            let result = result.trim().trim_end_matches(';');
            let types = arguments.split(',').map(str::trim);
            Function {
                name: name.to_owned(),
                result: result.strip_prefix("-> ").map_or("void".into(), in_c),
                arguments: types
                    .filter(|argument| !argument.is_empty())
                    .map(|argument| in_c(argument.split_once(": ").unwrap().1))
                    .collect(),
            }
        })
        .collect()
}

/// A type of Rust in C.
fn in_c(rust: &str) -> String {
    if let Some(of) = rust.strip_prefix("*mut ") {
        return format!("{} *", in_c(of));
    }
    if let Some(of) = rust.strip_prefix("*const ") {
        return format!("{} const *", in_c(of));
    }
    let simple = match rust {
        "std::ffi::c_void" => "void",
        "std::ffi::c_char" => "char",
        "std::ffi::c_int" => "int",
        "std::ffi::c_uint" => "unsigned",
        "usize" => "size_t",
        "u32" => "uint32_t",
        "u64" => "uint64_t",
        // UCX's own, and FILE.
        name => name,
    };
    simple.to_owned()
}
