//! A program in C that says what a compiler makes of UCX's headers.

use crate::common::{compile, folder, skip};
use crate::{Numbers, source};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a program said.
pub(crate) struct Answers {
    /// Whose headers.
    pub(crate) headers: String,
    pub(crate) numbers: Numbers,
    /// Whether the function has the type that is declared here.
    pub(crate) functions: BTreeMap<String, bool>,
    /// By the macros: whether it is an error, whether it is a pointer, its status.
    pub(crate) pointers: BTreeMap<usize, (bool, bool, i8)>,
}

/// The folders of headers that are to be compared with.
pub(crate) fn headers() -> Vec<PathBuf> {
    let given = std::env::var_os("KVROOM_UCX_INCLUDE").unwrap_or_else(|| "/usr/include".into());
    std::env::split_paths(&given).collect()
}

/// Compiles and runs the program; nothing, said aloud, where there are no headers or no compiler.
pub(crate) fn run(test: &str, headers: &Path, wanted: &Numbers) -> Option<Answers> {
    if !headers.join("ucp/api/ucp.h").is_file() {
        skip(&format!(
            "the declarations are not compared with UCX's headers: {} has none (Debian: `apt-get install \
             libucx-dev`, or name a folder in KVROOM_UCX_INCLUDE)",
            headers.display()
        ));
        return None;
    }
    let at = folder(&format!("headers-{test}"));
    let (file, program) = (at.join("say.c"), at.join("say"));
    fs::write(&file, text(wanted)).unwrap();
    // Nothing of UCX is called, so nothing of it is linked.
    compile(
        &file,
        &program,
        &["-O0", "-w", "-I", headers.to_str().unwrap()],
    )?;
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", ran.status);
    Some(answers(headers, &String::from_utf8(ran.stdout).unwrap()))
}

/// The type's name in C: what has none there goes by a field that has it as its type.
fn type_of(name: &str) -> String {
    match name {
        "ucp_request_param_t__bindgen_ty_1" => field("ucp_request_param_t", "cb"),
        "ucp_request_param_t__bindgen_ty_2" => field("ucp_request_param_t", "recv_info"),
        name if name.ends_with("_t") => name.to_owned(),
        name => format!("{name}_t"),
    }
}

fn field(structure: &str, name: &str) -> String {
    format!("__typeof__((({structure} *)0)->{name})")
}

fn text(wanted: &Numbers) -> String {
    let mut c = String::from(
        "#include <stddef.h>\n#include <stdint.h>\n#include <stdio.h>\n#include <ucp/api/ucp.h>\n\
         static void pointer(intptr_t n) {\n    void *p = (void *)n;\n\
         \x20   printf(\"pointer %zu %d %d %d\\n\", (size_t)n, !!UCS_PTR_IS_ERR(p), !!UCS_PTR_IS_PTR(p), UCS_PTR_STATUS(p));\n}\n\
         int main(void) {\n",
    );
    for name in wanted.keys() {
        let (what, of) = name.split_once(' ').unwrap();
        let (structure, member) = of.split_once('.').unwrap_or((of, ""));
        let number = match (what, member) {
            ("value", _) => of.to_owned(),
            ("alignment", _) => format!("_Alignof({})", type_of(of)),
            ("size", "") => format!("sizeof({})", type_of(of)),
            ("size", member) => format!("sizeof({})", field(&type_of(structure), member)),
            ("offset", member) => format!("offsetof({}, {member})", type_of(structure)),
            _ => unreachable!("{name}"),
        };
        writeln!(c, "    printf(\"{name} %lld\\n\", (long long)({number}));").unwrap();
    }
    for function in source::functions() {
        let source::Function {
            name,
            result,
            arguments,
        } = function;
        let arguments = if arguments.is_empty() {
            "void".to_owned()
        } else {
            arguments.join(", ")
        };
        let same =
            format!("__builtin_types_compatible_p(__typeof__(&{name}), {result} (*)({arguments}))");
        writeln!(c, "    printf(\"function {name} %d\\n\", {same});").unwrap();
    }
    c.push_str("    for (intptr_t n = -120; n < 120; n++) pointer(n);\n    pointer(INTPTR_MAX);\n    pointer(INTPTR_MIN);\n    return 0;\n}\n");
    c
}

fn answers(headers: &Path, said: &str) -> Answers {
    let mut answers = Answers {
        headers: headers.display().to_string(),
        numbers: Numbers::new(),
        functions: BTreeMap::new(),
        pointers: BTreeMap::new(),
    };
    for line in said.lines() {
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["function", name, same] => {
                answers.functions.insert(name.into(), same == "1");
            }
            ["pointer", address, error, pointer, status] => {
                let said = (error == "1", pointer == "1", status.parse().unwrap());
                answers.pointers.insert(address.parse().unwrap(), said);
            }
            [what, of, number] => {
                let number = number.parse().unwrap();
                answers.numbers.insert(format!("{what} {of}"), number);
            }
            _ => panic!("{line}"),
        }
    }
    answers
}
